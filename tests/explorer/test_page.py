"""The page as a file, the stage and the commands."""

import json
import re
import socket
import sys
import threading
import webbrowser
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from recurtrace import stages
from recurtrace.cli import app
from recurtrace.cli.explore import _address, _listen
from recurtrace.data.mixture import MixtureRecipe
from recurtrace.errors import RecurTraceError
from recurtrace.explorer.page import SCRIPTS, STATIC, TRACES, empty_page, served_page, whole_page
from recurtrace.stages import ExploreSettings
from recurtrace.stages.explore import EMBEDDED_MIXTURE, _in_words, _pool, _samples


def given(page):
    return json.loads(re.search(r'id="given">(.*?)</script>', page, re.DOTALL)[1])


def test_one_file_holds_everything(made_trace):
    page = whole_page([made_trace])
    assert given(page) == {"alone": True, "traces": [made_trace.as_json()]}
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert page.count("<script>") == len(SCRIPTS)
    assert given(empty_page())["traces"] == json.loads(TRACES)


def test_a_prompt_cannot_break_out_of_the_page(made_trace):
    from dataclasses import replace

    evil = replace(made_trace, prompt="</script><script>alert(1)</script>")
    for page in (whole_page([evil]), served_page([evil])):
        assert "<script>alert(1)" not in page
        assert given(page)["traces"][0]["prompt"] == evil.prompt


def test_every_part_is_linked_and_nothing_else_lies_there():
    page = served_page()
    assert {file.name for file in STATIC.iterdir()} == {*SCRIPTS, "style.css", "index.html"}
    for name in (*SCRIPTS, "style.css"):
        assert f"static/{name}" in page


def test_examples_are_an_easy_and_a_hard_item_of_each_task():
    recipe = MixtureRecipe.read(EMBEDDED_MIXTURE)
    for mixture in (recipe, MixtureRecipe.read("embedded/mixture")):
        samples = _samples(_pool(mixture))
        kinds = {source.task.replace("_", " ") for source in mixture.sources}
        assert {sample.kind for sample in samples} == kinds
        assert all(sample.prompt and sample.reference for sample in samples)
        assert {sample.level.split(",")[0] for sample in samples} == {"easy", "hard"}


def test_turning_examples_are_looked_for_until_there_is_one_of_each(monkeypatch):
    looked_at = []

    def turning(model, tokenizer, items):
        looked_at.extend(items)
        yield []
        yield [(items[0], True)]
        yield [(items[1], True), (items[2], False)]
        raise AssertionError("there is one of each")

    searches, offered = [], []

    def make_app(about, tracer, turns, *_):
        offered.extend(about.samples)
        searches.append(turns)

    model = SimpleNamespace(config=SimpleNamespace(loop_memory=True))
    monkeypatch.setattr("recurtrace.model.loading.load_looped", lambda *_, **__: (model, None))
    monkeypatch.setattr("recurtrace.evaluation.turning.turning", turning)
    monkeypatch.setattr("recurtrace.explorer.server.make_app", make_app)
    stages.explore()
    steps = [[sample.level.split(",")[0] for sample in step] for step in searches[0]()]
    assert steps == [[], ["more loops turn it right"], ["more loops turn it right", "more loops turn it wrong"]]
    assert not {item.prompt for item in looked_at} & {sample.prompt for sample in offered}


def test_difficulties_are_in_words():
    buckets = {"facts=4": "4 facts", "facts=1": "1 fact", "k=4": "k=4", "Level 3": "Level 3", "": ""}
    assert {bucket: _in_words(bucket) for bucket in buckets} == buckets


def test_explore_writes_a_static_page(made_trace, tmp_path):
    made_trace.write(tmp_path / "trace.json")
    out = stages.explore(trace=str(tmp_path / "trace.json"), static=tmp_path / "page.html")
    assert given(out.read_text(encoding="utf-8"))["traces"] == [made_trace.as_json()]


def test_a_static_page_replaces_a_page_and_no_other_file(made_trace, tmp_path):
    made_trace.write(tmp_path / "trace.json")
    for _ in range(2):
        stages.explore(trace=str(tmp_path / "trace.json"), static=tmp_path / "page.html")
    (tmp_path / "thesis.html").write_text("<title>My thesis</title>")
    with pytest.raises(RecurTraceError, match=r"thesis.html' is no page of the explorer and is not overwritten"):
        stages.explore(trace=str(tmp_path / "trace.json"), static=tmp_path / "thesis.html")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"static": "page.html"}, "pass --trace"),
        ({"trace": "a,b,c", "static": "page.html"}, "at most two traces, got 3"),
        ({"trace": "nothing.json", "static": "page.html"}, "cannot read nothing.json"),
        ({"port": 70000}, "port"),
    ],
)
def test_what_cannot_be_explored_is_said(fields, why):
    with pytest.raises(RecurTraceError, match=why):
        stages.explore(**fields)


def test_commands_trace_and_draw(made_trace, tmp_path):
    runner = CliRunner(env={"COLUMNS": "200"})
    file = tmp_path / "trace.json"
    options = ["--max-loops", "3", "--reference", "JF", "--out", str(file), "--memory-off-from", "3"]
    done = runner.invoke(app, ["trace", "embedded/loop", "Start: 3", *options], catch_exceptions=False)
    assert "loss" in done.output
    assert "recurtrace explore --trace" in done.output
    done = runner.invoke(app, ["explore", "--trace", str(file), "--static", str(tmp_path / "t.html")])
    assert "t.html" in done.output
    assert len(given((tmp_path / "t.html").read_text())["traces"][0]["loops"]) == 3


@pytest.mark.parametrize(
    ("options", "terminal", "opened"),
    [([], True, True), ([], False, False), (["--no-browser"], True, False), (["--host", "0.0.0.0"], True, False)],
)
def test_a_browser_is_opened_for_a_page_on_this_machine(monkeypatch, options, terminal, opened):
    asked, done = [], threading.Event()
    monkeypatch.setattr(webbrowser, "open", lambda address: (asked.append(address), done.set()))
    monkeypatch.setattr(sys.modules["recurtrace.cli.explore"], "_has_screen", lambda: terminal)
    monkeypatch.setattr(stages, "explore", lambda settings: None)
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: done.wait(5 if opened else 0.1))
    said = CliRunner().invoke(app, ["explore", "--port", "0", *options], catch_exceptions=False).output
    assert re.search(r"The page is at http://\S+:\d+/", said)
    assert asked == (re.findall(r"http://\S+/", said) if opened else [])


def test_the_address_is_one_that_visitors_can_use():
    assert _address(ExploreSettings(), 80) == "http://127.0.0.1:80/"
    assert _address(ExploreSettings(host="::1"), 80) == "http://[::1]:80/"
    everywhere = ExploreSettings(host="0.0.0.0", token="t")
    assert _address(everywhere, 80) == f"http://{socket.gethostname()}:80/?token=t"


def test_a_port_that_is_taken_is_said():
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(RecurTraceError, match="choose another with --port"),
    ):
        _listen("127.0.0.1", taken.getsockname()[1])


def test_the_documentation_has_every_field_of_a_trace():
    from dataclasses import fields
    from pathlib import Path

    from recurtrace.records import Lens, LoopedLayer, LoopTrace, TracedHead, TracedLayer, TracedLoop

    page = (Path(__file__).parents[2] / "docs" / "exploring.md").read_text(encoding="utf-8")
    for kind in (LoopTrace, TracedLoop, TracedLayer, Lens, LoopedLayer, TracedHead):
        for one in fields(kind):
            assert f"`{one.name}`" in page, f"{kind.__name__}.{one.name}"
