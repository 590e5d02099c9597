"""Policies: a signal and a stopping rule. The same one runs live in a model, or on a sweep of it.

Shapes: n examples · T depths · b rows · d hidden size.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recurtrace.errors import RecurTraceError
from recurtrace.halting.signals import SIGNALS, next_token
from recurtrace.halting.sweep_files import STATES, Sweep
from recurtrace.model.depth import DepthRule, Prompt, go_on
from recurtrace.model.halting import pool_prompt
from recurtrace.model.heads import Head


@dataclass(frozen=True)
class SignalPolicy:
    """A training-free rule as `loops` of a model."""

    signal: str
    threshold: float
    min_depth: int = 2
    max_depth: int = 16
    pooling: str = "prompt_mean"
    """Which pooled state the state signals read."""

    def __post_init__(self) -> None:
        free = [name for name, signal in SIGNALS.items() if signal.formula is not None]
        if self.signal not in free:
            raise RecurTraceError(
                f"there is no training-free signal {self.signal!r}; choose one of {', '.join(free)}, or "
                'loops="adaptive" for the halting head.'
            )
        if not isinstance(self.threshold, int | float) or math.isnan(self.threshold):
            raise RecurTraceError(f"the threshold of a policy must be a number, got {self.threshold!r}.")
        if not 1 <= self.min_depth <= self.max_depth:
            raise RecurTraceError(
                f"a policy needs 1 ≤ min_depth ≤ max_depth, got {self.min_depth} and {self.max_depth}."
            )

    def rule(self, prompt: Prompt) -> DepthRule:
        return _SignalHalting(self, prompt)


class _SignalHalting:
    def __init__(self, policy: SignalPolicy, prompt: Prompt):
        self.signal, self.pooling, self.prompt = SIGNALS[policy.signal], policy.pooling, prompt
        self.stopping = self.signal.rule(policy.threshold, policy.min_depth, policy.max_depth)
        self.before: Tensor | None = None  # what the signal read one loop earlier, of the rows that were active
        self.rows: list[int] | None = None

    def continues(self, t: int, h: Tensor, rows: list[int] | None) -> bool | list[bool]:
        if t >= self.stopping.max_depth:
            return False
        return go_on(self.stopping.halts(t, self._measure(h, rows)))

    def _measure(self, h: Tensor, rows: list[int] | None) -> Tensor:
        before = self.before
        if before is not None and rows is not None:  # some have halted since
            known = self.rows if self.rows is not None else range(len(before))
            place = {row: i for i, row in enumerate(known)}
            before = before[[place[row] for row in rows]]
        self.rows = rows
        if self.signal.reads == "state":
            self.before = pool_prompt(h, self.prompt.mask if rows is None else self.prompt.mask[rows], self.pooling)
        else:
            self.before = next_token(self.prompt.decode(h, rows))
        assert self.signal.formula is not None  # a policy has no head
        return self.signal.formula(self.before, before)


def signal_values(sweep: Sweep, signal: str, head: Head | None = None) -> np.ndarray:
    """[n, T] a signal along a sweep; the halting head's needs the head."""
    sweep.require_every_depth()
    row = SIGNALS[signal]
    if row.reads == "decoded":
        return sweep[signal]
    if row.formula is not None:
        states = torch.from_numpy(sweep[STATES["prompt_mean"]])
        moved = row.formula(states[:, 1:], states[:, :-1])
        return torch.cat([row.formula(states[:, :1], None), moved], dim=1).numpy()
    assert head is not None
    return head.continue_probs(torch.from_numpy(sweep[STATES[head.settings.pooling]])).numpy()


def needed_arrays(signal: str, head: Head | None = None) -> list[str]:
    """Arrays of a sweep that `signal_values` reads."""
    if SIGNALS[signal].reads == "decoded":
        return [signal]
    return [STATES[head.settings.pooling if head is not None else "prompt_mean"]]


def stop_depths(
    values: np.ndarray, signal: str, threshold: float, min_depth: int = 1, max_depth: int | None = None
) -> np.ndarray:
    """[n] depths a policy would choose, from its signal [n, T] at depths 1..T."""
    budget = values.shape[1] if max_depth is None else max_depth
    return SIGNALS[signal].rule(threshold, min_depth, budget).depths(values)


def at_depths(values: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """[n] what was measured [n, T] at each example's own depth."""
    return np.take_along_axis(values, depths[:, None] - 1, axis=1)[:, 0]
