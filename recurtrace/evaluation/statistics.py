"""What can be said of paired results, and how surely. Arrays in, plain numbers out; no model and no torch.

Shapes: n items · T depths (column t-1 is depth t).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from recurtrace.errors import RecurTraceError
from recurtrace.halting.rule import StoppingRule
from recurtrace.records import Composition, Gap, HeadAtDepth, ThresholdRow

BOOTSTRAP = 10_000
LOTS = 101


@dataclass(frozen=True)
class Transitions:
    """Two methods on the same items: right by both, by one alone, by neither."""

    both: int
    gained: int
    """Wrong before, right now."""
    lost: int
    """Right before, wrong now."""
    neither: int

    @property
    def items(self) -> int:
        return self.both + self.gained + self.lost + self.neither

    @property
    def net(self) -> int:
        return self.gained - self.lost

    @property
    def points(self) -> float:
        """Gain in percentage points."""
        return 100 * self.net / self.items

    @property
    def p_value(self) -> float:
        """Exact McNemar test: of the pairs that differ, as many should go each way."""
        differing = self.gained + self.lost
        return float(binomtest(self.gained, differing, 0.5).pvalue) if differing else 1.0


def transitions(before: np.ndarray, now: np.ndarray) -> Transitions:
    before, now = before.astype(bool), now.astype(bool)
    counts = [int((a & b).sum()) for a, b in ((before, now), (~before, now), (before, ~now), (~before, ~now))]
    return Transitions(*counts)


@dataclass(frozen=True)
class Interval:
    mean: float
    low: float
    high: float


def paired_bootstrap(
    differences: np.ndarray,
    clusters: np.ndarray | None = None,
    samples: int = BOOTSTRAP,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile interval of the mean of paired differences [n].

    With `clusters` [n] whole clusters (evaluation seeds) are drawn, each with all of its items.
    """
    differences = differences.astype(float)
    rng = np.random.default_rng(seed)
    if clusters is None:
        sums, sizes = differences, np.ones(len(differences))
    else:
        names, member = np.unique(clusters, return_inverse=True)
        if len(names) < 2:
            raise RecurTraceError("a bootstrap over clusters needs at least two of them.")
        sums, sizes = np.bincount(member, differences), np.bincount(member).astype(float)
    means = np.empty(samples)
    step = max(1, 10_000_000 // len(sums))  # draws held at once
    for start in range(0, samples, step):
        drawn = rng.integers(len(sums), size=(min(step, samples - start), len(sums)))
        means[start : start + step] = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(differences.mean()), float(low), float(high))


def depth_histogram(depths: np.ndarray) -> dict[int, int]:
    return dict(sorted(Counter(depths.tolist()).items()))


def histogram_mean(histogram: dict[int, int]) -> float:
    return sum(depth * count for depth, count in histogram.items()) / sum(histogram.values())


def head_calibration(
    continue_probs: np.ndarray, labels: np.ndarray, supervised: Sequence[int], threshold: float, deepest: int = 8
) -> list[HeadAtDepth]:
    """The head against the oracle's labels, depth by depth."""
    rows = []
    for depth in range(1, min(deepest, labels.shape[1]) + 1):
        wanted, probs = labels[:, depth - 1], continue_probs[:, depth - 1]
        balanced = auroc = None
        if 0 < wanted.sum() < len(wanted):
            balanced = float(balanced_accuracy_score(wanted, probs >= threshold))
            auroc = float(roc_auc_score(wanted, probs))
        rows.append(HeadAtDepth(depth, depth in supervised, float(wanted.mean()), balanced, auroc))
    return rows


def hard_easy_gap(depths: np.ndarray, right_at_one: np.ndarray) -> Gap:
    right = right_at_one.astype(bool)
    easy, hard = (float(depths[group].mean()) if group.any() else None for group in (right, ~right))
    return Gap(easy, hard, hard - easy if easy is not None and hard is not None else None)


def mean_gap(depths: np.ndarray, right_at_one: np.ndarray, seeds: np.ndarray) -> Gap:
    """The mean over evaluation seeds, as the paper has it; a seed without easy or hard items has no say in theirs."""
    gaps = [hard_easy_gap(depths[seeds == seed], right_at_one[seeds == seed]) for seed in np.unique(seeds)]

    def mean(values: list[float | None]) -> float | None:
        there = [value for value in values if value is not None]
        return float(np.mean(there)) if there else None

    return Gap(*(mean([getattr(gap, name) for gap in gaps]) for name in ("easy", "hard", "gap")))


