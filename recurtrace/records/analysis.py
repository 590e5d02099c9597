"""What `recurtrace compare` hands over: every way to choose a depth, and everything about the model's own head."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import TypeAdapter

from recurtrace.records.record import LEFT_OUT, Record, read_record


@dataclass(frozen=True)
class MethodResult:
    """One way to choose a depth, on the test items."""

    name: str
    """As in halting/methods.py; "fixed-T" for a fixed depth."""
    title: str
    """As tables print it."""
    ours: bool
    """Not in the paper's comparison."""
    accuracy: float
    correct: int
    """Right answers."""
    mean_depth: float
    nll: float | None
    """Mean loss; None where some loss is not a number."""
    net: int
    """Right answers more than at the best fixed depth."""
    p_value: float
    """Exact McNemar test against the best fixed depth."""
    gain_low: float
    """Lower end of the 95 % bootstrap interval of the gain in accuracy over the best fixed depth."""
    gain_high: float
    """Upper end of it."""
    threshold: float | None
    """None for methods without one."""
    floor: int
    """Smallest depth."""
    seed_accuracy: dict[int, float]
    """Accuracy on each evaluation seed."""
    regularization: float | None = field(default=None, metadata=LEFT_OUT)
    """Strength of the penalty or prior that the head was trained with; None for methods without one."""


@dataclass(frozen=True)
class FixedResult:
    """Every test item at the same depth."""

    depth: int
    accuracy: float
    nll: float | None
    """Mean loss; None where some loss is not a number."""


@dataclass(frozen=True)
class Transition:
    """Adaptive depth against the best fixed depth on the same items."""

    both: int
    """Right by both."""
    gained: int
    """Wrong at the fixed depth, right at the adaptive one."""
    lost: int
    """Right at the fixed depth, wrong at the adaptive one."""
    neither: int
    """Right by neither."""
    net: int
    """Gained minus lost."""
    points: float
    """Gain in percentage points."""
    p_value: float
    """Exact McNemar test."""


@dataclass(frozen=True)
class HeadAtDepth:
    """How well the head tells at one depth which items should go on."""

    depth: int
    supervised: bool
    """Whether the head was trained at this depth."""
    positive_share: float
    """Share of items that should go on."""
    balanced_accuracy: float | None
    """At the calibrated threshold; None where every item has the same label."""
    auroc: float | None
    """None where every item has the same label."""


@dataclass(frozen=True)
class DeepenedItems:
    """The items that go beyond the floor: what was gained by it, against what chance would give.

    A rate is None where there is nothing to divide by.
    """

    items: int
    oracle_positive: int
    """Of them, those whose loss does fall by going on."""
    flipped: int
    """Of them, those that turn from wrong to right."""
    population_positive: int
    """Oracle-positive items at the floor, in all."""
    population: int
    """All items."""
    wrong_at_floor: int
    recoverable: int
    """Wrong at the floor and right at some depth."""
    precision: float | None
    """Share of the deepened items that are oracle-positive."""
    recall: float | None
    """Share of the oracle-positive items that are deepened."""
    positive_base_rate: float | None
    """Share of all items that are oracle-positive."""
    flip_rate: float | None
    """Share of the deepened items that turn from wrong to right."""
    flip_base_rate: float | None
    """Most that deepening wrong items blindly could flip."""


@dataclass(frozen=True)
class Composition:
    """What the deepened items are like, beside all of them."""

    items: int
    hard: int
    """Of them, those that are wrong after one loop."""
    buckets: dict[str, int]
    """Deepened items of each task and bucket, the most frequent first."""
    median_answer_tokens: float | None
    """None where no item is deepened."""
    median_answer_tokens_of_all: float


@dataclass(frozen=True)
class ThresholdRow:
    """The head at one threshold, without a floor."""

    threshold: float
    mean_depth: float
    loop_cut: float
    """Share of the budget's loops that is saved, 1 - mean/T_max; not of all compute."""
    gap: float | None
    """Mean depth of hard items minus that of easy ones; None where there are none of either."""
    gain: int
    """Right answers more than at the full budget."""
    seeds_without_loss: int
    """Evaluation seeds on which nothing is lost against the budget."""


