"""The paper's published values: they agree among themselves, as far as they can be recomputed from each other."""

import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from recurtrace.data.benchmarks import suite
from recurtrace.data.counts import COUNTS
from recurtrace.evaluation.statistics import Transitions, histogram_mean
from recurtrace.model.configuration_recurtrace import RecurTraceConfig
from recurtrace.model.cost import cost_of
from recurtrace.model.families import QWEN3
from recurtrace.pipeline import PipelineRecipe
from recurtrace.records import Evaluation, EvaluationManifest
from recurtrace.report.budget_table import STAGE_1, STAGE_2
from recurtrace.report.contents import CONTENTS, ELSEWHERE
from recurtrace.report.paper import beside, published
from recurtrace.report.table import Table
from recurtrace.report.workspace import Workspace

ITEMS, BUDGET = 2400, 16
MICRO = "Micro-batch × accumulation"


def values(table, column, scale=None):
    """{row: number} of one column; ± and what follows is left out."""
    found = {}
    for block in (one for one in published() if one.table == table and scale in (None, one.scale)):
        for (row, name), text in block.cells().items():
            if name == column:
                found[row] = float(text.partition(" ±")[0])
    return found


def close(found, expected, digits):
    """Equal as far as both were printed."""
    return found == pytest.approx(expected, abs=0.5 * 10**-digits + 1e-9)


def test_22_task_means_are_those_of_the_suites():
    """At 8B both suites are published: (14 · train-covered + 8 · classic) / 22. At the others, their gains."""
    tasks = {name: len(suite(name.replace("-", "_"))) for name in ("train-covered", "classic")}
    assert tasks == {"train-covered": 14, "classic": 8}

    def overall(column, scale):
        of = values("suites", column)
        return sum(n * of[f"{scale} / {name}"] for name, n in tasks.items()) / 22, of[f"{scale} / overall"]

    for column in ("Baseline, %", "Two loops, %", "Δ points"):
        assert close(*overall(column, "8B"), 1)
    for scale in ("0.6B", "1.7B", "8B"):
        assert close(*overall("Δ points", scale), 1)
    for scale in ("0.6B", "1.7B"):
        assert close(*overall("Δ NLL", scale), 2)
    weighted_by_items = [(45_722 * a + 4_785 * b) / 50_507 for a, b in ((62.3, 74.0), (66.9, 75.4))]
    assert [round(one, 1) for one in weighted_by_items] == [63.4, 67.7]  # what means over items would print


def test_gains_are_differences():
    for table in ("suites", "scaling", "task-gains"):
        baseline, looped, gains = (values(table, column) for column in ("Baseline, %", "Two loops, %", "Δ points"))
        for row in baseline.keys() & looped.keys() & gains.keys():
            assert close(looped[row] - baseline[row], gains[row], 1), row
    scaling = values("scaling", "Δ points")
    assert list(scaling.values()) == [0.6, 1.2, 2.2, 3.4]
    overall = {row.split(" / ")[0]: value for row, value in values("suites", "Δ points").items() if "overall" in row}
    assert overall == scaling


def test_the_classic_means_are_those_of_the_tasks_at_8b():
    classic = {task.name for task in suite("classic")}
    for column, expected in (("Baseline, %", 74.0), ("Two loops, %", 75.4)):
        of = values("task-gains", column)
        assert classic <= of.keys()
        assert close(statistics.mean(of[task] for task in classic), expected, 1)
    gains = values("task-gains", "Δ points")
    covered = [gain for task, gain in gains.items() if task not in classic]
    assert (min(covered), max(covered)) == (3.4, 5.3)
    assert (min(gains[t] for t in classic), max(gains[t] for t in classic)) == (-0.6, 3.1)


def test_three_seeds_at_8b():
    """+3.02, +3.69 and +3.61: the mean is 3.44, the standard deviation 0.37."""
    seeds = [3.02, 3.69, 3.61]
    assert f"{statistics.mean(seeds):.2f} ± {statistics.stdev(seeds):.2f}" == "3.44 ± 0.37"
    block = next(one for one in published() if one.table == "scaling")
    assert block.rows["8B"][2] == "+3.4 ± 0.37"
    (note,) = [one.note for one in published() if one.table == "suites" and one.note]
    assert [float(gain) for gain in re.findall(r"\+\d\.\d\d", note)] == seeds


