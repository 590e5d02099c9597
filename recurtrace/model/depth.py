"""Depth: what a caller may ask for, and the rules that say after each loop which sequences go on.

Shapes: b rows · s positions · d hidden size.
"""

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from recurtrace.errors import RecurTraceError
from recurtrace.halting.rule import StoppingRule
from recurtrace.model.configuration_recurtrace import HeadSettings, RecurTraceConfig
from recurtrace.model.halting import HaltingHead, pool_prompt, refuse_promptless


class DepthRule(Protocol):
    """Says which of the active sequences run another loop."""

    def continues(self, t: int, h: Tensor, rows: list[int] | None) -> bool | list[bool]:
        """After loop `t`, with block output `h` of the active `rows` (None: all of them).

        One answer for all, or one for each active row.
        """


@dataclass(frozen=True)
class Prompt:
    """What a policy may look at when it decides the depths of a batch."""

    mask: Tensor
    """[b, s] the prompt's positions."""
    decode: Callable[[Tensor, list[int] | None], Tensor]
    """Block output of the active rows → logits [b, vocabulary] of the token that follows the prompt."""


@runtime_checkable
class Policy(Protocol):
    """Another way to choose depths than a head of the model: `model(…, loops=policy)`, `generate(…, loops=policy)`."""

    def rule(self, prompt: Prompt) -> DepthRule:
        """The rule for one batch."""


Loops = int | str | Sequence[int] | Tensor | Policy | None


class FixedDepth:
    """Every sequence runs the same number of loops."""

    def __init__(self, loops: int):
        self.loops = loops

    def continues(self, t: int, h: Tensor, rows: list[int] | None) -> bool | list[bool]:
        return t < self.loops


class VisitedDepths(FixedDepth):
    """Every sequence runs the same number of loops; someone looks at the state after each, and may say it is enough."""

    def __init__(self, loops: int, visit: Callable[[int, Tensor], bool]):
        super().__init__(loops)
        self.visit = visit

    def continues(self, t: int, h: Tensor, rows: list[int] | None) -> bool | list[bool]:
        return self.visit(t, h) and super().continues(t, h, rows)


class DepthPerRow:
    """Every sequence has its own number of loops, known beforehand."""

    def __init__(self, depths: list[int]):
        self.depths = depths

    def continues(self, t: int, h: Tensor, rows: list[int] | None) -> bool | list[bool]:
        return [self.depths[row] > t for row in (rows if rows is not None else range(len(self.depths)))]


class HeadHalting:
    """Algorithm 1: the halting head's probability of continuing decides."""

    def __init__(self, head: HaltingHead, pooling: str, prompt_mask: Tensor, rule: StoppingRule):
        self.head, self.pooling, self.prompt_mask, self.rule = head, pooling, prompt_mask, rule
        self._columns: list[Tensor] = []

    def continues(self, t: int, h: Tensor, rows: list[int] | None) -> bool | list[bool]:
        mask = self.prompt_mask if rows is None else self.prompt_mask[rows]
        probs = self.head(pool_prompt(h, mask, self.pooling))
        column = probs.new_full((len(self.prompt_mask),), torch.nan)
        column[rows if rows is not None else slice(None)] = probs
        self._columns.append(column)
        halts = self.rule.halts(t, probs)
        if not isinstance(halts, Tensor):
            return not halts
        halts, has_prompt = torch.stack([halts, mask.any(dim=1)]).tolist()  # the device is waited for once per loop
        refuse_promptless(has_prompt)
        return [not halt for halt in halts]

    @property
    def continue_probs(self) -> Tensor:
        """[b, loops run]; NaN where a sequence had halted already."""
        return torch.stack(self._columns, dim=1)


def go_on(halts: bool | Tensor) -> bool | list[bool]:
    """What a depth rule answers, from what the stopping rule says."""
    return [not halt for halt in halts.tolist()] if isinstance(halts, Tensor) else not halts


def depth_rule(depths: list[int]) -> FixedDepth | DepthPerRow:
    return FixedDepth(depths[0]) if len(set(depths)) == 1 else DepthPerRow(depths)


Depths = int | str | list[int] | Policy