@dataclass(frozen=True)
class Fold:
    """One fold at the threshold that the others chose."""

    threshold: float
    mean_depth: float
    accuracy_gain: float
    """Over the floor."""
    nll_gain: float
    """Over the floor."""


@dataclass(frozen=True)
class LeaveOneOut:
    """Gain in accuracy over the floor when each fold takes the threshold of the others."""

    mean: float
    low: float
    high: float
    folds: list[Fold]


@dataclass(frozen=True)
class Gap:
    """Mean depth of easy items (right after one loop) and hard ones; None where there are none."""

    easy: float | None
    hard: float | None
    gap: float | None
    """Hard minus easy."""


@dataclass(frozen=True)
class OperatingPointResult:
    """The head at a threshold and floor, on the test items."""

    name: Literal["main", "accuracy", "illustration", "difficulty"]
    """main: calibrated on held-out likelihood. accuracy: the same floor, calibrated on held-out accuracy. illustration:
    the paper's threshold of 0.10 without a floor. difficulty: no floor and the best held-out accuracy."""
    threshold: float
    floor: int
    mean_depth: float
    accuracy: float
    easy: float | None
    """Mean depth of items that are right after one loop; None where there are none."""
    hard: float | None
    """Mean depth of items that are wrong after one loop; None where there are none."""
    gap: float | None
    """Hard minus easy."""
    seeds: list[Gap]
    """The same for each evaluation seed."""
    easy_histogram: dict[int, int]
    """Easy items that stop at each depth."""
    hard_histogram: dict[int, int]
    """Hard items that stop at each depth."""


@dataclass(frozen=True)
class MatchedResult:
    """The head at one threshold, against fixed depths that spend as many loops on the test items.

    These are the two whole depths next to the head's mean depth; a lot draws the items that get one loop more.
    """

    threshold: float
    mean_depth: float
    """On the test items, of both."""
    accuracy: float
    fixed_accuracy: float
    """Expected over all lots."""
    way: float | None
    """Share of the way from there to the correctness ceiling; None where there is no way to go."""
    p_value: float
    """Exact McNemar test between the two: the median of many lots."""
    gain_low: float
    """Lower end of the 95 % bootstrap interval of the gain in accuracy."""
    gain_high: float
    """Upper end of it."""
    ration: int | None = field(default=None, metadata=LEFT_OUT)
    """Mean loops on held-out items, at most, where the threshold was chosen by these."""


@dataclass(frozen=True)
class TaskResult:
    """One task alone, with the head of its name or else the model's own, and its own threshold without a floor."""

    task: str
    items: int
    own_head: bool
    """Whether the model has a head of the task's name."""
    fixed: float
    """Accuracy at the deepest of the fixed depths that are compared."""
    best: float
    """Accuracy at the best of them."""
    best_depth: int
    """That depth."""
    adaptive: float | None = field(default=None, metadata=LEFT_OUT)
    """Accuracy of adaptive depth; None where the task has no held-out items to take a threshold from."""
    mean_depth: float | None = field(default=None, metadata=LEFT_OUT)
    """Mean depth of adaptive depth; None likewise."""


@dataclass(frozen=True)
class BucketResult:
    """Items of one difficulty, at the calibrated point and at every fixed depth."""

    bucket: str
    items: int
    mean_depth: float
    accuracy: float
    fixed: list[float]
    """Accuracy at depths 1..T."""
    oracle_depth: float
    """Mean depth at which the measured loss stops falling."""


@dataclass(frozen=True)
class WorkedItem:
    """One item at every depth, to look at."""

    kind: Literal["easy", "deepened", "overthought"]
    """easy: right where most stop. deepened: wrong at the floor, right where the head stops. overthought: right where
    the head stops, wrong at the deepest loop."""
    id: str
    task: str
    bucket: str
    prompt: str
    reference: str
    answers: list[str]
    """At depths 1..T."""
    correct: list[bool]
    depth: int
    """Where the head stops."""
    continue_probs: list[float]
    """At depths 1..T."""