def test_the_comparison_counts_right_answers_of_2400():
    accuracy, right, gains = (values("main", column) for column in ("Accuracy, %", "Right", "Δ"))
    for row in accuracy:
        digits = 1 if row == "Correctness oracle" else 2
        assert close(100 * right[row] / ITEMS, accuracy[row], digits), row
    for row, gain in gains.items():
        assert right[row] - right["Fixed depth, T=2"] == gain
    assert round(ITEMS / 2985, 2) == 0.80  # "about 80 % of the test set"
    assert round(0.61 * ITEMS) == 1464
    best, own, ceiling = accuracy["Fixed depth, T=2"], accuracy["RecurTrace"], accuracy["Correctness oracle"]
    assert (own - best) / (ceiling - best) == pytest.approx(1 / 3, abs=0.03)  # "about one third" of the gap
    assert close(ceiling - best, 6.3, 1)
    assert close(own - accuracy["TaH-Mismatch"], 1.25, 2)


def test_transitions_agree_with_the_comparison_and_the_test():
    of = next(one for one in published() if one.table == "transition").rows
    (both, gained, ours), (lost, neither, _), (fixed, _, items) = ([int(cell) for cell in row] for row in of.values())
    found = Transitions(both, gained, lost, neither)
    assert (found.items, found.net, both + gained, both + lost) == (items, 53, ours, fixed)
    assert [int(of["wrong"][2]), int(of["total"][1])] == [lost + neither, gained + neither]
    assert (ours, fixed, items) == (1366, 1313, ITEMS)
    assert found.p_value < 0.001
    assert close(found.points, 2.2, 1)


def test_the_histogram_has_the_mean_of_the_comparison():
    counts = {row: int(n) for row, n in values("histogram", "Items").items()}
    beyond = counts.pop("beyond the floor")
    depths = {int(depth): count for depth, count in counts.items()}
    assert sum(depths.values()) == ITEMS
    assert beyond == ITEMS - depths[2] == 65
    assert close(histogram_mean(depths), values("main", "Loops")["RecurTrace"], 2)
    shares = next(one for one in published() if one.table == "histogram").rows
    for row, (count, share) in shares.items():
        exact = 100 * int(count) / ITEMS
        assert exact < 0.1 if share == "< 0.1" else close(exact, float(share), 1), row


def test_rates_of_the_deepened_items():
    items, shares, base = (values("deepened", column) for column in ("Items", "%", "In all, %"))
    names = {name: next(row for row in items if name in row) for name in ("hard", "precision", "recall", "wrong")}
    for name in ("hard", "precision", "wrong"):
        assert close(100 * items[names[name]] / 65, shares[names[name]], 0)
    assert close(100 * 55 / 153, shares[names["recall"]], 0)
    assert close(100 * 153 / ITEMS, base[names["precision"]], 1)
    assert close(100 * 151 / 1087, base[names["wrong"]], 1)
    assert 1464 - 1313 == 151


def test_every_threshold():
    loops, cuts, gains = (values("thresholds", column) for column in ("Loops", "Loop cut, %", "Δ"))
    assert list(loops) == ["0.01", "0.05", "0.10", "0.20", "0.30", "0.50"]
    for tau in loops:
        assert close(100 * (1 - loops[tau] / BUDGET), cuts[tau], 1)
    assert sorted(loops.values(), reverse=True) == list(loops.values())
    assert max(gains, key=lambda tau: gains[tau]) == "0.10"
    at_budget = values("main", "Right")["Fixed depth, T=16"]
    point = values("reconciliation", "Accuracy, %")["no floor, τ = 0.10"]
    assert close(100 * (at_budget + gains["0.10"]) / ITEMS, point, 1)  # 1287 of 2400
    assert at_budget + gains["0.10"] == 1287


def test_hard_and_easy_items_by_seed():
    easy, hard, gap = (values("difficulty", column) for column in ("Easy", "Hard", "Gap"))
    for row in easy:
        assert hard[row] - easy[row] == pytest.approx(gap[row], abs=0.011), row  # gaps are of unrounded values
    for of, mean in ((easy, 2.50), (hard, 3.10), (gap, 0.59)):
        assert statistics.mean(value for row, value in of.items() if row != "mean") == pytest.approx(mean, abs=0.0051)
    assert min(gap.values()) > 0


