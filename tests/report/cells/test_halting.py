"""Tables of halting, against the arrays of the sweeps."""

import json
from fractions import Fraction
from itertools import groupby

import numpy as np
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

from tests.report.cells.expected import cells, check, text
from tests.report.cells.halting import EIGHTH, Halting, exact_bounds
from tests.report.handmade import DEPTHS, ITEMS, SEEDS


def check_with_intervals(table, expected, bounds):
    """Every cell, but that the ends of bootstrap intervals lie within `bounds`, for rounding in the last digit."""
    intervals = {row: cell for (row, column), cell in cells(table).items() if column == "95 %"}
    check(table, {name: {**row, "95 %": intervals.get(name)} for name, row in expected.items()})
    for name, cell in intervals.items():
        for end, (least, most) in zip(json.loads(cell.replace("+", "")), bounds[name], strict=True):
            assert least - 0.051 <= end <= most + 0.051, name


def test_the_comparison_of_methods(study, halting):
    table = study[0]["main-1.7B"]
    ways = {f"Fixed depth, T={t}": lambda one, t=t: [t] * ITEMS for t in (1, 2, 4, 8, 16)}
    for one in halting:
        ways.setdefault(f"Fixed depth, T={one.best_fixed}", lambda one, t=one.best_fixed: [t] * ITEMS)
    for name, title in (("act", "ACT"), ("pondernet", "PonderNet")):
        ways[title] = lambda one, name=name: one.stops(one.signal(one.test, name), 0.5, 1)
        ways[f"{title} + floor"] = lambda one, name=name: one.stops(one.signal(one.test, name), 0.5, one.floor)
    for signal, title in (("top_prob", "CALM (top-prob)"), ("margin", "CALM (margin)")):
        ways[title] = lambda one, signal=signal: one.adaptive(signal, above=True)[1]
    for name, title in (("loopus", "LoopUS-Conf"), ("tah", "TaH-Mismatch"), (None, "RecurTrace")):
        ways[title] = lambda one, name=name: one.adaptive(name)[1]
    ways["RecurTrace, no floor*"] = lambda one: one.adaptive(None, floor=1)[1]
    for signal, title in (
        ("entropy", "Entropy*"), ("kl", "Distribution at rest (KL)*"), ("state_l2", "State at rest (L2)*"),
        ("state_angle", "State at rest (angle)*"),
    ):  # fmt: skip
        ways[title] = lambda one, signal=signal: one.adaptive(signal)[1]
    ways["Correctness oracle"] = lambda one: [row.index(True) + 1 if any(row) else 1 for row in one.right]
    ways["Loss oracle"] = lambda one: [
        next(t for t in range(1, DEPTHS + 1) if not one.positive(i, t)) for i in range(ITEMS)
    ]
    expected, bounds = {}, {}
    for title, way in ways.items():
        measured, lows, highs = [], [], []
        for one in halting:
            depths = way(one)
            right, best = one.correct(depths), one.correct([one.best_fixed] * ITEMS)
            gained, lost = (sum(a > b for a, b in zip(*pair, strict=True)) for pair in ((right, best), (best, right)))
            gains = [int(a) - int(b) for a, b in zip(right, best, strict=True)]
            lows.append(exact_bounds(gains, 0.025))
            highs.append(exact_bounds(gains, 0.975))
            p = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
            nll = np.mean([one.test["loss"][i, t - 1] for i, t in enumerate(depths)])
            measured.append((sum(right), np.mean(depths), gained - lost, p, nll))
        right, loops, net, p, nll = zip(*measured, strict=True)
        expected[title] = {
            "Accuracy, %": text(right, times=100 / ITEMS), "Right": text(right, ".0f"),
            "Loops": text(loops), "Δ": text(net, "+.0f"),
            "p": f"≤ {max(p):.2g}", "NLL": text(nll, ".3f"),
        }  # fmt: skip
        bounds[title] = [100 * np.mean(ends, axis=0) for ends in (lows, highs)]
    check_with_intervals(table, expected, bounds)


