"""The paper's claims, held against the records of a study: what was measured, how surely, and what follows.

A claim holds where its interval and every training seed are on its side, fails where the interval is on the other, and
cannot be told otherwise. Differences are paired by item; intervals are 95 % bootstraps over items, of the mean over
seeds (the head's: the mean of the seeds' own, from their analyses).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Literal

import numpy as np

from recurtrace.errors import RecurTraceError
from recurtrace.evaluation.statistics import paired_bootstrap, transitions
from recurtrace.records import Budget, Evaluation, HeadAnalysis, ItemRecord, MethodResult
from recurtrace.report.table import spread
from recurtrace.report.workspace import Workspace
from studies.depths import title
from studies.worlds import World

Verdict = Literal["holds", "does not hold", "cannot be told here"]
UNKNOWN: Verdict = "cannot be told here"
MATCHED = 0.9  # of the loop's trained parameters, that an adapter has at least
MARGIN = 1.0  # points that "no worse" and "at least" may lose
MIDDLE, BEYOND = "4", "16"  # the paper's mean training depth, and twice its clamp
PAIRS = {
    ("memory-block", "plain-block"): "with a trained block",
    ("loop", "plain-loop"): "on the frozen base",
    ("loop", "plain"): "both with a trained block",  # of a study whose every loop trains it
}
"""With and without memory; the first pair that was run is compared. On a base that does not know the format, plain
looping of the frozen block has one number to learn and is no rival."""


@dataclass(frozen=True)
class Claim:
    says: str
    measured: str
    interval: str
    p: str
    seeds: int
    verdict: Verdict

    def row(self) -> list[str]:
        return [self.says, self.measured, self.interval, self.p, str(self.seeds), self.verdict]


COLUMNS = ["Claim", "Measured", "95 %", "p, seed by seed", "Seeds", "Here"]


@dataclass(frozen=True)
class Difference:
    """Points that one run is ahead of another on the same items."""

    points: list[float]
    """By training seed."""
    low: float
    high: float
    p: list[float]
    """Exact McNemar, by training seed."""

    def verdict(self, margin: float = 0.0) -> Verdict:
        if self.low > -margin and all(points > -margin for points in self.points):
            return "holds"
        return "does not hold" if self.high < -margin else "cannot be told here"

    @property
    def turned(self) -> "Difference":
        """The other one's lead."""
        return Difference([-points for points in self.points], -self.high, -self.low, self.p)

    def claim(self, says: str, what: str, margin: float = 0.0) -> Claim:
        measured = f"{spread(self.points, '+.1f')} points, {what}"
        interval, p = f"[{self.low:+.1f}, {self.high:+.1f}]", ", ".join(f"{p:.2g}" for p in self.p)
        return Claim(says, measured, interval, p, len(self.points), self.verdict(margin))


def right(runs: Sequence[Evaluation], asked: str, of: Callable[[ItemRecord], bool] = lambda record: True) -> np.ndarray:
    """[seeds, items] whether each item was right, in the order of their ids."""
    return np.array([[record.at(asked).correct for record in run.records if of(record)] for run in runs])


def difference(ours: np.ndarray, theirs: np.ndarray) -> Difference:
    """[seeds, items] each; a run without seeds of its own stands against every seed."""
    theirs = np.broadcast_to(theirs, ours.shape)
    interval = paired_bootstrap((ours * 1.0 - theirs).mean(axis=0))
    return Difference(
        points=[100 * float(gain) for gain in (ours * 1.0 - theirs).mean(axis=1)],
        low=100 * interval.low,
        high=100 * interval.high,
        p=[transitions(before, now).p_value for before, now in zip(theirs, ours, strict=True)],
    )


def check_loops(loops: Iterable[object]) -> None:
    """Refuse a study that is not evaluated where the claims look."""
    if lacking := {MIDDLE, BEYOND, "adaptive"} - set(map(str, loops)):
        raise RecurTraceError(
            f"the claims need evaluations at {', '.join(sorted(lacking))}; add this to the recipe's loops."
        )