def test_unsupervised_depths_are_within_1_2_points_of_a_neighbour():
    """The paper says 1.2 for depths 3, 5 and 7; for depth 5 the nearer neighbour, 6, is meant."""
    of = {int(row): value for row, value in values("calibration", "Balanced accuracy, %").items()}
    for depth, neighbours in ((3, (2, 4)), (5, (4, 6)), (7, (6,))):
        assert min(abs(of[depth] - of[other]) for other in neighbours) <= 1.2 + 1e-9
    assert sorted(of.values(), reverse=True) == list(of.values())


def test_per_task_gains_over_eight_loops():
    """+5.9 points on ARC-Challenge and +4.9 on GSM8K; never below the best fixed depth, with 65 to 87 % fewer loops."""
    fixed, best, adaptive, loops = (values("tasks", column) for column in ("Fixed", "Best", "Adaptive", "Loops"))
    gains = {task: round(adaptive[task] - fixed[task], 1) for task in fixed}
    assert gains["arc_challenge"] == max(gains.values()) == 5.9
    assert gains["gsm8k"] == 4.9
    assert all(adaptive[task] >= best[task] for task in best)
    cuts = [100 * (1 - of / 8) for of in loops.values()]
    assert (int(min(cuts)), round(max(cuts))) == (65, 87)
    assert list(values("tasks", "n").values()) == [1319, 1500, 254, 1172, 1500]


def test_the_recipe_takes_as_many_items_of_each_task_as_the_paper():
    recipe = PipelineRecipe.read_with("paper/qwen3-1.7b", [])
    taken = {task: min(COUNTS[task].test, recipe.task_items) for task in recipe.task_heads}
    assert taken == values("tasks", "n")


def test_memory_against_plain_looping():
    plain, memory = values("memory", "Plain looping"), values("memory", "Memory")
    differences = {row.split(" / ")[-1]: round(memory[row] - plain[row], 1) for row in plain if "%" in row}
    assert differences == {
        "mathqa": 2.3, "train-covered": 1.1, "classic": 2.4, "p_hop": -4.7, "symbolic": 17.7, "arithmetic": 16.7,
    }  # fmt: skip
    full = values("ablation", "Δ NLL")["Full RecurTrace"], values("ablation", "mathqa, %")["Full RecurTrace"]
    on = "Δ NLL over the baseline, best loop / 1.7B / train-covered", "Accuracy at two loops, % / 1.7B / mathqa"
    assert full == (memory[on[0]], memory[on[1]])
    assert all(full[0] < other for row, other in values("ablation", "Δ NLL").items() if row != "Full RecurTrace")


def test_the_capacity_control_is_half_of_the_gain():
    gains, right = values("capacity", "Δ points"), values("capacity", "Accuracy, %")
    adapter, own = gains
    assert close(gains[adapter] / gains[own], 0.5, 1)
    for row, gain in gains.items():
        assert close(right[row] - right["Fine-tuned baseline"], gain, 1)


def test_layer_passes_of_training_at_8b():
    """1.24 times: 36 layers, of which three run 3.9 times on average."""
    scale = QWEN3["8B"]
    assert round((scale.layers + (3.9 - 1) * 3) / scale.layers, 2) == 1.24
    cost = cost_of(RecurTraceConfig(text_config=scale.config().to_dict(), loop_start=scale.loop_start))
    assert cost.layer_passes(4) == scale.layers + 3 * 3


def test_runtime_1_1_1_3_1_7_at_2_4_8_loops():
    """The FLOPs of a teacher-forced pass at 0.6B give the paper's ratios."""
    scale = QWEN3["0.6B"]
    cost = cost_of(RecurTraceConfig(text_config=scale.config().to_dict(), loop_start=scale.loop_start))
    ratios = {str(loops): cost.forward_ratio(loops, 1024) for loops in (2, 4, 8)}
    assert list(ratios.values()) == pytest.approx([1.101, 1.303, 1.706], abs=0.001)
    block = next(one for one in published() if one.table == "cost")
    assert block.rows == {loops: [f"{ratio:.1f}×"] for loops, ratio in ratios.items()}