def by_seed(values: np.ndarray, seeds: np.ndarray) -> dict[int, float]:
    """Mean of each evaluation seed."""
    return {int(seed): float(values[seeds == seed].mean()) for seed in np.unique(seeds)}


@dataclass(frozen=True)
class Deepened:
    """The items that go beyond the floor: what was gained by it, against what chance would give."""

    items: int
    oracle_positive: int
    """Of them, those whose loss does fall by going on."""
    flipped: int
    """Of them, those that turn from wrong to right."""
    population_positive: int
    """Oracle-positive items at the floor, in all."""
    population: int
    wrong_at_floor: int
    recoverable: int
    """Wrong at the floor and right at some depth."""

    @property
    def precision(self) -> float | None:
        return _share(self.oracle_positive, self.items)

    @property
    def recall(self) -> float | None:
        return _share(self.oracle_positive, self.population_positive)

    @property
    def positive_base_rate(self) -> float | None:
        return _share(self.population_positive, self.population)

    @property
    def flip_rate(self) -> float | None:
        return _share(self.flipped, self.items)

    @property
    def flip_base_rate(self) -> float | None:
        """Most that deepening wrong items blindly could flip."""
        return _share(self.recoverable, self.wrong_at_floor)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def deepened(depths: np.ndarray, correct: np.ndarray, labels: np.ndarray, floor: int) -> Deepened:
    deeper = depths > floor
    at_floor = correct[:, floor - 1].astype(bool)
    chosen = np.take_along_axis(correct, depths[:, None] - 1, axis=1)[:, 0].astype(bool)
    positive = labels[:, floor - 1].astype(bool)
    return Deepened(
        items=int(deeper.sum()),
        oracle_positive=int((deeper & positive).sum()),
        flipped=int((deeper & ~at_floor & chosen).sum()),
        population_positive=int(positive.sum()),
        population=len(depths),
        wrong_at_floor=int((~at_floor).sum()),
        recoverable=int((~at_floor & correct.any(axis=1)).sum()),
    )


def composition(
    depths: np.ndarray, right_at_one: np.ndarray, buckets: Sequence[str], answer_tokens: np.ndarray, floor: int
) -> Composition:
    deeper = depths > floor
    names = Counter(bucket for bucket, inside in zip(buckets, deeper, strict=True) if inside)
    return Composition(
        items=int(deeper.sum()),
        hard=int((deeper & ~right_at_one.astype(bool)).sum()),
        buckets=dict(names.most_common()),
        median_answer_tokens=float(np.median(answer_tokens[deeper])) if deeper.any() else None,
        median_answer_tokens_of_all=float(np.median(answer_tokens)),
    )


THRESHOLDS = (0.01, 0.05, 0.10, 0.20, 0.30, 0.50)


def threshold_sweep(
    continue_probs: np.ndarray, correct: np.ndarray, seeds: np.ndarray, thresholds: Sequence[float] = THRESHOLDS
) -> list[ThresholdRow]:
    """The head without a floor, at several thresholds."""
    budget = correct.shape[1]
    rows = []
    for threshold in thresholds:
        depths = StoppingRule(threshold, max_depth=budget).depths(continue_probs)
        chosen = np.take_along_axis(correct, depths[:, None] - 1, axis=1)[:, 0]
        gains = chosen.astype(int) - correct[:, -1].astype(int)
        rows.append(
            ThresholdRow(
                threshold=threshold,
                mean_depth=float(depths.mean()),
                loop_cut=float(1 - depths.mean() / budget),
                gap=mean_gap(depths, correct[:, 0], seeds).gap,
                gain=int(gains.sum()),
                seeds_without_loss=sum(int(gains[seeds == seed].sum() >= 0) for seed in np.unique(seeds)),
            )
        )
    return rows


def as_many(depths: np.ndarray, lots: int = LOTS) -> np.ndarray:
    """[lots, n] two neighbouring depths that spend as many loops in all; each lot draws the items that get one more."""
    least, more = divmod(int(depths.sum()), len(depths))
    rng, fixed = np.random.default_rng(0), np.full((lots, len(depths)), least)
    for drawn in fixed:
        drawn[rng.permutation(len(depths))[:more]] += 1
    return fixed


def gap_closed(fixed: float, adaptive: float, ceiling: float) -> float | None:
    """Which share of the way from a fixed depth to the correctness ceiling was gone; None where there is none to go."""
    return (adaptive - fixed) / (ceiling - fixed) if ceiling > fixed else None
