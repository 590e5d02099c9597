"""Every cell of every table, against numbers computed by another route.

From the lines of the files with pandas, from the arrays of the sweeps item by item, and from what was written as JSON.
"""

import json
import math
from fractions import Fraction
from functools import cache
from itertools import combinations_with_replacement, groupby, pairwise

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

from recurtrace.data.benchmarks import TASKS
from recurtrace.report.contents import all_tables
from recurtrace.report.figures import probe_curve
from recurtrace.report.paper import published
from recurtrace.report.workspace import read_studies
from tests.report.handmade import (
    COSTED,
    DEPTHS,
    ITEMS,
    MEASURED,
    SCALES,
    SEEDS,
    SYNTHETIC,
    WEIGHTS,
    as_rows,
    write_study,
)

EIGHTH = ITEMS // 8  # items of an evaluation seed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cells")


@pytest.fixture(scope="module")
def study(folder):
    sweeps = write_study(folder)
    tables = {table.name: table for table in all_tables(*read_studies(folder))}
    return tables, pd.DataFrame(as_rows(folder)), sweeps


def cells(table):
    """{(row, column): text} of what is not a row's name."""
    return {
        (table.row_name(row), column): cell
        for row in table.rows
        for column, cell in list(zip(table.columns, row, strict=True))[table.key :]
    }


def text(values, form=".2f", times=1.0):
    values = np.array([value for value in values if value is not None], dtype=float) * times
    shown = f"{values.mean():{form}}"
    zero = shown.replace("-", "+" if form[0] == "+" else "") if not shown.strip("+-.0") else shown
    return f"{zero} ± {values.std(ddof=1):{form.removeprefix('+')}}" if len(values) > 1 else zero


# --- tables of runs ----------------------------------------------------------------------------------------------


def suite(task):
    own = set(TASKS[task].suites)
    if "diagnostic" in own:
        return "diagnostic, BIG-Bench Hard" if task[:4] == "bbh_" else "diagnostic, others"
    return "train-covered" if "train_covered" in own else "classic"


def tasks_of(name):
    """Tasks of a suite; overall is both main ones."""
    wanted = ("train-covered", "classic") if name == "overall" else (name,)
    return [task for task in MEASURED if suite(task) in wanted]


class Runs:
    """Means over tasks from the table of all results."""

    def __init__(self, rows: pd.DataFrame):
        keys = ["scale", "run", "loops", "task", "seed"]
        rows = rows.assign(tokens_nll=rows.nll * rows.answer_tokens)
        groups = rows.groupby(keys)
        measured = {
            "accuracy": 100 * groups.correct.mean(),
            "nll": groups.tokens_nll.sum() / groups.answer_tokens.sum(),
        }
        self.found = {
            (of, *key): part.droplevel(keys[:3]).unstack()
            for of, series in measured.items()
            for key, part in series.groupby(level=keys[:3])
        }  # [tasks, seeds] by measure, scale, run and loops
        self.right = 100 * rows.groupby(["scale", "run", "loops", "task", "id"]).correct.mean()

    def mean(self, of, scale, run, loops, tasks):
        """[seeds]"""
        return self.found[of, scale, run, str(loops)].loc[tasks].mean().to_numpy()

    def gain(self, of, scale, run, loops, tasks):
        return self.mean(of, scale, run, loops, tasks) - self.mean(of, scale, "full", 1, tasks)

    def best(self, scale, run, tasks):
        return min((2, 4, 6, 8), key=lambda loops: self.mean("nll", scale, run, loops, tasks).mean())

    def interval(self, scale, tasks):
        """Of the gain of two loops over the baseline: 1.96 standard errors over paired items."""
        means, errors = [], []
        for task in tasks:
            paired = self.right[scale, "loop", "2", task] - self.right[scale, "full", "1", task]
            means.append(paired.mean())
            errors.append(paired.std() ** 2 / len(paired))
        half = 1.96 * math.sqrt(sum(errors)) / len(tasks)
        return f"[{np.mean(means) - half:+.1f}, {np.mean(means) + half:+.1f}]"

    def gains(self, scale, tasks):
        return {
            "Baseline, %": text(self.mean("accuracy", scale, "full", 1, tasks), ".1f"),
            "Two loops, %": text(self.mean("accuracy", scale, "loop", 2, tasks), ".1f"),
            "Δ points": text(self.gain("accuracy", scale, "loop", 2, tasks), "+.1f"),
            "95 %": self.interval(scale, tasks),
            "Δ NLL": text(self.gain("nll", scale, "loop", 2, tasks), "+.3f"),
        }


