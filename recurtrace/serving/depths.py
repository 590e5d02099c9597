"""At which depth a server runs, and what a request may ask for."""

import difflib
from dataclasses import dataclass, replace
from typing import Any

from recurtrace.errors import RecurTraceError
from recurtrace.halting.rule import StoppingRule
from recurtrace.model.configuration_recurtrace import HeadSettings, RecurTraceConfig
from recurtrace.model.depth import check_loops

OVERRIDES = ("loops", "max_loops", "head")
"""What `--hf-overrides` may hold beside the fields of the config."""


@dataclass(frozen=True)
class ServedDepths:
    default: int | None
    """Depth of a request that asks for none; None: the halting head decides."""
    maximum: int
    """Deepest loop of any request; keys and values are kept for so many."""
    minimum: int = 1
    """Floor of the head's choice."""
    head: str | None = None
    """The head that decides, if not the model's own."""
    adaptive: bool = False
    """Whether a request may leave its depth to the head."""

    @classmethod
    def of(cls, config: RecurTraceConfig) -> "ServedDepths":
        """From a model's config and the overrides a server was started with."""
        given = {name: value for name, value in vars(config).items() if name in OVERRIDES and value is not None}
        _refuse_misspelt(config)
        config.check()
        head = given.get("head")
        loops = check_loops(given.get("loops"), config, 1, head)
        maximum = given.get("max_loops")
        if maximum is not None and (type(maximum) is not int or maximum < 1):
            raise RecurTraceError(f"max_loops must be a whole number of at least 1, got {maximum!r}.")
        if loops == "adaptive":
            settings = config.head_settings(head)
            most = settings.max_depth if maximum is None else maximum
            return cls(None, most, min(settings.min_depth, most), head, adaptive=True)
        if not isinstance(loops, int):
            raise RecurTraceError(f'a server runs at one default depth or "adaptive", got loops={loops!r}.')
        if head is not None:
            raise RecurTraceError('head belongs to loops="adaptive"; leave it out of a server at a fixed depth.')
        if maximum is not None and maximum < loops:
            raise RecurTraceError(f"loops ({loops}) is above max_loops ({maximum}).")
        return cls(loops, loops if maximum is None else maximum)

    def rule(self, settings: HeadSettings | None) -> StoppingRule:
        """How the head stops a request, within this server's bounds; without a head, at its maximum."""
        if settings is None:
            return StoppingRule(0.0, self.maximum, self.maximum)
        return replace(settings.rule, min_depth=self.minimum, max_depth=self.maximum)

    def asked(self, loops: Any) -> int | None:
        """Depth of a request that asks for `loops`; None: the head decides."""
        if loops is None:
            return self.default
        if loops == "adaptive":
            if not self.adaptive:
                raise RecurTraceError(
                    f"this server runs at a fixed depth; ask for 1 to {self.maximum} loops, or start it with "
                    "loops=adaptive."
                )
            return None
        if type(loops) is not int or not 1 <= loops <= self.maximum:
            also = ' or "adaptive"' if self.adaptive else ""
            raise RecurTraceError(
                f"loops must be a whole number from 1 to this server's maximum of {self.maximum}{also}, got {loops!r}."
            )
        return loops


def _refuse_misspelt(config: RecurTraceConfig) -> None:
    """vLLM sets whatever an override names; a field that does not exist would be ignored without a word."""
    known = [*config.__dataclass_fields__, *OVERRIDES]
    for name in vars(config):
        if name.startswith(("loop", "max_loop", "head")) and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(OVERRIDES)} and the config's."
            raise RecurTraceError(f"unknown override {name!r}{hint}")
