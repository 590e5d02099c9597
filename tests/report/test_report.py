"""A report from files alone: tables and figures where runs are there, and what is missing where they are not."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from itertools import combinations

import pytest

from recurtrace.errors import RecurTraceError
from recurtrace.evaluation.analysis import analyse
from recurtrace.halting.oracle import Oracle
from recurtrace.halting.sweep_files import Sweep
from recurtrace.records import (
    Analysis,
    BlockProbe,
    Budget,
    CostAtDepth,
    CostReport,
    DepthResult,
    ItemRecord,
    Measures,
    Window,
    items_hash,
    write_record,
)
from recurtrace.report import figures
from recurtrace.report.contents import all_tables, loopless
from recurtrace.report.figures import gains_by_scale
from recurtrace.report.render import report
from recurtrace.report.suite_tables import ScaleGain, scale_gains
from recurtrace.report.workspace import read_studies, read_workspace
from tests.halting.test_comparison import head, made

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TRAINED = {"oracle": Oracle(), "supervised": [1, 2, 4, 6]}


def named(sweep: Sweep) -> Sweep:
    return replace(
        sweep,
        manifest=replace(sweep.manifest, data="mathqa"),
        items=[replace(item, bucket="easy", answer_tokens=2) for item in sweep.items],
    )


def records(folder, accuracy, loops, kind="looped", items=range(20), base=""):
    folder.mkdir(parents=True)
    (folder / "evaluation.json").write_text(
        json.dumps({"items": len(items), "loops": loops, "kind": kind, "model": folder.name, "base": base})
    )
    lines = []
    for i in items:
        results = [DepthResult(t, int(t), 1.0 - accuracy, i < 20 * accuracy, "x") for t in loops]
        lines.append(ItemRecord(f"{i:02d}", ("gsm8k", "boolq")[i % 2], "", -1, "h", "x", 1, results, []).line())
    (folder / "records-00000-of-00001.jsonl").write_text("".join(lines))


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "work"
    heads = {None: head(2.0), "act": head(0.0, -9.0, "act"), "tah": head(-2.0, 0.0, "tah")}
    for seed in range(2):
        found = analyse(made("heldout", seed), named(made("test", seed + 5)), heads, **TRAINED)
        write_record(folder / "analysis" / f"seed-{seed}.json", replace(found, command="recurtrace compare <model>"))
    records(folder / "evaluations" / "loop", 0.6, ["1", "2"])
    records(folder / "evaluations" / "full", 0.4, ["1"], "base")
    records(folder / "evaluations" / "plain-loop", 0.5, ["1", "2"])
    for run in ("loop", "full"):
        budget = Budget(run, 9, 5, 3, 1, 3, 9, 1.0, 3e8, 1e9, 60.0, 2**30, 1, "cpu", "fp32")
        write_record(folder / "runs" / run / "budget.json", budget)
    depths = [CostAtDepth(t, t, 1.0 * t, 1.0 * t, t) for t in (1, 2)]
    write_record(folder / "cost.json", CostReport(9, 5, depths, "one thread"))
    report(folder, folder / "report", "Test & <report>")
    return folder


def table(space, name):
    return next(table for table in all_tables(read_workspace(space)) if table.name == name)


def test_numbers_are_those_of_the_files(space):
    analyses = [json.loads(file.read_text()) for file in sorted(space.glob("analysis/*.json"))]
    own = [next(row for row in analysis["methods"] if row["name"] == "recurtrace") for analysis in analyses]
    row = next(row for row in table(space, "main").rows if row[0] == "RecurTrace")
    assert row[1].startswith(f"{50 * (own[0]['accuracy'] + own[1]['accuracy']):.2f} ±")
    assert row[3].startswith(f"{(own[0]['mean_depth'] + own[1]['mean_depth']) / 2:.2f}")
    counts = [sum(analysis["histogram"].values()) for analysis in analyses]
    assert counts == [120, 120]
    suites = {row[1]: row for row in table(space, "suites").rows}
    assert suites["classic"][3:6] == ["40.0", "60.0", "+20.0"]
    assert table(space, "depths").rows[0][-2] == "+10.0"
    assert table(space, "budget").columns == ["", "Baseline", "RecurTrace"]
    assert ["Training tokens", "9", "9"] in table(space, "budget").rows
    blank = ["–", "–"]  # a file of an older version
    assert table(space, "cost").rows == [[f"{t}", f"{t}", *[f"{t}.00×"] * 2, *blank, f"{t}"] for t in (1, 2)]
    assert table(space, "cost").note.startswith("one thread")


def test_runs_are_compared_on_the_items_they_share(tmp_path):
    """The looped run has all twenty items, the baseline the last ten, of which the looped one has fewer right."""
    records(tmp_path / "evaluations" / "loop", 0.6, ["1", "2"])
    records(tmp_path / "evaluations" / "full", 0.7, ["1"], "base", range(10, 20))
    found = table(tmp_path, "suites")
    gains = {row[1]: [*row[3:6], row[7]] for row in found.rows}
    assert gains == {name: ["40.0", "20.0", "-20.0", "+0.100"] for name in ("train-covered", "classic", "overall")}
    assert found.note.endswith("On the 10 items that all have; left out are 10 of 20 items of loop (boolq, gsm8k).")


def test_a_task_that_one_run_lacks_is_left_out_and_named(tmp_path):
    records(tmp_path / "evaluations" / "loop", 0.6, ["1", "2"])
    records(tmp_path / "evaluations" / "plain-loop", 0.6, ["1", "2"], items=range(0, 20, 2))
    records(tmp_path / "evaluations" / "window-1", 0.6, ["1", "2"], items=range(0, 20, 4))
    records(tmp_path / "evaluations" / "full", 0.6, ["1"], "base", items=range(0, 20, 2))
    assert {row[0] for row in table(tmp_path, "depths").rows} == {"gsm8k"}
    assert "10 of 20 items of loop (boolq)" in table(tmp_path, "depths").note
    assert "10 of 20 items of loop (boolq)" in table(tmp_path, "memory").note
    assert "On the 5 items that all have" in table(tmp_path, "ablation").note


def test_runs_without_a_common_item_are_not_compared(tmp_path):
    records(tmp_path / "evaluations" / "loop", 0.6, ["1", "2"], items=range(10))
    records(tmp_path / "evaluations" / "full", 0.6, ["1"], "base", range(10, 20))
    assert table(tmp_path, "task-gains").missing == "evaluations of the same items: loop, full have none in common"


def test_a_budget_is_called_the_same_only_where_it_is(space, tmp_path):
    assert table(space, "suites").title == "Two loops against the same-budget baseline, by suite"
    shutil.copytree(space / "evaluations", tmp_path / "evaluations")
    assert table(tmp_path, "suites").title == "Two loops against the fine-tuned baseline, by suite"
    shutil.copytree(space / "runs", tmp_path / "runs")
    file = tmp_path / "runs" / "full" / "budget.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "steps": 4}))
    assert table(tmp_path, "suites").title == "Two loops against the fine-tuned baseline, by suite"


def test_a_baseline_on_other_items_is_no_line_of_the_figure(space):
    found = read_workspace(space)
    assert loopless(found) == {}  # evaluated on 20 items, while the analyses are of 120 others
    unsaid = [replace(analysis, items_sha256="") for analysis in found.analyses]
    assert loopless(replace(found, analyses=unsaid)) == {"full fine-tune": [0.4]}
    own = items_hash(record.key for record in found.evaluations["full"][0].records)
    same = [replace(analysis, items_sha256=own) for analysis in found.analyses]
    assert loopless(replace(found, analyses=same)) == {"full fine-tune": [0.4]}


def test_what_is_missing_is_named(space):
    assert "block-<first>-<last>" in table(space, "blocks").missing
    for name in ("report.html", "report.md"):
        page = (space / "report" / name).read_text()
        for needed in ("Not available", "models/seed-", "Appendix, same-start control", "Table S7", "data list"):
            assert needed in page


def test_a_folder_of_studies_is_compared_by_scale(tmp_path):
    for scale, baseline in (("4B", 0.3), ("0.6B", 0.4)):
        records(tmp_path / scale / "evaluations" / "full", baseline, ["1"], "base")
        records(tmp_path / scale / "evaluations" / "loop", 0.6, ["1", "2"])
    records(tmp_path / "8B" / "evaluations" / "loop", 0.6, ["1", "2"])  # without its baseline
    studies = read_studies(tmp_path)
    gains = scale_gains(studies)
    assert [(one.scale, one.baseline[0].accuracy, one.looped[0].accuracy) for one in gains] == [
        ("0.6B", 40.0, 60.0),
        ("4B", 30.0, 60.0),
    ]
    tables = {one.name: one for one in all_tables(*studies)}
    assert tables["scaling"].rows[1] == ["4B", "2", "30.0", "60.0", "+30.00", "-0.300"]
    assert tables["task-gains-4B"].rows[0][:2] == ["gsm8k", "train-covered"]
    assert not any(one.beside for one in tables.values())  # no file says that these are the paper's bases
    assert "8B needs evaluations/full with --loops 1 (recurtrace evaluate)." in tables["scaling"].note
    lines = [axes.lines[0].get_ydata() for axes in gains_by_scale(gains).axes]
    assert lines[0] == pytest.approx([20.0, 30.0])
    assert lines[1] == pytest.approx([0.2, 0.3])  # the loss falls
    report(tmp_path, tmp_path / "report")
    assert (tmp_path / "report" / "figures" / "scales.png").is_file()


def test_zero_is_at_the_same_height_for_accuracy_and_loss():
    """A loss that rises is below zero, although its axis has a scale of its own."""
    scales = [
        ScaleGain(name, ["t"], [Measures(40.0, 1.0)], [Measures(40.0 + gain, 1.0 + change)])
        for name, gain, change in (("0.6B", 1.0, 0.2), ("1.7B", 3.0, -0.05))
    ]
    for some in (scales, scales[:1], scales[1:]):
        left, right = gains_by_scale(some).axes
        heights = [-low / (high - low) for low, high in (left.get_ylim(), right.get_ylim())]
        assert heights[0] == pytest.approx(heights[1])
        for axes in (left, right):
            low, high = axes.get_ylim()
            drawn = axes.lines[0].get_ydata()
            assert low < min(drawn)
            assert max(drawn) < high


def test_the_first_figure_has_a_line_at_the_best_fixed_depth(space):
    analyses = read_workspace(space).head_analyses
    (axes,) = figures.accuracy_by_loops(figures.LoopPoints(analyses, {})).axes
    means = [
        100 * (one.accuracy + other.accuracy) / 2
        for one, other in zip(*(analysis.fixed for analysis in analyses), strict=True)
    ]
    (dashed,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert dashed.get_ydata() == pytest.approx([max(means)] * 2)
    assert "best fixed" in [label.get_text() for label in axes.texts]


def test_names_in_the_first_figure_lie_on_no_other_and_on_no_line(space):
    """Methods in one place share a name, those close together move apart."""
    analyses = read_workspace(space).head_analyses
    figure = figures.accuracy_by_loops(figures.LoopPoints(analyses, {"full fine-tune": [0.5], "adapter": [0.505]}))
    figure.canvas.draw()
    (axes,) = figure.axes
    boxes = {label.get_text(): label.get_window_extent() for label in axes.texts if "one loop" not in label.get_text()}
    named = ", ".join(boxes)
    assert all(
        name in named for name in ("fixed depth", "best fixed", "full fine-tune", "adapter", "RecurTrace", "ACT")
    )
    for one, other in combinations(boxes, 2):
        assert not boxes[one].overlaps(boxes[other]), f"{one} lies on {other}"
    for line in axes.lines:
        if line.get_linestyle() in ("-", "--"):
            path = axes.transData.transform_path(line.get_path().interpolated(50))
            for name, box in boxes.items():
                assert not path.intersects_bbox(box.shrunk(0.9, 0.6), filled=False), f"{name} lies on a line"


def test_what_one_scale_lacks_is_said(tmp_path):
    for scale in ("0.6B", "4B"):
        records(tmp_path / scale / "evaluations" / "full", 0.4, ["1"], "base")
        records(tmp_path / scale / "evaluations" / "loop", 0.6, ["1", "2"], base=f"Qwen/Qwen3-{scale}-Base")
    records(tmp_path / "0.6B" / "evaluations" / "plain-loop", 0.5, ["1", "2"])
    records(tmp_path / "4B" / "evaluations" / "window-1", 0.5, ["1", "2"])
    records(tmp_path / "4B" / "evaluations" / "block-3-5", 0.5, ["1", "2"])
    write_record(tmp_path / "0.6B" / "cost.json", CostReport(9, 5, [CostAtDepth(1, 1, 1.0, 1.0, 1)]))
    tables = {one.name: one for one in all_tables(*read_studies(tmp_path))}
    assert {row[1] for row in tables["memory"].rows} == {"0.6B"}
    note = tables["memory"].note
    assert "Not complete: 4B needs evaluations/plain-loop with --loops 2 (recurtrace evaluate)." in note
    assert "Beyond eight steps, 0.6B needs p_hop, symbolic, arithmetic of both runs with --loops k." in note
    absent = ", ".join(
        f"evaluations/{run}" for run in ("no-qk-norm", "frozen-slopes", "open-gates", "window-2", "window-5")
    )
    assert f"there is no {absent} with --loops 2" in tables["ablation-4B"].note
    assert "there is no evaluations/block-24-26 with --loops 2" in tables["blocks-4B"].note
    assert not any(table.beside for name, table in tables.items() if name != "cost-0.6B")  # two tasks, not 22


def test_a_table_that_the_paper_has_at_one_scale_is_missing_there(space, tmp_path):
    shutil.copytree(space, tmp_path / "0.6B")
    records(tmp_path / "1.7B" / "evaluations" / "loop", 0.6, ["1", "2"], base="Qwen/Qwen3-1.7B-Base")
    tables = all_tables(*read_studies(tmp_path))
    missing = {table.title for table in tables if table.missing}
    assert "Adaptive depth: all methods (1.7B)" in missing
    assert not any("(0.6B)" in title for title in missing)
    assert "main-0.6B" in {table.name for table in tables}


def test_tasks_need_an_analysis_of_their_own(space):
    assert table(space, "tasks").missing.startswith("task-analysis/*.json")


def test_a_model_without_a_head_has_the_comparison_alone(space, tmp_path):
    found = analyse(made("heldout", 0), named(made("test", 5)), {}, **TRAINED)
    write_record(tmp_path / "analysis" / "seed-0.json", found)
    tables = {one.name: one for one in all_tables(read_workspace(tmp_path))}
    assert [row[0] for row in tables["main"].rows][:2] == ["Fixed depth, T=1", "Fixed depth, T=2"]
    for name in ("calibration", "histogram", "transition", "reconciliation", "difficulty", "thresholds"):
        assert "of a model with a halting head" in tables[name].missing
    other = replace(Analysis.read(tmp_path / "analysis" / "seed-0.json"), items=3)
    write_record(tmp_path / "analysis" / "seed-1.json", other)
    with pytest.raises(RecurTraceError, match="of different items or depths"):
        read_workspace(tmp_path)


def test_the_page_is_self_contained(space):
    page = (space / "report" / "report.html").read_text()
    assert "Test &amp; &lt;report&gt;" in page
    links = re.findall(r'(?:src|href)="([^"#][^"]*)"', page)
    assert not [link for link in links if not link.startswith("#")]
    assert not re.search(r"@import|url\(http", page)
    assert page.count("<svg") == 5
    assert "currentColor" in page
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_latex_and_figures_are_there(space):
    tex = (space / "report" / "report.tex").read_text()
    assert tex.count(r"\begin{table}") == tex.count(r"\end{table}") == 18
    body = re.sub(r"\\[%&#_]", "", tex)
    assert not re.search(r"(?<!\\)[#_](?![^{]*\})", body.split("xcolor}.")[1].replace("tab:", ""))
    for name in ("loops", "buckets", "difficulty", "threshold", "cost"):
        assert (space / "report" / "figures" / f"{name}.png").stat().st_size > 5000


EVIL = r"\input{/etc/passwd} $\frac{ <script>x</script> [a](b) | `c` a_b ^~%" + "\n# d"


def test_texts_from_files_are_shown_and_not_obeyed(space, tmp_path):
    found = Analysis.read(space / "analysis" / "seed-0.json")
    tasks = [replace(task, task=EVIL) for task in found.tasks]
    buckets = [replace(bucket, bucket=EVIL * 100) for bucket in found.buckets]
    for kind in ("analysis", "task-analysis"):
        write_record(tmp_path / kind / "0.json", replace(found, command=EVIL, tasks=tasks, buckets=buckets))
    windows = [Window(2, 0.1, 1.0)]
    probe = BlockProbe([0.1] * 6, [0.0] * 6, 2, 1, 4, 3, windows, 0.9, 5, "distance", model=EVIL, data=EVIL * 100)
    write_record(tmp_path / "probe.json", probe)
    records(tmp_path / "evaluations" / "$x", 0.6, ["1", "2"])
    records(tmp_path / "evaluations" / "loop", 0.6, ["1", "2"])
    records(tmp_path / "evaluations" / "full", 0.4, ["1"], "base")
    out = tmp_path / "report"
    report(tmp_path, out, EVIL + "\ud800")
    assert {file.stem for file in (out / "figures").glob("*.png")} == {
        "loops", "buckets", "difficulty", "threshold", "probe"
    }  # fmt: skip
    tex, md, page = ((out / f"report.{kind}").read_text() for kind in ("tex", "md", "html"))
    assert r"\textbackslash{}input\{/etc/passwd\} \$\textbackslash{}frac\{ \textless{}script" in tex
    assert r"a\_b \textasciicircum{}\textasciitilde{}\% \# d" in tex
    assert not re.search(r"\\(input|frac)\b", tex)
    assert md.startswith(
        r"# \\input{/etc/passwd} \$\\frac{ &lt;script&gt;x&lt;/script&gt; [a\](b) \| \`c\` a_b ^~% # d?"
    )
    code = re.findall(r"^``.*``$", md, flags=re.MULTILINE)
    assert "<script>" not in md.replace(code[0], "")  # as it is in a span of code only
    assert "<script>" not in page


def test_a_report_is_whole_or_not_there(space, tmp_path, monkeypatch):
    out, small = tmp_path / "report", tmp_path / "work"
    small.mkdir()
    shutil.copyfile(space / "cost.json", small / "cost.json")
    with monkeypatch.context() as patch:
        patch.setattr(figures, "as_bytes", lambda figure, kind: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            report(small, out)
    assert not out.exists()
    (out / "figures").mkdir(parents=True)
    (out / "figures" / "mine.png").touch()
    with pytest.raises(RecurTraceError, match="is not empty and holds no report; .* --overwrite"):
        report(small, out)
    report(small, out, overwrite=True)
    assert (out / "figures" / "mine.png").exists()


def test_figures_of_an_earlier_report_are_removed_and_no_others(space, tmp_path):
    out, two = tmp_path / "report", tmp_path / "two"
    for scale in ("0.6B", "1.7B"):
        (two / scale).mkdir(parents=True)
        shutil.copyfile(space / "cost.json", two / scale / "cost.json")
    report(two, out)
    names = {f"cost-{scale}.{kind}" for scale in ("0.6B", "1.7B") for kind in ("png", "svg")}
    assert {file.name for file in (out / "figures").iterdir()} == names
    (out / "figures" / "cost-mine.png").touch()
    assert out / "report.html" in report(two / "1.7B", out)
    assert {file.name for file in (out / "figures").iterdir()} == {"cost.png", "cost.svg", "cost-mine.png"}


def test_an_empty_folder_gets_a_sentence(tmp_path):
    with pytest.raises(RecurTraceError, match="nothing to report on"):
        report(tmp_path, tmp_path / "out")
    with pytest.raises(RecurTraceError, match="no folder"):
        report(tmp_path / "x", tmp_path / "out")
    (tmp_path / "probe.json").write_text("{")
    with pytest.raises(RecurTraceError, match="is not JSON"):
        report(tmp_path, tmp_path / "out")


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_shows_it_without_sideways_scrolling(space):
    """On a phone's width the page itself does not scroll sideways; wide tables scroll in their frames."""
    page = (space / "report" / "report.html").read_text()
    measured = "document.documentElement.scrollWidth + ' ' + document.querySelectorAll('svg').length"
    probe = f"<script>document.title = {measured}</script>"
    file = space / "report" / "probe.html"
    file.write_text(page.replace("</body>", probe + "</body>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=500,900", "--virtual-time-budget=3000"]
    flags += ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    done = subprocess.run(
        [CHROMIUM, *flags, "--dump-dom", f"file://{file}"], capture_output=True, text=True, timeout=120
    )
    width, drawings = map(int, re.search(r"<title>(\d+) (\d+)</title>", done.stdout).groups())
    assert width <= 500
    assert drawings == 5
