"""Bad rows and files of data."""

import json
import time

import pytest

from recurtrace.data.benchmarks import TASKS
from recurtrace.data.loading import load
from recurtrace.data.mixture import mixture_sizes, read_examples
from tests.fuzz.outcome import command, outcome, put, written

ROWS = [
    "[1, 2]",
    '"text"',
    "null",
    "7",
    '{"question": null, "answer": "#### 1"}',
    '{"question": 5, "answer": "#### 1"}',
    '{"question": "?", "answer": NaN}',
    '{"question": "?", "answer": ["#### 1"]}',
    '{"question": "\\ud800", "answer": "#### 1"}',
    "[" * 10**5,
    "{",
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[:40])
def test_rows_of_a_benchmark(tmp_path, row):
    file = tmp_path / "openai__gsm8k" / "main" / "test.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text('{"question": "1?", "answer": "#### 1"}\n' + row + "\n")
    said = outcome(lambda: load("gsm8k", "test", tmp_path))
    assert "line 2" in said
    assert file.name in said
    file.write_bytes(b'{"question": "1?", "answer": "#### 1"}\n\xff\xfe\n')
    assert "is not UTF-8" in outcome(lambda: load("gsm8k", "test", tmp_path))


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.hub])
@pytest.mark.parametrize("value", [None, 5, 0.5, [], {}, [None], "", True, {"title": 3}, [[]]], ids=str)
def test_every_benchmark_with_fields_of_another_kind(tmp_path, name, value):
    task = TASKS[name]
    split = next(iter(task.splits))
    file = tmp_path / task.hub.replace("/", "__") / task.configs[0] / f"{task.splits[split]}.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(dict.fromkeys(task.columns, value)) + "\n")
    outcome(lambda: load(name, split, tmp_path))


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_own_data_has_no_nan(tmp_path, value):
    put(
        tmp_path, {"own.yaml": "{test: own.jsonl, prompt: q, answer: a}", "own.jsonl": f'{{"q": "1?", "a": {value}}}\n'}
    )
    assert "line 1 of" in outcome(lambda: load(str(tmp_path / "own.yaml"), "test"))


def test_a_dataset_that_cannot_be_reached_is_said_so_at_once(monkeypatch):
    def refused(*_, **__):
        raise OSError("refused")

    monkeypatch.setattr("recurtrace.hub.getproxies", dict)
    monkeypatch.setattr("socket.create_connection", refused)
    began = time.monotonic()
    assert "Go online, or pass --data-dir" in command("data", "show", "gsm8k")
    assert time.monotonic() - began < 10


MIXTURE = {"recipe": {"sources": [{"task": "p_hop"}]}, "complete": True, "audit": {"sha256": ""}}


@pytest.mark.parametrize(
    "manifest",
    [
        {"sources": {"p_hop": 5}},
        {"sources": {"p_hop": {"files": [], "train": 1}}},
        {"sources": {"p_hop": {"files": {"heldout/p_hop.parquet": 3}, "train": 1}}},
        {"sources": []},
        {"sources": {}, "audit": []},
        {"sources": {}, "recipe": 3},
    ],
    ids=str,
)
def test_manifests_of_mixtures(tmp_path, manifest):
    written(tmp_path, "manifest.json", {**MIXTURE, **manifest})
    for call in (lambda: read_examples(tmp_path, "heldout"), lambda: mixture_sizes(tmp_path)):
        assert "is not the manifest of a mixture" in outcome(call)


def test_a_table_of_a_mixture_that_was_changed(tmp_path):
    facts = {"train": 1, "files": {"heldout/p_hop.parquet": {"bytes": 4}}}
    written(tmp_path, "manifest.json", {**MIXTURE, "sources": {"p_hop": facts}})
    put(tmp_path, {"heldout/p_hop.parquet": "PAR1"})
    assert "p_hop.parquet is damaged" in outcome(lambda: read_examples(tmp_path, "heldout"))