def claims(space: Workspace, world: World) -> list[Claim]:
    """The paper's ten claims, in the order of the page.

    A claim about a run that the study does not have cannot be told; adaptive depth is of the seeds that have it.
    """
    found, analyses = space.evaluations, space.head_analyses
    if "loop" not in found or not analyses:
        raise RecurTraceError("the study lacks evaluations/loop or analysis/; run it to its end.")
    memory = found["loop"]
    check_loops({asked for run in memory for asked in run.manifest.loops})
    adaptive = [run for run in memory if "adaptive" in run.manifest.loops]
    best = [_evaluated(memory[0], analysis.best_heldout or analysis.floor) for analysis in analyses]
    pairs = {both: of_both(*(found.get(run, []) for run in both)) for both in PAIRS}
    pair = next((both for both, runs in pairs.items() if all(runs)), ("loop", "plain-loop"))
    plain, how = pair[1], PAIRS[pair]
    with_memory, without = pairs[pair]

    def gain(asked: str, of: Callable[[ItemRecord], bool] = lambda record: True) -> Difference:
        return difference(right(with_memory, asked, of), right(without, asked, of))

    def over(run: str) -> Difference:
        return difference(right(adaptive, "adaptive"), right(_of_seeds(found[run], adaptive), "1"))

    rows: list[tuple[str, str, Callable[[str], Claim]]] = [
        (
            "Memory beats plain looping",
            plain,
            lambda says: gain(MIDDLE).claim(
                says, f"memory against plain looping at {MIDDLE} loops, {how}{_frozen(found, plain)}"
            ),
        ),
        (
            "More so on items that carry a state, beyond the training depth",
            plain,
            lambda says: _more_on_state(says, with_memory, without, world, how),
        ),
        (
            "Plain looping is no worse on pure lookups",
            plain,
            lambda says: gain(MIDDLE, lambda record: world.kind(record) in world.lookups).turned.claim(
                says,
                f"plain looping against memory on {_named(world, without, world.lookups)} at {MIDDLE} loops, {how}; "
                f"within {MARGIN:g} point",
                MARGIN,
            ),
        ),
        (
            "Fixed depth peaks, then falls",
            "loop",
            lambda says: difference(
                np.array([right([run], depth)[0] for run, depth in zip(adaptive, best, strict=True)]),
                right(adaptive, _deepest(memory[0])),
            ).claim(
                says,
                f"the evaluated depth next to that of lowest held-out loss ({', '.join(best)}) against "
                f"{_deepest(memory[0])} loops",
            ),
        ),
        (
            "The head beats fixed depths of as many loops, and is at least the best one",
            "loop",
            lambda says: _head_against_fixed(says, analyses),
        ),
        ("ACT and PonderNet collapse to one loop", "loop", lambda says: _collapse(says, analyses)),
        ("CALM overspends: more loops for no more right answers", "loop", lambda says: _overspending(says, analyses)),
        ("Hard items get more loops", "loop", lambda says: _depth_of_hard_items(says, adaptive, world)),
        (
            "Gain over a same-budget full fine-tune",
            "full",
            lambda says: over("full").claim(says, "adaptive depth against the full fine-tune"),
        ),
        (
            "The gain is not explained by a matched adapter",
            "adapter",
            lambda says: _over_adapter(says, over("adapter"), space.budgets),
        ),
    ]
    return [
        make(says) if run in found else Claim(says, f"{title(run).lower()} was not run", "", "", 0, UNKNOWN)
        for says, run, make in rows
    ]


def _over_adapter(says: str, lead: Difference, budgets: Mapping[str, Sequence[Budget]]) -> Claim:
    """A lead over an adapter of fewer parameters than the loop trained is none over a matched one."""
    claim = lead.claim(says, "adaptive depth against the adapter")
    if not (budgets.get("loop") and budgets.get("adapter")):
        return claim
    share = budgets["adapter"][0].trained_parameters / budgets["loop"][0].trained_parameters
    if share > MATCHED:
        return claim
    measured = f"{claim.measured}, which has {share:.0%} of the parameters that the loop trained"
    return replace(claim, measured=measured, verdict=UNKNOWN if claim.verdict == "holds" else claim.verdict)