def test_tables_of_gains(study):
    tables, rows, _ = study
    runs = Runs(rows)
    expected = {}
    for scale in SCALES:
        tasks = tasks_of("overall")
        expected[scale] = {**runs.gains(scale, tasks), "Tasks": "22"}
        expected[scale]["Δ points"] = text(runs.gain("accuracy", scale, "loop", 2, tasks), "+.2f")
        del expected[scale]["95 %"]
    check(tables["scaling"], expected)
    names = ["train-covered", "classic", "overall", "diagnostic, BIG-Bench Hard", "diagnostic, others"]
    assert [row[1] for row in tables["suites"].rows] == names * 2
    check(
        tables["suites"],
        {
            f"{scale} / {name}": {"Tasks": str(len(tasks_of(name))), **runs.gains(scale, tasks_of(name))}
            for scale in SCALES
            for name in names
        },
    )
    for scale in SCALES:
        items = rows[(rows.scale == scale) & (rows.run == "full")].groupby("task").id.nunique()
        check(
            tables[f"task-gains-{scale}"],
            {task: {"Suite": suite(task), "Items": str(items[task]), **runs.gains(scale, [task])} for task in MEASURED},
        )


def test_the_overall_gain_is_weighted_by_tasks_and_not_by_items(study):
    _, rows, _ = study
    runs = Runs(rows)
    for of in ("accuracy", "nll"):
        suites = [runs.gain(of, "1.7B", "loop", 2, tasks_of(name)).mean() for name in ("train-covered", "classic")]
        overall = runs.gain(of, "1.7B", "loop", 2, tasks_of("overall")).mean()
        assert overall == pytest.approx((14 * suites[0] + 8 * suites[1]) / 22)


def test_memory_tables(study):
    tables, rows, _ = study
    runs, covered = Runs(rows), tasks_of("train-covered")
    expected = {}
    for scale in SCALES:
        measured = {}
        for run, column in (("plain-loop", "Plain looping"), ("loop", "Memory")):
            best = runs.best(scale, run, covered)
            measured[column] = runs.gain("nll", scale, run, best, covered), best
        plain, memory = (measured[column][0] for column in ("Plain looping", "Memory"))
        row = {column: f"{text(values, '+.3f')} ({best})" for column, (values, best) in measured.items()}
        name = f"Δ NLL over the baseline, best loop / {scale} / train-covered"
        expected[name] = {**row, "Difference": text(memory - plain, "+.3f")}
        for on in ("mathqa", "train-covered", "classic"):
            tasks = [on] if on in MEASURED else tasks_of(on)
            plain, memory = (runs.mean("accuracy", scale, run, 2, tasks) for run in ("plain-loop", "loop"))
            expected[f"Accuracy at two loops, % / {scale} / {on}"] = versus(plain, memory)
        for task in SYNTHETIC:
            deep = rows[(rows.scale == scale) & (rows.task == task) & (rows.loops == "k") & (rows.depth > 8)]
            right = 100 * deep.groupby(["run", "seed"]).correct.mean()
            name = f"Accuracy beyond eight steps at T = k, % / {scale} / {task}"
            expected[name] = versus(right["plain-loop"].to_numpy(), right["loop"].to_numpy())
    check(tables["memory"], expected)
    expected = {}
    for task in MEASURED:
        for loops in ("1", "2", "4", "6", "8", *(["k"] if task in SYNTHETIC else [])):
            one, two = (runs.mean("accuracy", "1.7B", run, loops, [task]) for run in ("plain-loop", "loop"))
            nll = runs.mean("nll", "1.7B", "loop", loops, [task]) - runs.mean(
                "nll", "1.7B", "plain-loop", loops, [task]
            )
            expected[f"{task} / {'T = k' if loops == 'k' else loops}"] = {
                "Plain looping, %": text(one, ".1f"), "Memory, %": text(two, ".1f"),
                "Δ points": text(two - one, "+.1f"), "Δ NLL": text(nll, "+.3f"),
            }  # fmt: skip
    check(tables["depths-1.7B"], expected)


