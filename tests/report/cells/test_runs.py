"""Tables of runs, against means from the lines of the files with pandas."""

import math

import numpy as np
import pandas as pd
import pytest

from recurtrace.data.benchmarks import TASKS
from tests.report.cells.expected import check, text
from tests.report.handmade import MEASURED, SCALES, SYNTHETIC


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
