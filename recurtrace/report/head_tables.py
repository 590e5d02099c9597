"""The paper's tables of the halting head: how well it tells, where items stop, what that gains, and its thresholds."""

from collections.abc import Sequence
from statistics import mean

from recurtrace.records import Gap, HeadAnalysis
from recurtrace.report.analysis_tables import median_seed, of_head, one_seed
from recurtrace.report.table import Table, spread

POINTS = {
    "main": "main",
    "accuracy": "chosen by accuracy",
    "illustration": "no floor, τ = 0.10",
    "difficulty": "no floor, best held-out accuracy",
}


@of_head("calibration", "The head against the oracle, depth by depth")
def calibration(analyses: list[HeadAnalysis]) -> Table:
    one = median_seed(analyses)
    on_test = {row.depth: row for row in one.head_calibration}
    rows = [
        [
            str(row.depth),
            "yes" if row.supervised else "no",
            spread([row.positive_share], ".1f", 100),
            spread([row.balanced_accuracy], ".1f", 100, unknown="one class only"),
            spread([row.auroc], unknown="one class only"),
            spread([on_test[row.depth].auroc], unknown="one class only"),
        ]
        for row in one.heldout_calibration
    ]
    if not rows:
        return Table("", "", missing="analysis/*.json of this version (recurtrace compare --out)")
    columns = ["Depth", "Supervised", "Should continue, %", "Balanced accuracy, %", "AUROC", "AUROC, test items"]
    note = f"{one_seed(analyses)}Held-out items, at the calibrated threshold; the last column is of the test items."
    return Table("", "", columns, rows, note)


@of_head("histogram", "Where items stop")
def histogram(analyses: list[HeadAnalysis]) -> Table:
    depths = sorted({depth for analysis in analyses for depth in analysis.histogram})
    rows = []
    for depth in depths:
        counts = [analysis.histogram.get(depth, 0) for analysis in analyses]
        shares = [count / analysis.items for count, analysis in zip(counts, analyses, strict=True)]
        rows.append([str(depth), spread(counts, ".0f"), spread(shares, ".1f", 100)])
    deeper = [analysis.deepened.items for analysis in analyses]
    shares = [count / analysis.items for count, analysis in zip(deeper, analyses, strict=True)]
    rows.append(["beyond the floor", spread(deeper, ".0f"), spread(shares, ".1f", 100)])
    return Table("", "", ["Depth", "Items", "%"], rows, _operating(analyses), strong=[len(rows) - 1])


@of_head("transition", "Right and wrong, adaptive against the best fixed depth")
def transition(analyses: list[HeadAnalysis]) -> Table:
    found = [analysis.transition for analysis in analyses]
    cells = [("right", "both", "gained"), ("wrong", "lost", "neither")]
    counts = [[[getattr(one, part) for one in found] for part in parts] for _, *parts in cells]
    rows = [
        [name, *(spread(values, ".0f") for values in (*row, _sum(row)))]
        for name, row in zip(("right", "wrong"), counts, strict=True)
    ]
    columns = [_sum(column) for column in zip(*counts, strict=True)]
    rows.append(["total", *(spread(values, ".0f") for values in (*columns, _sum(columns)))])
    points = spread((one.points for one in found), "+.1f")
    ps = ", ".join(f"{one.p_value:.2g}" for one in found)
    note = f"{points} points; exact McNemar p = {ps}."
    return Table("", "", ["Adaptive", "Fixed right", "Fixed wrong", "Total"], rows, note)


def _sum(parts: Sequence[Sequence[int]]) -> list[int]:
    """Seed by seed."""
    return [sum(values) for values in zip(*parts, strict=True)]