def check_request(
    loops: Loops, head: str | None, bounds: dict[str, Any], config: RecurTraceConfig, batch_size: int
) -> tuple[Depths, dict[str, Any]]:
    """Depth and bounds as asked for, with the config's values filled in; head and bounds belong to "adaptive"."""
    asked = check_loops(loops, config, batch_size, head)
    if asked == "adaptive":
        bounds = adaptive_bounds(config.head_settings(head), bounds)
        check_limit(bounds["max_depth"], config, "max_depth")
        return asked, bounds
    if head is not None or any(bound is not None for bound in bounds.values()):
        raise RecurTraceError('head, min_depth, max_depth and threshold belong to loops="adaptive".')
    return asked, {}


def check_loops(loops: Loops, config: RecurTraceConfig, batch_size: int, head: str | None = None) -> Depths:
    """The depth asked for, with the default filled in: a number, a number for each row, "adaptive", or a policy."""
    if loops is None:
        loops = config.default_loops if head is None else "adaptive"
    if isinstance(loops, str):
        if loops != "adaptive":
            raise RecurTraceError(f'loops must be a whole number or "adaptive", got {loops!r}.')
        config.head_settings(head)
        return loops
    if isinstance(loops, Policy):
        return loops
    per_row = loops.tolist() if isinstance(loops, Tensor) else loops
    if isinstance(per_row, Sequence):
        if len(per_row) != batch_size:
            raise RecurTraceError(f"loops has {len(per_row)} depths for a batch of {batch_size}; pass one per row.")
        return [_check_depth(depth, config) for depth in per_row]
    return _check_depth(per_row, config)


def _check_depth(depth: object, config: RecurTraceConfig) -> int:
    if isinstance(depth, bool) or not isinstance(depth, Integral):
        raise RecurTraceError(f'loops must be a whole number or "adaptive", got {depth!r}.')
    if depth < 1:
        raise RecurTraceError(f"loops must be at least 1 (one loop is the base model), got {depth}.")
    check_limit(int(depth), config)
    return int(depth)


def check_limit(
    depth: int,
    config: RecurTraceConfig,
    name: str = "loops",
    remedy: str = "set loop_depth_limit (--depth-limit)",
) -> None:
    """A typing error must not run for hours."""
    if depth > config.depth_limit:
        raise RecurTraceError(
            f"{name} is {depth:,}, beyond the limit of {config.depth_limit} for a model that was trained on up to "
            f"{config.loop_train_max} loops; lower it, or {remedy}."
        )


_ARGUMENTS = ("loops", "head", "min_depth", "max_depth", "threshold", "prompt_mask")


def refuse_depth_like(given: Iterable[str]) -> None:
    """A depth under another name would otherwise be ignored without a word."""
    for name in given:
        near = difflib.get_close_matches(name, _ARGUMENTS, n=1, cutoff=0.8)
        words = name.split("_")  # stopping_criteria is no iteration
        if near or any(word.startswith(("loop", "depth", "recur", "halt", "iter")) for word in words):
            raise RecurTraceError(
                f"there is no argument {name!r}; the depth is loops, and that of the halting head is bounded by "
                "min_depth, max_depth and threshold."
            )


def kept_depths(kept: list[int], loops: Depths, batch_size: int) -> list[int]:
    """The depths a cache was begun with; asking for others with it is an error."""
    if len(kept) != batch_size:
        raise RecurTraceError(f"the cache holds {len(kept)} sequences, the input {batch_size}; start a new cache.")
    asked = [loops] * batch_size if isinstance(loops, int) else loops
    if isinstance(asked, list) and asked != kept:
        raise RecurTraceError(
            f"the cache was started at depths {kept} and cannot continue at {asked}; start a new one."
        )
    return kept


def adaptive_bounds(head: HeadSettings, given: dict[str, Any]) -> dict[str, Any]:
    """T_min, T_max and τ: the call's where given, else the head's, whose floor gives way to a smaller budget."""
    bounds = {name: getattr(head, name) if value is None else value for name, value in given.items()}
    for name in ("min_depth", "max_depth"):
        if isinstance(bounds[name], bool) or not isinstance(bounds[name], int) or bounds[name] < 1:
            raise RecurTraceError(f"{name} must be a whole number of at least 1, got {bounds[name]!r}.")
    if given["min_depth"] is None:
        bounds["min_depth"] = min(bounds["min_depth"], bounds["max_depth"])
    if bounds["min_depth"] > bounds["max_depth"]:
        raise RecurTraceError(f"min_depth ({bounds['min_depth']}) is above max_depth ({bounds['max_depth']}).")
    if not isinstance(bounds["threshold"], int | float) or not 0 <= bounds["threshold"] <= 1:
        raise RecurTraceError(f"threshold is a probability between 0 and 1, got {bounds['threshold']!r}.")
    return bounds