def versus(plain, memory):
    return {
        "Plain looping": text(plain, ".1f"), "Memory": text(memory, ".1f"), "Difference": text(memory - plain, "+.1f"),
    }  # fmt: skip


def test_tables_of_controls(study):
    tables, rows, _ = study
    runs, main = Runs(rows), tasks_of("overall")
    covered, fewer = ["gsm8k", "math", "mathqa"], ["gsm8k", "math", "mathqa", "boolq"]

    def against(run):
        best = runs.best("1.7B", run, covered)
        return {"Δ NLL": text(runs.gain("nll", "1.7B", run, best, covered), "+.4f"), "Best loop": str(best)}

    titles = {"loop": "Full RecurTrace", "no-qk-norm": "Without QK-normalization", "window-1": "Memory window W = 1"}
    expected = {}
    for run in ("loop", "no-qk-norm", "window-1", "own-idea"):
        right = text(runs.mean("accuracy", "1.7B", run, 2, ["mathqa"]), ".1f")
        expected[titles.get(run, run)] = {**against(run), "mathqa, %": right}
    check(tables["ablation-1.7B"], expected)
    check(
        tables["blocks-1.7B"],
        {
            name: {**against(run), "Δ points": text(runs.gain("accuracy", "1.7B", run, 2, fewer), "+.1f")}
            for run, name in (("loop", "12–14 (deployed)"), ("block-3-5", "3–5"), ("block-24-26", "24–26"))
        },
    )
    for scale in SCALES:
        expected = {}
        for run, loops, name in (
            ("adapter", 1, "Matched adapter, no loops"),
            ("loop", 2, "RecurTrace, two loops"),
        ):
            expected[name] = {
                "Accuracy, %": text(runs.mean("accuracy", scale, run, loops, main), ".1f"),
                "Δ points": text(runs.gain("accuracy", scale, run, loops, main), "+.1f"),
                "Δ NLL": text(runs.gain("nll", scale, run, loops, main), "+.3f"),
            }
        baseline = {"Accuracy, %": text(runs.mean("accuracy", scale, "full", 1, main), ".1f")}
        expected["Fine-tuned baseline"] = {**baseline, "Δ points": "", "Δ NLL": ""}
        check(tables[f"capacity-{scale}"], expected)
    expected = {}
    for name, depths in (("best loop", None), ("four loops", (4, 4))):
        pair = ("same-start-plain", "same-start-memory")
        depths = depths or tuple(runs.best("1.7B", run, covered) for run in pair)
        plain, memory = (runs.mean("nll", "1.7B", run, t, covered) for run, t in zip(pair, depths, strict=True))
        expected[name] = {
            "Loops": ", ".join(dict.fromkeys(map(str, depths))), "Plain, NLL": text(plain, ".3f"),
            "Memory, NLL": text(memory, ".3f"),
            "Δ NLL, seed by seed": ", ".join(f"{change:+.3f}" for change in memory - plain),
        }  # fmt: skip
    check(tables["same-start-1.7B"], expected)


# --- tables of halting -------------------------------------------------------------------------------------------