def of_both(one: Sequence[Evaluation], other: Sequence[Evaluation]) -> tuple[list[Evaluation], list[Evaluation]]:
    """Two runs at the training seeds that both have; one whose seed is not known stands against every other."""
    known = [{run.seed for run in runs if run.seed is not None} for runs in (one, other)]
    if not all(known):
        return list(one), list(other)
    seeds = known[0] & known[1]
    return [run for run in one if run.seed in seeds], [run for run in other if run.seed in seeds]


def _frozen(found: Mapping[str, Sequence[Evaluation]], plain: str) -> str:
    """The paper's own comparison, beside one that is not."""
    if plain == "plain-loop" or "plain-loop" not in found:
        return ""
    memory, bare = of_both(found["loop"], found["plain-loop"])
    with_memory, without = (100 * right(runs, MIDDLE).mean(axis=1) for runs in (memory, bare))
    lead = spread(with_memory - without, "+.1f")
    return f" (on the frozen base {lead}, where plain looping has {spread(without, '.1f')} %)"


def _of_seeds(runs: Sequence[Evaluation], like: Sequence[Evaluation]) -> list[Evaluation]:
    """The runs of the same training seeds, where these are known."""
    by_seed = {run.seed: run for run in runs}
    return [by_seed[one.seed] for one in like] if all(one.seed in by_seed for one in like) else list(runs)


def _deepest(run: Evaluation) -> str:
    return str(max(int(asked) for asked in run.manifest.loops if asked.isdecimal()))


def _more_on_state(
    says: str, memory: Sequence[Evaluation], plain: Sequence[Evaluation], world: World, how: str
) -> Claim:
    """Of two groups of items, so their intervals are drawn independently."""
    per_seed, drawn, rng = [], [], np.random.default_rng(0)
    for sign, inside in ((1, True), (-1, False)):
        of = lambda record, inside=inside: (world.kind(record) in world.stateful) == inside  # noqa: E731
        gains = right(memory, BEYOND, of) * 1.0 - right(plain, BEYOND, of)  # [seeds, items]
        per_seed.append(sign * 100 * gains.mean(axis=1))
        items = gains.mean(axis=0)
        drawn.append(sign * 100 * np.array([rng.choice(items, len(items)).mean() for _ in range(2000)]))
    low, high = np.quantile(drawn[0] + drawn[1], [0.025, 0.975])
    points = (per_seed[0] + per_seed[1]).tolist()
    found = Difference(points, float(low), float(high), [])
    those = _named(world, plain, world.stateful)
    what = f"what memory gains on {those} beyond what it gains on the others, at {BEYOND} loops, {how}"
    return found.claim(says, what)


def _named(world: World, runs: Sequence[Evaluation], kinds: Sequence[str]) -> str:
    """Those of the kinds that were asked."""
    asked = {world.kind(record) for run in runs for record in run.records}
    return ", ".join(kind for kind in kinds if kind in asked)


def _evaluated(run: Evaluation, depth: float) -> str:
    """The fixed depth next to this one, of those that were evaluated."""
    depths = [int(result.loops) for result in run.records[0].results if result.loops.isdecimal()]
    return str(min(depths, key=lambda other: abs(other - depth)))