def test_tables_of_the_head(study, halting):
    tables = study[0]
    chosen = [one.adaptive() for one in halting]
    depths = [depths for _, depths in chosen]
    deeper = [[i for i, t in enumerate(own) if t > one.floor] for one, own in zip(halting, depths, strict=True)]
    expected = {
        str(t): {"Items": text([own.count(t) for own in depths], ".0f"),
                 "%": text([own.count(t) / ITEMS for own in depths], ".1f", 100)}
        for t in sorted({t for own in depths for t in own})
    }  # fmt: skip
    beyond = {"Items": text(map(len, deeper), ".0f"), "%": text([len(d) / ITEMS for d in deeper], ".1f", 100)}
    check(tables["histogram-1.7B"], {**expected, "beyond the floor": beyond})

    pairs = [
        list(zip(one.correct(own), one.correct([one.best_fixed] * ITEMS), strict=True))
        for one, own in zip(halting, depths, strict=True)
    ]
    expected = {}
    for name, adaptive in (("right", [True]), ("wrong", [False]), ("total", [True, False])):
        expected[name] = {
            column: text([sum(a in adaptive and f in fixed for a, f in own) for own in pairs], ".0f")
            for column, fixed in (("Fixed right", [True]), ("Fixed wrong", [False]), ("Total", [True, False]))
        }
    check(tables["transition-1.7B"], expected)
    check(tables["deepened-1.7B"], deepened_rows(halting, depths, deeper))


def test_the_head_against_as_many_fixed_loops(study, halting):
    table = study[0]["matched-1.7B"]
    lowest = max(one.floor for one in halting) + 1
    chosen = {f"a ration of {n}": [spending(one, n) for one in halting] for n in range(lowest, DEPTHS)}
    chosen["likelihood"] = [one.adaptive()[0] for one in halting]
    expected, bounds = {}, {}
    for by, taus in chosen.items():
        measured, lows, highs = [], [], []
        for one, tau in zip(halting, taus, strict=True):
            depths = one.stops(one.signal(one.test, None), tau, one.floor)
            least, more = divmod(sum(depths), ITEMS)
            right = one.correct(depths)
            other = [
                Fraction((ITEMS - more) * row[least - 1] + (more * row[least] if more else 0), ITEMS)
                for row in one.right
            ]
            gains = [int(a) - b for a, b in zip(right, other, strict=True)]
            lows.append(exact_bounds(gains, 0.025))
            highs.append(exact_bounds(gains, 0.975))
            rng, tests = np.random.default_rng(0), []
            for _ in range(101):
                lot = set(rng.permutation(ITEMS).tolist()[:more])
                drawn = one.correct([least + (i in lot) for i in range(ITEMS)])
                gained, lost = (sum(a > b for a, b in zip(*of, strict=True)) for of in ((right, drawn), (drawn, right)))
                tests.append(binomtest(gained, gained + lost).pvalue if gained + lost else 1.0)
            net, way = sum(gains), sum(gains) / (sum(map(any, one.right)) - sum(other))
            measured.append((tau, sum(depths), sum(right), sum(other), net, way, np.median(tests)))
        tau, loops, right, other, net, way, p = zip(*measured, strict=True)
        expected[by] = {
            "Way, %": text(way, ".0f", 100), "τ": text(tau, ".3f"),
            "Loops": text(loops, times=1 / ITEMS), "Accuracy, %": text(right, ".1f", 100 / ITEMS),
            "Fixed, %": text(other, ".1f", 100 / ITEMS), "Difference, points": text(net, "+.1f", 100 / ITEMS),
            "p": ", ".join(f"{one:.2g}" for one in p),
        }  # fmt: skip
        bounds[by] = [100 * np.mean(ends, axis=0) for ends in (lows, highs)]
    check_with_intervals(table, expected, bounds)


def spending(one, ration):
    """The threshold whose held-out depths are deepest within the ration."""
    values = one.signal(one.heldout, None)
    candidates = [min(1.0, max(0.0, tau)) for tau in one.candidates("entropy", values, one.floor)]
    spent = [(sum(one.stops(values, tau, one.floor)), tau) for tau in candidates]
    most = max(loops for loops, _ in spent if loops <= ration * ITEMS)
    return next(tau for loops, tau in spent if loops == most)