class Halting:
    """The arrays of one training seed, item by item."""

    def __init__(self, heldout, test):
        self.heldout, self.test = heldout, test
        self.right = test["correct"].tolist()

    def signal(self, sweep, name):
        if name in ("top_prob", "margin", "entropy", "kl"):
            return sweep[name].tolist()
        if name in ("state_l2", "state_angle"):
            moved = _length_of_change if name == "state_l2" else _half_turns
            paths = [[complex(*state[:2]) for state in path] for path in sweep["state_mean"].tolist()]
            return [[math.inf, *(moved(a, b) for a, b in pairwise(path))] for path in paths]
        weight, bias, _ = WEIGHTS[name]
        return [[1 / (1 + math.exp(-(weight * x + bias))) for x in row] for row in sweep["state_mean"][..., 0].tolist()]

    def stops(self, values, threshold, floor, above=False):
        depths = []
        for row in values:
            t = floor
            while t < DEPTHS and not (row[t - 1] >= threshold if above else row[t - 1] < threshold):
                t += 1
            depths.append(t)
        return depths

    @property
    def floor(self):
        means = self.heldout["loss"].mean(axis=0).tolist()
        return means.index(min(means)) + 1

    def threshold(self, name, floor, above=False, by="loss", rows=None):
        """The smallest mean depth of the candidates with the best held-out score, the first of equals."""
        sweep = self.heldout
        rows = range(ITEMS) if rows is None else rows
        values = [self.signal(sweep, name)[i] for i in rows]
        scored = []
        for candidate in self.candidates(name, values, floor):
            depths = self.stops(values, candidate, floor, above)
            at = [sweep[by][i, t - 1] for i, t in zip(rows, depths, strict=True)]
            score = float(np.mean(at)) * (-1 if by == "loss" else 1)
            scored.append((score, sum(depths), candidate))
        best = max(score for score, _, _ in scored)
        least = min(depth for score, depth, _ in scored if score >= best)
        return next(tau for score, depth, tau in scored if score >= best and depth == least)

    def candidates(self, name, values, floor):
        """Hundredths of a probability; else between 200 quantiles of what can end a loop, below and above them all."""
        if name not in ("entropy", "kl", "state_l2", "state_angle"):
            return [hundredth / 100 for hundredth in range(101)]
        seen = sorted(value for row in values for value in row[floor - 1 : DEPTHS - 1] if value < math.inf)
        levels = []
        for i in range(200):
            place, part = divmod(Fraction(i * (len(seen) - 1), 199), 1)
            after = seen[min(place + 1, len(seen) - 1)]
            levels.append(seen[place] + float(part) * (after - seen[place]))
        return [levels[0] - 1, *((a + b) / 2 for a, b in pairwise(levels)), levels[-1] + 1]

    def adaptive(self, name=None, floor=None, above=False):
        floor = floor or self.floor
        tau = self.threshold(name, floor, above)
        return tau, self.stops(self.signal(self.test, name), tau, floor, above)

    def correct(self, depths):
        return [self.right[i][t - 1] for i, t in enumerate(depths)]

    @property
    def best_fixed(self):
        counts = [sum(row[t] for row in self.right) for t in range(DEPTHS)]
        return counts.index(max(counts)) + 1

    def positive(self, i, t):
        loss = self.test["loss"][i]
        return any(loss[later] < loss[t - 1] - np.float32(0.01) for later in range(t, DEPTHS))


def _length_of_change(before, state):
    return abs(state - before) / abs(before)


def _half_turns(before, state):
    return abs(np.angle(state / before)) / math.pi


@cache
def draws():
    """Every way to draw eight of eight evaluation seeds with replacement: [6435, 8] how often each, and how likely."""
    ways = [np.bincount(way, minlength=8) for way in combinations_with_replacement(range(8), 8)]
    chances = [math.factorial(8) / math.prod(math.factorial(n) for n in way) / 8**8 for way in ways]
    return np.array(ways), np.array(chances)


def exact_bounds(differences, share):
    """Gains between which the quantile of a bootstrap over evaluation seeds lies, whatever 10,000 draws give."""
    ways, chances = draws()
    sums = np.add.reduceat(np.array(differences, dtype=int), range(0, ITEMS, EIGHTH))
    gains = ways @ sums / ITEMS
    order = np.argsort(gains)
    below = np.cumsum(chances[order])
    error = 4 * math.sqrt(share * (1 - share) / 10_000)
    return [gains[order][np.searchsorted(below, share + side * error)] for side in (-1, 1)]