def _head_against_fixed(says: str, analyses: Sequence[HeadAnalysis]) -> Claim:
    """Against fixed depths of as many loops, and against the one that is best on the test items themselves."""
    own, found = [analysis.method("recurtrace") for analysis in analyses], [analysis.matched for analysis in analyses]
    matched = [row for row in found if row is not None]
    if len(matched) < len(analyses):
        raise RecurTraceError("analysis/ is of an older version; make it anew with `recurtrace compare`.")
    gain = Difference(
        points=[100 * (row.accuracy - row.fixed_accuracy) for row in matched],
        low=100 * mean(row.gain_low for row in matched),
        high=100 * mean(row.gain_high for row in matched),
        p=[row.p_value for row in matched],
    )
    best = [analysis.method(analysis.best_fixed) for analysis in analyses]
    lost = Difference(
        points=[100 * (a.accuracy - b.accuracy) for a, b in zip(own, best, strict=True)],
        low=100 * mean(row.gain_low for row in own),
        high=100 * mean(row.gain_high for row in own),
        p=[row.p_value for row in own],
    )
    verdicts = {gain.verdict(), lost.verdict(MARGIN)}
    order: tuple[Verdict, ...] = ("does not hold", "cannot be told here", "holds")
    depths = ", ".join(f"{row.mean_depth:.0f}" for row in best)
    way = spread((row.way for row in matched), ".0f", 100)
    claim = gain.claim(
        says,
        f"adaptive at {spread(row.mean_depth for row in own)} loops against as many, {way} % of "
        f"the way from there to the correctness ceiling; against the best fixed depth ({depths}) "
        f"{spread(lost.points, '+.1f')} [{lost.low:+.1f}, {lost.high:+.1f}], within {MARGIN:g} point",
    )
    return replace(claim, verdict=next(verdict for verdict in order if verdict in verdicts))


def _collapse(says: str, analyses: Sequence[HeadAnalysis]) -> Claim:
    depths = {name: [analysis.method(name).mean_depth for analysis in analyses] for name in ("act", "pondernet")}
    every = [depth for of_method in depths.values() for depth in of_method]
    verdict: Verdict = "holds" if max(every) < 1.1 else "does not hold" if min(every) > 1.1 else "cannot be told here"
    measured = f"mean loops: ACT {spread(depths['act'])}, PonderNet {spread(depths['pondernet'])}"
    return Claim(says, measured, "", "", len(analyses), verdict)


def _overspending(says: str, analyses: Sequence[HeadAnalysis]) -> Claim:
    more, parts = [], []
    own = [analysis.method("recurtrace") for analysis in analyses]
    for name, shown in (("calm-top-prob", "top-prob"), ("calm-margin", "margin")):
        rows = [analysis.method(name) for analysis in analyses]
        parts.append(f"{shown} {_point(rows)}")
        more += [a.mean_depth > b.mean_depth and a.accuracy <= b.accuracy for a, b in zip(rows, own, strict=True)]
    parts.append(f"head {_point(own)}")
    verdict: Verdict = "holds" if all(more) else "cannot be told here" if any(more) else "does not hold"
    return Claim(says, ", ".join(parts), "", "", len(analyses), verdict)


def _point(rows: Sequence[MethodResult]) -> str:
    return f"{spread((row.accuracy for row in rows), '.1f', 100)} % at {spread(row.mean_depth for row in rows)}"


def _depth_of_hard_items(says: str, memory: Sequence[Evaluation], world: World) -> Claim:
    rng = np.random.default_rng(0)
    depths = np.array([[record.at("adaptive").depth for record in run.records] for run in memory], dtype=float)
    is_hard = np.array([world.facts(record) >= world.hard for record in memory[0].records])
    gaps = (depths[:, is_hard].mean(axis=1) - depths[:, ~is_hard].mean(axis=1)).tolist()
    over_seeds = depths.mean(axis=0)
    drawn = [
        rng.choice(over_seeds[is_hard], is_hard.sum()).mean()
        - rng.choice(over_seeds[~is_hard], (~is_hard).sum()).mean()
        for _ in range(2000)
    ]
    low, high = np.quantile(drawn, [0.025, 0.975])
    found = Difference(gaps, float(low), float(high), [])
    measured = f"{spread(gaps, '+.2f')} loops more on items of {world.hard} facts and more"
    return Claim(says, measured, f"[{low:+.2f}, {high:+.2f}]", "", len(memory), found.verdict())