def deepened_rows(halting, depths, deeper):
    counts = {name: [] for name in ("hard", "all hard", "positive", "all positive", "flipped", "wrong", "recoverable")}
    for one, own, those in zip(halting, depths, deeper, strict=True):
        at_floor = one.correct([one.floor] * ITEMS)
        right = one.correct(own)
        positive = [i for i in range(ITEMS) if one.positive(i, one.floor)]
        counts["hard"].append(sum(not one.right[i][0] for i in those))
        counts["all hard"].append(sum(not row[0] for row in one.right))
        counts["positive"].append(len(set(positive) & set(those)))
        counts["all positive"].append(len(positive))
        counts["flipped"].append(sum(not at_floor[i] and right[i] for i in those))
        counts["wrong"].append(at_floor.count(False))
        counts["recoverable"].append(sum(not at_floor[i] and any(one.right[i]) for i in range(ITEMS)))
    sizes = [len(those) for those in deeper]

    def row(some, of, base=None):
        shares = [a / b for a, b in zip(some, of, strict=True)]
        rate = text([a / b for a, b in zip(*base, strict=True)], ".1f", 100) if base else ""
        return {"Items": text(some, ".0f"), "%": text(shares, ".1f", 100), "In all, %": rate}

    everything = [ITEMS] * len(halting)
    return {
        "beyond the floor": row(sizes, everything),
        "of these, hard": row(counts["hard"], sizes, (counts["all hard"], everything)),
        "of these, oracle-positive (precision)": row(counts["positive"], sizes, (counts["all positive"], everything)),
        "of the oracle-positive, beyond the floor (recall)": row(
            counts["positive"], counts["all positive"], (sizes, everything)
        ),
        "of these, from wrong to right": row(counts["flipped"], sizes, (counts["recoverable"], counts["wrong"])),
    }


def median(halting):
    order = sorted(halting, key=lambda one: sum(one.correct(one.adaptive()[1])))
    return order[1]


def gap(one, depths, rows=None):
    rows = range(ITEMS) if rows is None else rows
    easy, hard = ([depths[i] for i in rows if one.right[i][0] is right] for right in (True, False))
    return np.mean(easy), np.mean(hard), np.mean(hard) - np.mean(easy)


def test_tables_of_thresholds(study, halting):
    tables, one = study[0], median(halting)
    probs = one.signal(one.test, None)
    expected = {}
    for tau in (0.01, 0.05, 0.10, 0.20, 0.30, 0.50):
        depths = one.stops(probs, tau, 1)
        gains = [int(a) - int(row[-1]) for a, row in zip(one.correct(depths), one.right, strict=True)]
        safe = sum(sum(gains[seed * 8 : seed * 8 + 8]) >= 0 for seed in range(8))
        expected[f"{tau:.2f}"] = {
            "Loops": f"{np.mean(depths):.2f}", "Loop cut, %": f"{100 - 100 * np.mean(depths) / DEPTHS:.1f}",
            "Hard - easy": f"{mean_gap(one, depths)[2]:+.2f}", "Δ": f"{sum(gains):+d}",
            "Seeds without loss": f"{safe} of 8",
        }  # fmt: skip
    check(tables["thresholds-1.7B"], expected)
    depths = one.stops(probs, 0.10, 1)
    parts = [(str(seed + 1), range(seed * 8, seed * 8 + 8)) for seed in range(8)]
    check(
        tables["difficulty-1.7B"],
        {
            name: dict(zip(("Easy", "Hard", "Gap"), written(gaps), strict=True))
            for name, gaps in [
                *((name, gap(one, depths, rows)) for name, rows in parts),
                ("mean", mean_gap(one, depths)),
            ]
        },
    )
    points = {"main": ("loss", True), "chosen by accuracy": ("correct", True), "no floor, τ = 0.10": (0.10, False)}
    points["no floor, best held-out accuracy"] = ("correct", False)
    expected = {}
    for name, (by, floored) in points.items():
        found = []
        for one in [median(halting)] if by == 0.10 else halting:
            floor = one.floor if floored else 1
            tau = one.threshold(None, floor, by=by) if isinstance(by, str) else by
            depths = one.stops(one.signal(one.test, None), tau, floor)
            found.append((tau, floor, np.mean(depths), np.mean(one.correct(depths)), mean_gap(one, depths)[2]))
        tau, floor, loops, right, gaps = zip(*found, strict=True)
        expected[name] = {
            "τ": text(tau), "Floor": ", ".join(sorted({str(f) for f in floor})), "Loops": text(loops),
            "Accuracy, %": text(right, ".1f", 100), "Hard - easy": text(gaps, "+.2f"),
        }  # fmt: skip
    check(tables["reconciliation-1.7B"], expected)