@dataclass(frozen=True, kw_only=True)
class Analysis(Record):
    """Every way to choose a depth on the test items of one model."""

    model: str | None
    """Where the swept model was; None if the sweep does not say."""
    data: str
    """Tasks or mixture that the test items are from."""
    items: int
    """Test items."""
    depths: int
    """Deepest loop of the sweeps."""
    seeds: int
    """Evaluation seeds, or stretches of the sweep where there are none."""
    heldout_items: int
    """Items that thresholds and floors were chosen on."""
    best_fixed: str
    """Name of the fixed depth with the best accuracy on the test items."""
    methods: list[MethodResult]
    """Fixed depths first, ceilings last."""
    fixed: list[FixedResult]
    """Every depth of the sweep."""
    command: str = ""
    """What made it."""
    items_sha256: str = field(default="", metadata=LEFT_OUT)
    """Hash of the test items' ids and prompts; an analysis of an older version does not say."""
    base: str = field(default="", metadata=LEFT_OUT)
    """Hub id or folder of the base; empty if the model does not say."""
    best_heldout: int | None = field(default=None, metadata=LEFT_OUT)
    """The fixed depth of lowest held-out loss; an analysis of an older version does not say."""

    @staticmethod
    def read(path: Path) -> "Analysis":
        """An analysis; a `HeadAnalysis` where the model has a head of its own."""
        return read_record(path, Analysis, "an analysis", "recurtrace compare --out")

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:
        of_head = {one.name for one in fields(HeadAnalysis)} - {one.name for one in fields(Analysis)}
        kind: Any = HeadAnalysis if of_head & found.keys() else cls
        return TypeAdapter(kind).validate_python(found)

    def method(self, name: str) -> MethodResult:
        return next(row for row in self.methods if row.name == name)


@dataclass(frozen=True, kw_only=True)
class HeadAnalysis(Analysis):
    """The same for a model with a halting head of its own, and everything about that head."""

    threshold: float
    """Calibrated on held-out items."""
    floor: int
    """Smallest depth, given or calibrated on held-out items."""
    transition: Transition
    histogram: dict[int, int]
    """Items that stop at each depth."""
    head_calibration: list[HeadAtDepth]
    """The head against the oracle on the test items, for the first eight depths."""
    deepened: DeepenedItems
    composition: Composition
    threshold_sweep: list[ThresholdRow]
    """Several thresholds without a floor."""
    gap_closed: float | None
    """Share of the way from the best fixed depth to the correctness ceiling; None where there is no way to go."""
    leave_one_out: LeaveOneOut
    operating_points: list[OperatingPointResult]
    """The calibrated point first."""
    tasks: list[TaskResult]
    """By name."""
    buckets: list[BucketResult] = field(default_factory=list, metadata=LEFT_OUT)
    """By difficulty, the easiest first; none where items have no bucket."""
    worked: list[WorkedItem] = field(default_factory=list, metadata=LEFT_OUT)
    """At most one of each kind."""
    matched: MatchedResult | None = field(default=None, metadata=LEFT_OUT)
    """The calibrated point against as many fixed loops; an analysis of an older version has none."""
    rations: list[MatchedResult] = field(default_factory=list, metadata=LEFT_OUT)
    """The same where loops are rationed, for every whole number of them above the floor."""
    heldout_calibration: list[HeadAtDepth] = field(default_factory=list, metadata=LEFT_OUT)
    """The head against the oracle on the held-out items, as in the paper; analyses of an older version have none."""

    def point(self, name: str) -> OperatingPointResult | None:
        return next((point for point in self.operating_points if point.name == name), None)

    @property
    def task_names(self) -> list[str]:
        return [row.task for row in self.tasks]