@of_head("deepened", "The items that go beyond the floor")
def deepened(analyses: list[HeadAnalysis]) -> Table:
    who, what = [analysis.deepened for analysis in analyses], [analysis.composition for analysis in analyses]

    def row(says: str, counts: list[int], of: list[int], base_rate: Sequence[float | None]) -> list[str]:
        shares = [count / whole if whole else None for count, whole in zip(counts, of, strict=True)]
        rate = spread(base_rate, ".1f", 100, unknown="")
        return [says, spread(counts, ".0f"), spread(shares, ".1f", 100), rate]

    items = [one.items for one in who]
    positive = [one.oracle_positive for one in who]
    hard = [1 - analysis.fixed[0].accuracy for analysis in analyses]
    rows = [
        row("beyond the floor", items, [one.population for one in who], []),
        row("of these, hard", [one.hard for one in what], items, hard),
        row("of these, oracle-positive (precision)", positive, items, [one.positive_base_rate for one in who]),
        row(
            "of the oracle-positive, beyond the floor (recall)",
            positive,
            [one.population_positive for one in who],
            [one.items / one.population for one in who],
        ),
        row("of these, from wrong to right", [one.flipped for one in who], items, [one.flip_base_rate for one in who]),
    ]
    tokens = spread((one.median_answer_tokens for one in what), ".1f")
    kinds = ", ".join(f"{name} {count}" for name, count in list(median_seed(analyses).composition.buckets.items())[:8])
    note = (
        "Hard: wrong after one loop. In all: what choosing items blindly would give; for wrong to right, the share of "
        f"wrong items that some depth answers. Median answer: {tokens} tokens, of all items "
        f"{spread((one.median_answer_tokens_of_all for one in what), '.1f')}. Most frequent kinds: {kinds or 'none'}."
    )
    return Table("", "", ["Which", "Items", "%", "In all, %"], rows, note)


@of_head("matched", "The head against fixed depths of as many loops")
def matched(analyses: list[HeadAnalysis]) -> Table:
    by_seed = [{row.ration: row for row in analysis.rations} for analysis in analyses]
    if any(analysis.matched is None for analysis in analyses):
        return Table("", "", missing="analysis/*.json of this version (recurtrace compare --out)")
    shared = sorted(set.intersection(*map(set, by_seed)), key=lambda ration: ration or 0)
    chosen = {f"a ration of {ration}": [rows[ration] for rows in by_seed] for ration in shared}
    chosen["likelihood"] = [analysis.matched for analysis in analyses if analysis.matched is not None]
    rows = [
        [
            by,
            spread((row.threshold for row in found), ".3f"),
            spread(row.mean_depth for row in found),
            spread((row.accuracy for row in found), ".1f", 100),
            spread((row.fixed_accuracy for row in found), ".1f", 100),
            spread((row.accuracy - row.fixed_accuracy for row in found), "+.1f", 100),
            f"[{100 * mean(row.gain_low for row in found):+.1f}, {100 * mean(row.gain_high for row in found):+.1f}]",
            spread((row.way for row in found), ".0f", 100),
            ", ".join(f"{row.p_value:.2g}" for row in found),
        ]
        for by, found in chosen.items()
    ]
    columns = ["Threshold by", "τ", "Loops", "Accuracy, %", "Fixed, %", "Difference, points", "95 %", "Way, %", "p"]
    note = (
        "Thresholds are chosen on held-out items, where a ration is the most mean loops. Fixed: the two whole depths "
        "next to the mean on the test items, with as many loops in all; a lot draws the items that get one more. "
        "Beyond the best fixed depth, fewer loops would serve that better. Way: from there to the correctness "
        "ceiling. Exact McNemar p, the median of 101 lots, seed by seed. The rations are an extension (not in the "
        "paper)."
    )
    return Table("", "", columns, rows, note, strong=[len(rows) - 1])


