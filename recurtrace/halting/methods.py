"""The comparison: one row for each way to choose a depth = what trains the head × what stops the loop × the floor.

The names that commands, recipes and configs accept are read from these rows. No torch here.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    name: str
    title: str
    signal: str
    """What is read after each loop, a row of halting/signals.py; "fixed" reads nothing."""
    objective: str | None = None
    """What trained the head, a row of halting/objectives.py, where the head is read."""
    head: str | None = None
    """Name of that head in a model folder; None is the model's own."""
    floor: int | None = None
    """Smallest depth, or a fixed method's depth; None is calibrated on held-out data."""
    threshold: float | None = None
    """None is calibrated on held-out data."""
    ours: bool = False
    """An extension, not in the paper's comparison."""


def fixed_depth(loops: int) -> Method:
    return Method(f"fixed-{loops}", f"Fixed depth, T={loops}", "fixed", floor=loops)


METHODS = (
    # Halting distributions stop by themselves, once stopping is likelier than going on.
    Method("act", "ACT", "head", "act", "act", floor=1, threshold=0.5),
    Method("pondernet", "PonderNet", "head", "pondernet", "pondernet", floor=1, threshold=0.5),
    Method("act-floor", "ACT + floor", "head", "act", "act", threshold=0.5),
    Method("pondernet-floor", "PonderNet + floor", "head", "pondernet", "pondernet", threshold=0.5),
    Method("calm-top-prob", "CALM (top-prob)", "top_prob"),
    Method("calm-margin", "CALM (margin)", "margin"),
    Method("loopus", "LoopUS-Conf", "head", "loopus", "loopus"),
    Method("tah", "TaH-Mismatch", "head", "tah", "tah"),
    Method("recurtrace", "RecurTrace", "head", "oracle"),
    Method("recurtrace-no-floor", "RecurTrace, no floor", "head", "oracle", floor=1, ours=True),
    Method("entropy", "Entropy", "entropy", ours=True),
    Method("kl", "Distribution at rest (KL)", "kl", ours=True),
    Method("state-l2", "State at rest (L2)", "state_l2", ours=True),
    Method("state-angle", "State at rest (angle)", "state_angle", ours=True),
)
OWN_OBJECTIVE = "oracle"  # trains the model's own head; a head of another objective carries its name
OBJECTIVES = tuple(
    dict.fromkeys([OWN_OBJECTIVE, *(method.objective for method in METHODS if method.objective is not None)])
)
PENALISED = ("act", "pondernet")  # objectives with a strength: the price of a loop, the weight of a prior
SIGNALS = tuple(dict.fromkeys(["head", *(method.signal for method in METHODS)]))