def mean_gap(one, depths):
    """Over the evaluation seeds; one without hard or easy items is left out."""
    of_seeds = [gap(one, depths, range(seed * 8, seed * 8 + 8)) for seed in range(8)]
    return tuple(np.nanmean([values[i] for values in of_seeds]) for i in range(3))


def written(gaps):
    easy, hard, difference = gaps
    return f"{easy:.2f}", f"{hard:.2f}", f"{difference:+.2f}"


def test_the_head_against_the_oracle_is_of_held_out_items(study, halting):
    one = median(halting)
    tau = one.adaptive()[0]
    other = Halting(one.test, one.heldout)  # the same questions, asked of the held-out items
    expected = {}
    for t in range(1, 9):
        wanted = [other.positive(i, t) for i in range(ITEMS)]
        goes_on = [row[t - 1] >= tau for row in other.signal(other.test, None)]
        rates = [
            Fraction(sum(g is w for g, w in zip(goes_on, wanted, strict=True) if w is kind), wanted.count(kind))
            for kind in (True, False)
            if kind in wanted
        ]
        on_test = [one.positive(i, t) for i in range(ITEMS)]
        expected[str(t)] = {
            "Supervised": "yes" if t in (1, 2, 4, 6) else "no",
            "Should continue, %": f"{100 * sum(wanted) / ITEMS:.1f}",
            "Balanced accuracy, %": f"{50 * float(sum(rates)):.1f}" if len(rates) == 2 else "one class only",
            "AUROC": auroc(wanted, [row[t - 1] for row in other.signal(other.test, None)]),
            "AUROC, test items": auroc(on_test, [row[t - 1] for row in one.signal(one.test, None)]),
        }
    check(study[0]["calibration-1.7B"], expected)


def auroc(wanted, values):
    return f"{roc_auc_score(wanted, values):.2f}" if len(set(wanted)) == 2 else "one class only"


def test_checks_and_strengths(study, halting):
    tables = study[0]
    folds = [[leave_out(one, range(seed * 8, seed * 8 + 8)) for seed in range(8)] for one in halting]
    ways = []
    for one in halting:
        best, own = (np.mean(one.correct(d)) for d in ([one.best_fixed] * ITEMS, one.adaptive()[1]))
        ways.append((own - best) / (np.mean([any(row) for row in one.right]) - best))
    every = np.concatenate(folds)
    found = cells(tables["checks-1.7B"])
    gain = "Gain with the threshold of the other evaluation seeds, points"
    assert found[gain, "Value"] == text([np.mean(f) for f in folds], "+.1f", 100)
    assert found[gain, "Range"] == f"[{100 * every.min():+.1f}, {100 * every.max():+.1f}]"
    assert found["Way from the best fixed depth to the correctness ceiling, %", "Value"] == text(ways, ".0f", 100)
    safe = [tau for tau in (0.01, 0.05, 0.1, 0.2, 0.3, 0.5) if all(loses_nowhere(one, tau) for one in halting)]
    third = "Thresholds that lose on no evaluation seed against the budget"
    assert found[third, "Value"] == (", ".join(map(str, safe)) or "none")
    assert {found[row, "Range"] for row, _ in found if row != gain} == {""}
    assert len(tables["checks-1.7B"].rows) == 3
    expected = {}
    for title, name, strength in (("ACT", "act", 0.01), ("ACT", "act-0.1", 0.1), ("PonderNet", "pondernet", 0.01)):
        depths = [one.stops(one.signal(one.test, name), 0.5, 1) for one in halting]
        right = [np.mean(one.correct(own)) for one, own in zip(halting, depths, strict=True)]
        expected[f"{title} / {strength:g}"] = {
            "Loops": text([np.mean(own) for own in depths]), "Accuracy, %": text(right, ".1f", 100),
        }  # fmt: skip
    check(tables["strengths-1.7B"], expected)