@of_head("checks", "Does the gain depend on the threshold?")
def checks(analyses: list[HeadAnalysis]) -> Table:
    left_out = [analysis.leave_one_out for analysis in analyses]
    low, high = min(one.low for one in left_out), max(one.high for one in left_out)
    rows = [
        [
            "Gain with the threshold of the other evaluation seeds, points",
            spread((one.mean for one in left_out), "+.1f", 100),
            f"[{100 * low:+.1f}, {100 * high:+.1f}]",
        ],
        [
            "Way from the best fixed depth to the correctness ceiling, %",
            spread((analysis.gap_closed for analysis in analyses), ".0f", 100),
            "",
        ],
    ]
    no_loss = [row for analysis in analyses for row in analysis.threshold_sweep]
    safe = sorted({row.threshold for row in no_loss})
    kept = [
        f"{tau:g}"
        for tau in safe
        if all(row.seeds_without_loss == analyses[0].seeds for row in no_loss if row.threshold == tau)
    ]
    rows.append(["Thresholds that lose on no evaluation seed against the budget", ", ".join(kept) or "none", ""])
    note = "Gains over the floor, each evaluation seed at the threshold that the others choose; range over all of them."
    return Table("", "", ["Check", "Value", "Range"], rows, note)


@of_head("reconciliation", "Operating points")
def reconciliation(analyses: list[HeadAnalysis]) -> Table:
    rows = []
    for name in [point.name for point in analyses[0].operating_points]:
        shown = [median_seed(analyses)] if name == "illustration" else analyses  # as in the paper
        found = [point for analysis in shown if (point := analysis.point(name)) is not None]
        rows.append(
            [
                POINTS[name],
                spread(one.threshold for one in found),
                ", ".join(sorted({str(one.floor) for one in found})),
                spread(one.mean_depth for one in found),
                spread((one.accuracy for one in found), ".1f", 100),
                spread((one.gap for one in found), "+.2f"),
            ]
        )
    note = "Main: calibrated on held-out likelihood. Without a floor, depth is easier to see and accuracy is lost."
    return Table("", "", ["Setting", "τ", "Floor", "Loops", "Accuracy, %", "Hard - easy"], rows, note)


@of_head("difficulty", "Loops on easy and hard items, seed by seed")
def difficulty(analyses: list[HeadAnalysis]) -> Table:
    one = median_seed(analyses)
    point = one.point("illustration") or one.operating_points[-1]
    mean = Gap(point.easy, point.hard, point.gap)
    rows = [
        [name, spread([gap.easy]), spread([gap.hard]), spread([gap.gap], "+.2f")]
        for name, gap in [*((str(i + 1), seed) for i, seed in enumerate(point.seeds)), ("mean", mean)]
    ]
    note = f"{one_seed(analyses)}τ = {point.threshold:.2f}, no floor. Hard: wrong after one loop."
    return Table("", "", ["Seed", "Easy", "Hard", "Gap"], rows, note, strong=[len(rows) - 1])


@of_head("thresholds", "The threshold without a floor")
def thresholds(analyses: list[HeadAnalysis]) -> Table:
    rows = [
        [
            f"{row.threshold:.2f}",
            spread([row.mean_depth]),
            spread([row.loop_cut], ".1f", 100),
            spread([row.gap], "+.2f"),
            spread([row.gain], "+.0f"),
            f"{row.seeds_without_loss} of {analyses[0].seeds}",
        ]
        for row in median_seed(analyses).threshold_sweep
    ]
    note = (
        f"{one_seed(analyses)}Loop cut is 1 - mean/budget; Δ is the number of additional right answers over the full "
        "budget; the last column counts the evaluation seeds on which nothing is lost."
    )
    columns = ["τ", "Loops", "Loop cut, %", "Hard - easy", "Δ", "Seeds without loss"]
    return Table("", "", columns, rows, note)


def _operating(analyses: list[HeadAnalysis]) -> str:
    taus = ", ".join(f"{analysis.threshold:.2f}" for analysis in analyses)
    floors = ", ".join(sorted({str(analysis.floor) for analysis in analyses}))
    return f"τ = {taus}; floor {floors}."
