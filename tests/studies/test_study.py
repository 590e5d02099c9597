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


def test_a_study_that_the_claims_cannot_read_is_refused_at_once(tmp_path, monkeypatch):
    changes = [f"--set=out={tmp_path / 'study'}", "--set=loops=[1, 2, 4, adaptive]"]
    monkeypatch.setattr(sys, "argv", ["study", "embedded", *changes])
    with pytest.raises(RecurTraceError, match="the claims need evaluations at 16"):
        study.main()
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("archive", sorted(ARCHIVES.glob("*.tar.xz")), ids=lambda file: file.name.partition(".")[0])
def test_the_results_page_is_what_the_kept_records_give(archive, tmp_path):
    pages = [Path("docs/results.md"), Path("README.md")]
    copies = [tmp_path / page.name for page in pages]
    for page, copy in zip(pages, copies, strict=True):
        copy.write_text(page.read_text())
    with opened(archive) as folder:
        study.write(archive.name.partition(".")[0], read_workspace(folder), *copies)
    for page, copy in zip(pages, copies, strict=True):
        assert copy.read_text() == page.read_text(), f"run `make results`: {page} is not of {archive.name}"