def loses_nowhere(one, tau):
    right = one.correct(one.stops(one.signal(one.test, None), tau, 1))
    parts = [range(start, start + EIGHTH) for start in range(0, ITEMS, EIGHTH)]
    return all(sum(right[i] for i in part) >= sum(one.right[i][-1] for i in part) for part in parts)


def leave_out(one, fold):
    """Gain over the floor of some items at the threshold that the others choose."""
    swapped = Halting(one.test, one.test)
    tau = swapped.threshold(None, one.floor, rows=[i for i in range(ITEMS) if i not in fold])
    depths = one.stops(one.signal(one.test, None), tau, one.floor)
    return np.mean([float(one.right[i][depths[i] - 1]) - one.right[i][one.floor - 1] for i in fold])


def test_a_head_for_each_task(study):
    tables, _, sweeps = study
    rows = {"aqua_rat": (0, None), "gsm8k": (1, "gsm8k")}
    expected = {}
    for task, (first, head) in rows.items():
        found = []
        for seed in SEEDS:
            one = Halting(*(sweeps[seed, "task-analysis", split] for split in ("heldout", "test")))
            own = range(first, ITEMS, 2)
            fixed = {t: np.mean([one.right[i][t - 1] for i in own]) for t in (1, 2, 4, 6, 8)}
            depths = one.stops(one.signal(one.test, head), one.threshold(head, 1, rows=own), 1)
            right = np.mean([one.right[i][depths[i] - 1] for i in own])
            found.append((fixed[8], max(fixed.values()), right, np.mean([depths[i] for i in own])))
        at_eight, best, right, loops = (np.array(values) for values in zip(*found, strict=True))
        expected[task] = {
            "n": str(ITEMS // 2), "Head": "its own" if head else "the model's", "Fixed": text(at_eight, ".1f", 100),
            "Best": text(best, ".1f", 100), "Adaptive": text(right, ".1f", 100), "Loops": text(loops),
            "Loop cut, %": text(1 - loops / 8, ".0f", 100),
        }  # fmt: skip
    check(tables["tasks-1.7B"], expected)


def test_three_items_at_every_depth(study, halting):
    one = halting[0]
    items, depths = one.test.items, one.adaptive()[1]
    right, last = one.correct(depths), [row[-1] for row in one.right]
    at_floor = one.correct([one.floor] * ITEMS)
    kinds = {
        "easy": [i for i in range(ITEMS) if right[i] and depths[i] == one.floor and last[i]],
        "deepened": [i for i in range(ITEMS) if right[i] and depths[i] > one.floor and not at_floor[i]],
        "overthought": [i for i in range(ITEMS) if right[i] and not last[i]],
    }
    expected = []
    for kind, those in kinds.items():
        wanted = (min if kind == "easy" else max)(items[i].bucket for i in those)  # the easiest, or the hardest
        i = next(i for i in those if items[i].bucket == wanted)
        said, before = [], 0
        for answer, same in groupby(items[i].answers):
            first, before = before + 1, before + len(list(same))
            mark = " ✓" if one.right[i][first - 1] else ""
            said.append(f"{first}: {answer}{mark}" if first == before else f"{first}–{before}: {answer}{mark}")
        question = f"Question {i}?" if i % 2 else f"test{i}"
        expected.append([kind, question, "x", " · ".join(said), str(depths[i])])
    assert study[0]["worked-1.7B"].rows == expected
