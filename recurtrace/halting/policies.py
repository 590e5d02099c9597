"""Policies: a signal, a threshold, a floor and a budget. The same one runs live in a model, or on a sweep of it.

Shapes: n examples · T depths · b rows · d hidden size.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from recurtrace.errors import RecurTraceError
from recurtrace.halting.signals import SIGNALS, decoded_signals, state_signal
from recurtrace.halting.sweep_files import STATES, Sweep
from recurtrace.model.configuration_recurtrace import HeadSettings
from recurtrace.model.depth import DepthRule, Prompt
from recurtrace.model.halting import pool_prompt


@dataclass(frozen=True)
class SignalPolicy:
    """A training-free rule as `loops` of a model: stop at the first t ≥ T_min where the signal says so, or at T_max."""

    signal: str
    threshold: float
    min_depth: int = 2
    max_depth: int = 16
    pooling: str = "prompt_mean"
    """Which pooled state the state signals read."""

    def __post_init__(self) -> None:
        free = [name for name, signal in SIGNALS.items() if signal.reads != "head"]
        if self.signal not in free:
            raise RecurTraceError(
                f"there is no training-free signal {self.signal!r}; choose one of {', '.join(free)}, or "
                'loops="adaptive" for the halting head.'
            )
        if not 1 <= self.min_depth <= self.max_depth:
            raise RecurTraceError(
                f"a policy needs 1 ≤ min_depth ≤ max_depth, got {self.min_depth} and {self.max_depth}."
            )

    def rule(self, prompt: Prompt) -> DepthRule:
        return _SignalRule(self, prompt)


class _SignalRule:
    def __init__(self, policy: SignalPolicy, prompt: Prompt):
        self.policy, self.prompt = policy, prompt
        self.before: Tensor | None = None  # of the rows that are active
        self.rows: list[int] | None = None

    def continues(self, t: int, h: Tensor, rows: list[int] | None) -> bool | list[bool]:
        if t >= self.policy.max_depth:
            return False
        halts = SIGNALS[self.policy.signal].halts(self._measure(h, rows), self.policy.threshold)
        return True if t < self.policy.min_depth else halts.logical_not().tolist()

    def _measure(self, h: Tensor, rows: list[int] | None) -> Tensor:
        before = self.before
        if before is not None and rows is not None:  # some have halted since
            known = self.rows if self.rows is not None else range(len(before))
            place = {row: i for i, row in enumerate(known)}
            before = before[[place[row] for row in rows]]
        self.rows = rows
        if SIGNALS[self.policy.signal].reads == "state":
            mask = self.prompt.mask if rows is None else self.prompt.mask[rows]
            self.before = pool_prompt(h, mask, self.policy.pooling)
            return state_signal(self.policy.signal, self.before, before)
        values, self.before = decoded_signals(self.prompt.decode(h, rows), before)
        return values[self.policy.signal]


def signal_values(sweep: Sweep, signal: str, head: tuple[Tensor, Tensor, HeadSettings] | None = None) -> np.ndarray:
    """[n, T] a signal along a sweep; the halting head's needs the head."""
    sweep.require_every_depth()
    if SIGNALS[signal].reads == "decoded":
        return sweep[signal]
    if SIGNALS[signal].reads == "state":
        states = torch.from_numpy(sweep[STATES["prompt_mean"]])
        moved = state_signal(signal, states[:, 1:], states[:, :-1])
        return torch.cat([state_signal(signal, states[:, :1], None), moved], dim=1).numpy()
    assert head is not None
    weight, bias, settings = head
    states = torch.from_numpy(sweep[STATES[settings.pooling]])
    return torch.sigmoid(F.linear(states, weight, bias)).squeeze(-1).numpy()


def stop_depths(
    values: np.ndarray, signal: str, threshold: float, min_depth: int = 1, max_depth: int | None = None
) -> np.ndarray:
    """[n] depths a policy would choose, from its signal [n, T] at depths 1..T."""
    budget = values.shape[1] if max_depth is None else min(max_depth, values.shape[1])
    halts = SIGNALS[signal].halts(torch.from_numpy(values[:, :budget]), threshold).numpy().copy()
    halts[:, : min_depth - 1] = False
    halts[:, budget - 1] = True
    return halts.argmax(axis=1) + 1


def at_depths(values: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """[n] what was measured [n, T] at each example's own depth."""
    return np.take_along_axis(values, depths[:, None] - 1, axis=1)[:, 0]
