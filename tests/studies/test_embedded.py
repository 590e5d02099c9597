"""The study of the embedded base, as its command runs it, with a few steps and items of everything."""

import sys

import pytest
import yaml

from recurtrace.errors import RecurTraceError
from recurtrace.report.contents import all_tables
from recurtrace.report.workspace import read_workspace
from studies import embedded

TASKS = ("where_thing", "where_left", "who_has", "where_person")
MIXTURE = {"sources": [{"task": task, "count": 400} for task in TASKS], "heldout": 40, "audit": []}
SMALL = [
    "seeds=[0, 1]", "train.steps=4", "train.curriculum=[]", "train.evaluate_every=4",
    "train.evaluate_on=20", "train.evaluate_depths=[1, 2]", "head_examples=60", "heldout=60", "test=48", "depth=8",
    "task_items=24", "max_depth=8", "loops=[1, 2, 4, 16, adaptive]", "distill.steps=20",
    "full_test=false",  # thousands of items
]  # fmt: skip


@pytest.mark.slow
def test_one_command_fills_every_table(tmp_path, monkeypatch, capsys):
    page, readme = tmp_path / "results.md", tmp_path / "README.md"
    page.write_text("<!-- embedded study: begin -->\n<!-- embedded study: end -->\n")
    readme.write_text("<!-- study: begin -->\n<!-- study: end -->\n")
    (tmp_path / "mixture.yaml").write_text(yaml.safe_dump(MIXTURE))
    places = [f"mixture={tmp_path / 'mixture.yaml'}", f"out={tmp_path / 'study'}"]
    changes = [f"--set={change}" for change in [*SMALL, *places]]
    monkeypatch.setattr(sys, "argv", ["embedded", *changes, "--page", str(page), "--readme", str(readme)])
    embedded.main()
    for title in ("The paper's claims, here", "Adaptive depth: all methods", "What training took"):
        assert title in page.read_text()
    assert "2 training seeds" in readme.read_text()
    assert [table.name for table in all_tables(read_workspace(tmp_path / "study")) if table.missing] == ["full-test"]

    capsys.readouterr()
    embedded.main()
    told = capsys.readouterr().out.split("Written by")[0].splitlines()
    assert told
    assert all(line.endswith(": already done") for line in told)


def test_a_study_that_the_claims_cannot_read_is_refused_at_once(tmp_path, monkeypatch):
    changes = [f"--set=out={tmp_path / 'study'}", "--set=loops=[1, 2, 4, adaptive]"]
    monkeypatch.setattr(sys, "argv", ["embedded", *changes])
    with pytest.raises(RecurTraceError, match="the claims need evaluations at 16"):
        embedded.main()
    assert not (tmp_path / "study").exists()
