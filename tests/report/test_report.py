"""A report from files alone: tables and figures where runs are there, and what is missing where they are not."""

import json
import re
import shutil
import subprocess

import pytest

from recurtrace.errors import RecurTraceError
from recurtrace.evaluation.analysis import analyse
from recurtrace.records import DepthResult, ItemRecord
from recurtrace.report.render import report
from recurtrace.report.tables import all_tables
from recurtrace.report.workspace import read_workspace
from tests.evaluation.test_comparison import head, made

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


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
    (folder / "analysis").mkdir(parents=True)
    heads = {None: head(2.0), "act": head(0.0, -9.0, "act"), "tah": head(-2.0, 0.0, "tah")}
    for seed in range(2):
        heldout, test = made("heldout", seed), made("test", seed + 5)
        for sweep in (heldout, test):
            sweep.manifest["data"] = "mathqa"
            for item in sweep.items:
                item |= {"bucket": "easy", "answer_tokens": 2}
        found = analyse(heldout, test, heads, [1, 2, 4, 6]) | {"command": "recurtrace compare <model>"}
        (folder / "analysis" / f"seed-{seed}.json").write_text(json.dumps(found))
    records(folder / "evaluations" / "loop", 0.6, ["1", "2"])
    records(folder / "evaluations" / "full", 0.4, ["1"], "base")
    records(folder / "evaluations" / "plain-loop", 0.5, ["1", "2"])
    for run in ("loop", "full"):
        budget = {
            "trained_parameters": 5,
            "steps": 3,
            "tokens": 9,
            "total_flops": 1e9,
            "seconds": 60,
            "peak_bytes": 2**30,
        }
        (folder / "runs" / run).mkdir(parents=True)
        (folder / "runs" / run / "budget.json").write_text(json.dumps(budget))
    depths = [
        {"loops": t, "layer_passes": t, "flops_ratio": t, "time_ratio": t, "kv_bytes_per_token": t} for t in (1, 2)
    ]
    (folder / "cost.json").write_text(json.dumps({"depths": depths}))
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
    assert len(table(space, "budget").rows) == 2


def test_what_is_missing_is_named(space):
    assert "<scale>-full" in table(space, "scaling").missing
    page = (space / "report" / "report.html").read_text()
    assert "Not there yet" in page
    assert "evaluations/&lt;scale&gt;-loop" in page
    assert "Not there yet" in (space / "report" / "report.md").read_text()


def test_the_page_is_self_contained(space):
    page = (space / "report" / "report.html").read_text()
    assert "Test &amp; &lt;report&gt;" in page
    links = re.findall(r'(?:src|href)="([^"#][^"]*)"', page)
    assert not [link for link in links if not link.startswith("#")]
    assert not re.search(r"@import|url\(http", page)
    assert page.count("<svg") == 4
    assert "currentColor" in page
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_latex_and_figures_are_there(space):
    tex = (space / "report" / "report.tex").read_text()
    assert tex.count(r"\begin{table}") == tex.count(r"\end{table}") == 12
    body = re.sub(r"\\[%&#_]", "", tex)
    assert not re.search(r"(?<!\\)[#_](?![^{]*\})", body.split("booktabs}.")[1].replace("tab:", ""))
    for name in ("loops", "difficulty", "threshold", "cost"):
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
    assert drawings == 4
