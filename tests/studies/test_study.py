"""Studies: the one of the embedded base with a few steps and items of everything, and pages made of kept records."""

import sys
from pathlib import Path

import pytest
import yaml

from recurtrace.errors import RecurTraceError
from recurtrace.report.contents import all_tables
from recurtrace.report.workspace import read_workspace
from studies import study
from studies.records import ARCHIVES, opened, pack

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "results.md", ROOT / "README.md"]
TASKS = ("where_thing", "where_left", "who_has", "where_person")
MIXTURE = {"sources": [{"task": task, "count": 400} for task in TASKS], "heldout": 40, "audit": []}
SMALL = [
    "seeds=[0, 1]", "train.steps=4", "train.curriculum=[]", "train.evaluate_every=4",
    "train.evaluate_on=20", "train.evaluate_depths=[1, 2]", "head_examples=60", "heldout=60", "test=48", "depth=8",
    "task_items=24", "max_depth=8", "loops=[1, 2, 4, 16, adaptive]", "distill.steps=20",
    "full_test=false",  # thousands of items
    "same_start=true", "ablations.block-3-5={loop_start: 3}", "ablations.window-1={loop_memory_window: 1}",
]  # fmt: skip


@pytest.mark.slow
def test_one_command_fills_every_table(tmp_path, monkeypatch, capsys):
    page, readme = tmp_path / "results.md", tmp_path / "README.md"
    page.write_text("<!-- embedded study: begin -->\n<!-- embedded study: end -->\n")
    readme.write_text("<!-- embedded study: begin -->\n<!-- embedded study: end -->\n")
    (tmp_path / "mixture.yaml").write_text(yaml.safe_dump(MIXTURE))
    places = [f"mixture={tmp_path / 'mixture.yaml'}", f"out={tmp_path / 'study'}"]
    changes = [f"--set={change}" for change in [*SMALL, *places]]
    monkeypatch.setattr(sys, "argv", ["study", "embedded", *changes, "--page", str(page), "--readme", str(readme)])
    study.main()
    for title in ("The paper's claims, here", "Adaptive depth: all methods", "What training took"):
        assert title in page.read_text()
    assert "2 training seeds" in readme.read_text()
    assert [table.name for table in all_tables(read_workspace(tmp_path / "study")) if table.missing] == ["full-test"]

    pack(tmp_path / "study", tmp_path / "kept.tar.xz")
    with opened(tmp_path / "kept.tar.xz") as folder:
        again = study.write("embedded", read_workspace(folder), None, None)
    assert again in page.read_text()

    capsys.readouterr()
    study.main()
    told = capsys.readouterr().out.split("Written by")[0].splitlines()
    assert told
    assert all(line.endswith(": already done") for line in told)


def test_a_study_that_the_claims_cannot_read_is_refused_at_once(tmp_path, monkeypatch, capsys):
    changes = [f"--set=out={tmp_path / 'study'}", "--set=loops=[1, 2, 4, adaptive]"]
    monkeypatch.setattr(sys, "argv", ["study", "embedded", *changes])
    with pytest.raises(SystemExit, match="1"):
        study.main()
    assert capsys.readouterr().err.startswith("error: the claims need evaluations at 16")
    assert not (tmp_path / "study").exists()


def test_a_page_without_markers_is_refused_at_once(tmp_path, monkeypatch, capsys):
    (tmp_path / "page.md").write_text("no markers\n")
    out = tmp_path / "study"
    monkeypatch.setattr(sys, "argv", ["study", "ablations", f"--set=out={out}", "--page", str(tmp_path / "page.md")])
    with pytest.raises(SystemExit, match="1"):
        study.main()
    assert "has no markers <!-- ablations study: begin -->" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("name", study.STUDIES)
def test_the_pages_have_markers_for_every_study(name):
    study.check_pages(name, *PAGES)


def test_a_study_that_begins_as_a_copy_says_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecurTraceError, match="'runs/halting' is missing, which this study begins with"):
        study.run(study.STUDIES["halting-wide"], [], share=False)
    made = tmp_path / "runs" / "halting" / "stages"
    made.mkdir(parents=True)
    (made / "data.json").write_text("{}")
    (made / "data.lock").write_text("")
    monkeypatch.setattr(study.Pipeline, "run", lambda self, share: None)
    assert study.run(study.STUDIES["halting-wide"], [], share=False) == Path("runs/halting-wide")
    assert [file.name for file in Path("runs/halting-wide/stages").iterdir()] == ["data.json"]


@pytest.mark.parametrize("archive", sorted(ARCHIVES.glob("*.tar.xz")), ids=lambda file: file.name.partition(".")[0])
def test_the_results_page_is_what_the_kept_records_give(archive, tmp_path):
    copies = [tmp_path / page.name for page in PAGES]
    for page, copy in zip(PAGES, copies, strict=True):
        copy.write_text(page.read_text())
    with opened(archive) as folder:
        study.write(archive.name.partition(".")[0], read_workspace(folder), *copies)
    for page, copy in zip(PAGES, copies, strict=True):
        assert copy.read_text() == page.read_text(), f"run `make results`: {page.name} is not of {archive.name}"