def test_the_budget_has_the_rows_of_the_report():
    block = next(one for one in published() if one.table == "budget")
    assert block.rows.keys() <= {*STAGE_1, *STAGE_2, "Extra FLOPs against stage 1"}
    assert block.rows["Forward layer passes per token"] == ["36", f"{36 + (3.9 - 1) * 3:.1f}"]
    steps, batch, length = (int(block.rows[row][0]) for row in list(block.rows)[4:8] if row != MICRO)
    assert round(steps * batch * length / 1e6) == 105


def test_every_table_and_figure_of_the_paper_has_a_place():
    """Six tables and four figures in the body, fourteen tables and a figure in the appendix."""
    wanted = {*(f"Table {i}" for i in range(1, 7)), *(f"Table S{i}" for i in range(1, 15))}
    wanted |= {*(f"Figure {i}" for i in range(1, 5)), "Figure S1"}
    places = [row.paper for rows in CONTENTS.values() for row in rows] + list(ELSEWHERE)
    found = set()
    for place in places:
        kind = "Table" if place.startswith("Table") else "Figure" if place.startswith("Figure") else None
        found |= {f"{kind} {number}" for number in re.findall(r"S?\d+", place)} if kind else set()
    assert found == wanted


def test_values_stand_beside_ours_at_their_scale_only():
    table = Table("tasks", "", ["Task", "Fixed", "Loops"], [["gsm8k", "1.0", "2.00"], ["own", "1.0", "2.00"]])
    assert beside(table, ["1.7B"]).beside == {(0, 1): "5.5", (0, 2): "1.72"}
    assert beside(table, ["8B"]).beside == beside(table, []).beside == {}
    main = Table("main", "", ["Method", "Right"], [["ACT", "3"]])
    assert beside(main, ["1.7B"], ["mathqa"]).beside == {(0, 1): "1199"}
    assert beside(main, ["1.7B"], ["gsm8k"]).beside == {}  # other items


def test_values_stand_beside_means_over_as_many_tasks_only():
    def shown(table, *scales):
        return beside(table, scales).beside

    def scaling(tasks):
        return Table("scaling", "", ["Scale", "Baseline, %"], [["1.7B", "1.0"]], over={"1.7B": tasks})

    assert shown(scaling(22), "1.7B") == {(0, 1): "44.8"}
    assert shown(scaling(1), "1.7B") == {}
    assert shown(scaling(22), "8B") == {}  # a folder of that name whose base is another
    columns, row = ["Scale", "Suite", "Baseline, %"], ["8B", "overall", "1.0"]
    suites = Table("suites", "", columns, [row], "Ours.", key=2, over={"8B / overall": 22})
    assert beside(suites, ["8B"]).note == "Ours. In the paper, overall gains at 8B, seed by seed: +3.02, +3.69, +3.61."
    assert beside(replace(suites, over={"8B / overall": 14}), ["8B"]).note == "Ours."
    ablation = Table("ablation", "", ["Run", "Δ NLL", "mathqa, %"], [["Full RecurTrace", "", ""]], over={"Δ NLL": 3})
    assert shown(ablation, "1.7B") == {(0, 2): "54.7"}
    assert shown(replace(ablation, over={"Δ NLL": 14}), "1.7B") == {(0, 1): "-0.03", (0, 2): "54.7"}
    name = ["Δ NLL over the baseline, best loop", "4B", "train-covered"]
    memory = Table(
        "memory", "", ["Measure", "Scale", "On", "Memory"], [[*name, ""]], key=3, over={" / ".join(name): 14}
    )
    assert shown(memory, "4B") == {(0, 3): "-0.03"}
    assert shown(replace(memory, over={}), "4B") == {}


@pytest.mark.parametrize("base", ["Qwen/Qwen3-1.7B-Base", "/models/Qwen3-1.7B-Base/", "Qwen3-1.7B-Base"])
def test_the_papers_scales_are_of_its_base_releases(base):
    def study(name):
        manifest = EvaluationManifest(0, base=name)
        return Workspace(Path("x"), None, None, [], {"loop": [Evaluation(manifest, [])]}, {})

    assert (study(base).scale, study(base).in_the_paper) == ("1.7B", True)
    instruct = study(base.replace("-Base", ""))
    assert (instruct.scale, instruct.in_the_paper) == ("Qwen3-1.7B", False)