@pytest.fixture(scope="module")
def halting(study):
    sweeps = study[2]
    return [Halting(sweeps[seed, "analysis", "heldout"], sweeps[seed, "analysis", "test"]) for seed in SEEDS]


def check(table, expected):
    """The table has these cells, and no others."""
    wanted = {(row, column): cell for row, columns in expected.items() for column, cell in columns.items()}
    found = cells(table)
    assert {place: (found.get(place), cell) for place, cell in wanted.items() if found.get(place) != cell} == {}
    assert found.keys() == wanted.keys()


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
    intervals = {row: cell for (row, column), cell in cells(table).items() if column == "95 %"}
    check(table, {title: {**row, "95 %": intervals.get(title)} for title, row in expected.items()})
    for title, cell in intervals.items():
        for end, (least, most) in zip(json.loads(cell.replace("+", "")), bounds[title], strict=True):
            assert least - 0.051 <= end <= most + 0.051, title


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


def written_files(folder, pattern):
    return [json.loads(file.read_text()) for file in sorted((folder / "1.7B").glob(pattern))]


def test_the_model_is_its_config(study):
    """The paper's settings are the defaults, so each cell is what the paper prints."""
    table = study[0]["model-1.7B"]
    printed = {row: cell for one in published() if one.table == "model" and one.scale in ("", "1.7B")
               for (row, _), cell in one.cells().items()}  # fmt: skip
    printed["loop_sample_dist"] = "lognormal poisson"
    check(table, {row: {"Value": cell} for row, cell in printed.items()})


def test_what_training_took(study, folder):
    runs = {"full": "Baseline", "loop": "RecurTrace", "plain-loop": "Plain looping", "adapter": "Adapter"}
    stage_2 = {
        "Trained module": "halting head, 2,049 parameters", "Base and loop modules": "frozen",
        "Head: optimizer steps": "200", "Head: learning rate, schedule": "3.0e-04, cosine",
        "Oracle horizon": "depth 16", "Oracle losses": "cached offline, 5,000 examples",
    }  # fmt: skip
    heads = written_files(folder, "models/*/head-budget.json")
    extra = np.mean([head["sweep_flops"] + head["head_flops"] for head in heads])
    expected = {}
    for run, column in runs.items():
        files = written_files(folder, f"runs/{run}/*/budget.json")
        assert len(files) == len(SEEDS)
        flops, seconds, peaks = ([one[name] for one in files] for name in ("total_flops", "seconds", "peak_bytes"))
        trained, tokens = files[0]["trained_parameters"], files[0]["tokens"]
        cells_of_run = {
            "Base weights": "fine-tuned" if run == "full" else "frozen",
            "Trainable parameters": f"{trained:,} (1.5%)", "Optimizer, schedule": "AdamW, cosine",
            "Peak learning rate": "1.0e-04", "Optimizer steps": "25,000", "Global batch (sequences)": "128",
            "Micro-batch × accumulation": "2 × 8", "Max length (tokens)": "1,024", "Training tokens": f"{tokens:,}",
            "Hardware": "8 × NVIDIA H800", "Precision": "bfloat16",
            "Forward layer passes per token": "36.7" if "loop" in run else "28.0",  # 28 + 2.9 · 3
            "Training FLOPs (analytical)": f"{np.mean(flops):.2e}", "Minutes": text(seconds, ".1f", 1 / 60),
            "Peak memory of a process, GiB": f"{max(peaks) / 1024**3:.2f}",
            **(stage_2 if run == "loop" else dict.fromkeys(stage_2, "—")),
            "Sweep and head FLOPs (analytical)": f"{extra:.2e}" if run == "loop" else "—",
            "Extra FLOPs against stage 1": f"{100 * extra / np.mean(flops):.1f}%" if run == "loop" else "—",
        }  # fmt: skip
        for row, cell in cells_of_run.items():
            expected.setdefault(row, {})[column] = cell
    check(study[0]["budget-1.7B"], expected)


