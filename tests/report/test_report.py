"""A report from files alone: tables and figures where runs are there, and what is missing where they are not."""

import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from recurtrace.errors import RecurTraceError
from recurtrace.evaluation.analysis import analyse
from recurtrace.halting.oracle import Oracle
from recurtrace.halting.sweep_files import Sweep
from recurtrace.records import Analysis, Budget, CostAtDepth, CostReport, DepthResult, ItemRecord, write_record
from recurtrace.report.figures import gains_by_scale
from recurtrace.report.render import report
from recurtrace.report.run_tables import scale_gains
from recurtrace.report.tables import all_tables
from recurtrace.report.workspace import read_workspace
from tests.halting.test_comparison import head, made

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TRAINED = {"oracle": Oracle(), "supervised": [1, 2, 4, 6]}


def named(sweep: Sweep) -> Sweep:
    return replace(
        sweep,
        manifest=replace(sweep.manifest, data="mathqa"),
        items=[replace(item, bucket="easy", answer_tokens=2) for item in sweep.items],
    )


def records(folder, accuracy, loops, kind="looped"):
    folder.mkdir(parents=True)
    (folder / "evaluation.json").write_text(
        json.dumps({"items": 20, "loops": loops, "kind": kind, "model": folder.name})
    )
    lines = []
    for i in range(20):
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
    breadth = {row[0]: row for row in table(space, "breadth").rows}
    assert breadth["classic"][2:5] == ["40.0", "60.0", "+20.0"]
    assert table(space, "memory").rows[0][-2] == "+10.0"
    assert table(space, "budget").rows == [[run, "5", "3", "9", "1.00e+09", "1.0", "1.00"] for run in ("full", "loop")]
    assert table(space, "cost").rows == [["1", "1", "1.00×", "1.00×", "1"], ["2", "2", "2.00×", "2.00×", "2"]]
    assert table(space, "cost").note == "one thread"


def test_what_is_missing_is_named(space):
    assert "<scale>-full" in table(space, "scaling").missing
    page = (space / "report" / "report.html").read_text()
    assert "Not available" in page
    assert "evaluations/&lt;scale&gt;-loop" in page
    assert "Not available" in (space / "report" / "report.md").read_text()


def test_scales_are_pairs_of_runs(tmp_path):
    for scale, baseline in (("0.6B", 0.4), ("4B", 0.3)):
        records(tmp_path / "evaluations" / f"{scale}-full", baseline, ["1"], "base")
        records(tmp_path / "evaluations" / f"{scale}-loop", 0.6, ["1", "2"])
    records(tmp_path / "evaluations" / "8B-loop", 0.6, ["1", "2"])  # without its baseline
    gains = scale_gains(read_workspace(tmp_path))
    assert [(one.scale, one.baseline[0].accuracy, one.looped[0].accuracy) for one in gains] == [
        ("0.6B", 40.0, 60.0),
        ("4B", 30.0, 60.0),
    ]
    assert table(tmp_path, "scaling").rows[1] == ["4B", "30.0", "60.0", "+30.0", "-0.300"]
    heights = [bar.get_height() for bar in gains_by_scale(gains).axes[0].patches]
    assert heights == pytest.approx([20.0, 30.0])


def test_a_model_without_a_head_has_the_comparison_alone(space, tmp_path):
    found = analyse(made("heldout", 0), named(made("test", 5)), {}, **TRAINED)
    write_record(tmp_path / "analysis" / "seed-0.json", found)
    tables = {one.name: one for one in all_tables(read_workspace(tmp_path))}
    assert [row[0] for row in tables["main"].rows][:2] == ["Fixed depth, T=1", "Fixed depth, T=2"]
    for name in ("tasks", "calibration", "histogram", "transition", "reconciliation", "difficulty", "thresholds"):
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
    assert tex.count(r"\begin{table}") == tex.count(r"\end{table}") == 13
    body = re.sub(r"\\[%&#_]", "", tex)
    assert not re.search(r"(?<!\\)[#_](?![^{]*\})", body.split("booktabs}.")[1].replace("tab:", ""))
    for name in ("loops", "buckets", "difficulty", "threshold", "cost"):
        assert (space / "report" / "figures" / f"{name}.png").stat().st_size > 5000


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
