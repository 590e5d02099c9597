"""Whatever a config, a recipe, a record or a manifest holds: it works, or one sentence says why not."""

import json
import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recurtrace.data.answers import SCORERS
from recurtrace.data.loading import load
from recurtrace.data.mixture import MixtureRecipe, read_examples
from recurtrace.data.own import OwnTask
from recurtrace.depths import parse_depths
from recurtrace.halting.sweep_files import read_sweep
from recurtrace.model.base import read_config
from recurtrace.pipeline import PipelineRecipe
from recurtrace.records import MANIFEST, Analysis, BlockProbe, Budget, CostReport, read_evaluation
from recurtrace.report.contents import all_tables
from recurtrace.report.workspace import read_workspace
from recurtrace.stages import EvaluateSettings, SweepSettings
from recurtrace.training.recipe import PretrainRecipe, TrainRecipe
from tests.conftest import LOOP, TINY
from tests.fuzz.outcome import command, files, outcome, written

many = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["", "\x00", "../x", "/", "{", "1-9", "auto", "adaptive", "²", "nan", "a" * 3000]),
)
"""One value of any kind that JSON or YAML can hold."""
value = st.recursive(
    odd, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)


def fields(names, kept=None):
    """Some of the named fields with values of any kind, over `kept`, which is right."""
    return st.dictionaries(st.sampled_from(sorted(names)), value, max_size=3).map(lambda some: {**(kept or {}), **some})


BASE = {**TINY, "model_type": "llama"}
LOOPED = {"model_type": "recurtrace", "text_config": BASE, "base_model_name_or_path": "base", **LOOP}


@many
@given(fields({*BASE, "dtype", "rope_parameters", "layer_types", "auto_map", "hidden_act", "rms_norm_eps"}, BASE))
def test_configs_of_bases(tmp_path, config):
    written(tmp_path, "config.json", config)
    outcome(lambda: read_config(str(tmp_path)))
    assert files(tmp_path).keys() == {"config.json"}


LOOP_FIELDS = {"loop_num_layers", "loop_train_max", "loop_train_mean", "loop_memory", "loop_depth_limit", "x"}
HALTING = {f"loop_halting_{name}" for name in ("heads", "threshold", "max_depth", "aux_depths")}


@many
@given(fields({*LOOPED, *LOOP_FIELDS, *HALTING, "dtype", "auto_map"}, LOOPED))
def test_configs_of_looped_models(tmp_path, config):
    written(tmp_path, "config.json", config)
    command("info", tmp_path)
    assert files(tmp_path).keys() == {"config.json"}


RECIPES = {
    TrainRecipe: {"model": "base", "data": "data", "out": "out", "steps": 1},
    PretrainRecipe: {"architecture": {"hidden_size": 32}, "examples": 5, "out": "out", "steps": 1},
    MixtureRecipe: {"sources": [{"task": "p_hop", "count": 5}]},
    PipelineRecipe: {"base": "base", "out": "out", "mixture": "mixture.yaml", "train": {"steps": 1}},
    OwnTask: {"file": "a.jsonl", "prompt": "question", "answer": "answer"},
    SweepSettings: {"model": "looped", "data": "p_hop", "out": "out"},
    EvaluateSettings: {"model": "looped", "data": "p_hop", "out": "out"},
}


@many
@given(st.data())
@pytest.mark.parametrize("kind", RECIPES, ids=lambda kind: kind.__name__)
def test_recipes(tmp_path, kind, data):
    recipe = data.draw(fields({*kind.model_fields, "x"}, RECIPES[kind]))
    file = written(tmp_path, "recipe.yaml", recipe)
    outcome(lambda: kind.read(file))
    outcome(lambda: kind.check(data.draw(value), "recipe"))
    assert files(tmp_path).keys() == {"recipe.yaml"}


@many
@given(st.lists(st.text(alphabet="abs:=.[]{}&*!%\\n- 019\\t\"'", max_size=12), max_size=3))
def test_changes_of_a_recipe(changes):
    outcome(lambda: TrainRecipe.read_with("paper/qwen3-4b-loop", changes))


@many
@given(st.text(max_size=40))
def test_recipes_of_any_text(tmp_path, text):
    (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8", errors="surrogatepass")
    assert outcome(lambda: MixtureRecipe.read(tmp_path / "recipe.yaml"))


@many
@given(st.text(alphabet="0123456789-, kadptive²½", max_size=12) | value)
def test_depths(text):
    outcome(lambda: parse_depths(text, words=("adaptive", "k")))


@many
@given(st.text(max_size=12), st.text(alphabet=string.printable, max_size=12), st.sampled_from(sorted(SCORERS)))
def test_scorers_take_any_answer(prediction, reference, scorer):
    assert SCORERS[scorer](prediction, reference) in (True, False)


@many
@given(
    st.lists(fields({"question", "answer", "x"}, {"question": "?", "answer": "#### 1"}) | value, min_size=1, max_size=3)
)
def test_records_of_benchmarks(tmp_path, records):
    file = tmp_path / "openai__gsm8k" / "main" / "test.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    outcome(lambda: load("gsm8k", "test", tmp_path))
    own = OwnTask(test=file, prompt="Q: {question}", answer="answer")
    outcome(lambda: load(own.row, "test"))


MANIFESTS = {
    "manifest.json": {"split": "test", "depths": [1], "complete": True, "parts": 1},
    MANIFEST: {"items": 0, "loops": ["1"]},
}


@many
@given(
    fields({"split", "depths", "complete", "parts", "sources", "recipe", "x"}, MANIFESTS["manifest.json"]) | value,
    fields({"items", "loops", "kind", "x"}, MANIFESTS[MANIFEST]) | value,
)
def test_manifests(tmp_path, sweep, evaluation):
    written(tmp_path, "manifest.json", sweep)
    written(tmp_path, MANIFEST, evaluation)
    (tmp_path / "records.jsonl").write_text("{}\n")
    outcome(lambda: read_sweep(tmp_path))
    outcome(lambda: read_examples(tmp_path, "heldout"))
    outcome(lambda: read_evaluation(tmp_path))


@many
@given(st.data())
@pytest.mark.parametrize("kind", [Analysis, BlockProbe, Budget, CostReport], ids=lambda kind: kind.__name__)
def test_results(tmp_path, kind, data):
    names = list(kind.__dataclass_fields__)
    file = written(tmp_path, "result.json", data.draw(fields(names) | value))
    outcome(lambda: kind.read(file))


RECORD = {"id": "a", "task": "t", "bucket": "", "seed": -1, "prompt_hash": "h", "reference": "x", "answer_tokens": 1}
RECORD |= {"continue_probs": [], "results": [{"loops": "1", "depth": 1, "nll": 1.0, "correct": True, "answer": "x"}]}


@many
@given(
    st.lists(fields({*RECORD, "y"}, RECORD), min_size=1, max_size=2),
    fields({"loops", "kind", "command"}, {"loops": ["1"]}),
)
def test_reports(tmp_path, records, manifest):
    for run in ("loop", "full"):
        folder = tmp_path / "evaluations" / run
        written(folder, MANIFEST, {**manifest, "items": len(records)})
        (folder / "records-00000-of-00001.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    outcome(lambda: all_tables(read_workspace(tmp_path)))
    assert {name.split("/")[0] for name in files(tmp_path)} == {"evaluations"}