def test_what_depth_costs(study, folder):
    (found,) = written_files(folder, "cost.json")
    ratios = {
        "Last logits: FLOPs": "flops_ratio", "Last logits: time": "time_ratio",
        "All logits: FLOPs": "all_logits_flops_ratio", "All logits: time": "all_logits_time_ratio",
    }  # fmt: skip
    expected = {
        str(one["loops"]): {
            "Layer passes": str(one["layer_passes"]), "K/V bytes per token": f"{one['kv_bytes_per_token']:,}",
            **{column: f"{one[name]:.2f}×" for column, name in ratios.items()},
        }
        for one in found["depths"]
    }  # fmt: skip
    assert list(expected) == list(map(str, COSTED))
    check(study[0]["cost-1.7B"], expected)


def test_the_probes_curve_is_that_of_its_file(study, folder):
    (found,) = written_files(folder, "probe.json")
    space = next(one for one in read_studies(folder) if one.scale == "1.7B")
    curve, windows = probe_curve(space.probe).axes
    assert curve.containers[0].lines[0].get_ydata() == pytest.approx(found["distances"])
    assert [bar.get_height() for bar in windows.patches] == pytest.approx([0.1, -0.1])  # of 3–5 and 12–14, over 1.8


def test_every_table_is_looked_at(study):
    """A table that is added needs its cells checked here."""
    tables = {name.removesuffix("-0.6B").removesuffix("-1.7B") for name, one in study[0].items() if not one.missing}
    looked_at = {
        "scaling", "suites", "task-gains", "memory", "depths", "ablation", "blocks", "capacity", "same-start", "main",
        "histogram", "transition", "deepened", "thresholds", "difficulty", "reconciliation", "calibration", "checks",
        "strengths", "tasks", "model", "worked", "budget", "cost", "full-test",
    }  # fmt: skip
    assert tables == looked_at


def test_full_test(study, folder):
    lines = (folder / "1.7B" / "full-test" / "records-00000-of-00001.jsonl").read_text().splitlines()
    rows = pd.DataFrame([one for line in lines for one in json.loads(line)["results"]])
    means = rows.groupby("loops")[["correct", "depth"]].mean()
    expected = {}
    for asked, method in (("2", "Fixed depth, T=2"), ("adaptive", "RecurTrace")):
        expected[method, "Items"] = str(len(lines))
        expected[method, "Accuracy, %"] = f"{100 * means.correct[asked]:.1f}"
        expected[method, "Loops"] = f"{means.depth[asked]:.2f}"
    assert cells(study[0]["full-test-1.7B"]) == expected


def test_the_papers_values_stand_beside_every_cell_that_it_publishes(study):
    tables = study[0]
    shown = {}
    for name, table in tables.items():
        for (i, j), value in table.beside.items():
            shown[name.removesuffix("-1.7B"), table.row_name(table.rows[i]), table.columns[j]] = value
    run = ("0.6B", "1.7B")
    wanted = {}
    for block in (one for one in published() if one.scale in ("", "1.7B")):
        for (row, column), value in block.cells().items():
            if not any(other in row.split(" / ") for other in ("4B", "8B")):
                wanted[block.table, row, column] = value
    there = {
        place for name, table in tables.items() for place in ((name.removesuffix("-1.7B"), *c) for c in cells(table))
    }
    fewer = {place for place in wanted if place[0] == "ablation" and place[2] == "Δ NLL"}  # three tasks, not 14
    assert shown == {place: value for place, value in wanted.items() if place in there - fewer}
    unmatched = {place for place in wanted if place not in there}
    not_measured = {("tasks", task) for task in ("math", "arc_challenge", "hotpotqa")}
    not_measured |= {("ablation", run) for run in ("Loop-distance bias frozen", "Gates open at initialisation")}
    not_measured |= {("ablation", f"Memory window W = {w}") for w in (2, 5)}
    not_measured |= {("histogram", depth) for depth in map(str, range(2, 9))}
    not_measured |= {("strengths", f"{m} / {s}") for m in ("ACT", "PonderNet") for s in ("0.001", "0.1")}
    assert {place[:2] for place in unmatched} <= not_measured
    assert all(not table.beside for name, table in tables.items() if name.endswith("-0.6B") and "task" in name), run
