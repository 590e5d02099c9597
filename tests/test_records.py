"""Records are written and read back the same; anything else gets one sentence."""

import json
import math
from dataclasses import MISSING, fields, is_dataclass, replace
from types import UnionType
from typing import Annotated, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurtrace.errors import RecurTraceError
from recurtrace.evaluation.analysis import analyse
from recurtrace.halting.oracle import Oracle
from recurtrace.records import (
    Analysis,
    BlockProbe,
    Budget,
    CostReport,
    HeadAnalysis,
    Record,
    TaskResult,
    Window,
    read_evaluation,
    read_record,
    write_record,
)
from tests.halting.test_comparison import head, made

TRAINED = {"oracle": Oracle(), "supervised": [1, 2, 4, 6]}
KINDS = (Analysis, HeadAnalysis, Budget, CostReport, BlockProbe)

# As the code before records had types wrote them.
OLD_METHOD = {
    "name": "recurtrace", "title": "RecurTrace", "ours": False, "accuracy": 0.5, "correct": 2, "mean_depth": 2.5,
    "nll": None, "net": 1, "p_value": 1.0, "gain_low": -0.1, "gain_high": 0.3, "threshold": 0.4, "floor": 2,
    "seed_accuracy": {"0": 0.5, "1": 0.5},
}  # fmt: skip
SINCE = {"items_sha256", "best_heldout"}
OLD_ANALYSIS = {
    "model": "looped", "data": "mathqa", "items": 4, "depths": 2, "seeds": 2, "heldout_items": 3,
    "best_fixed": "fixed-2", "methods": [OLD_METHOD],
    "fixed": [{"depth": 1, "accuracy": 0.25, "nll": 1.5}, {"depth": 2, "accuracy": 0.5, "nll": 1.25}],
}  # fmt: skip
OLD_HEAD = {
    "threshold": 0.4, "floor": 2,
    "transition": {"both": 1, "gained": 1, "lost": 0, "neither": 2, "net": 1, "points": 25.0, "p_value": 1.0},
    "histogram": {"2": 3, "3": 1},
    "head_calibration": [
        {"depth": 1, "supervised": True, "positive_share": 0.5, "balanced_accuracy": 0.75, "auroc": 0.8},
        {"depth": 2, "supervised": False, "positive_share": 0.0, "balanced_accuracy": None, "auroc": None},
    ],
    "deepened": {
        "items": 0, "oracle_positive": 0, "flipped": 0, "population_positive": 1, "population": 4, "wrong_at_floor": 2,
        "recoverable": 1, "precision": None, "recall": 0.0, "positive_base_rate": 0.25, "flip_rate": None,
        "flip_base_rate": 0.5,
    },
    "composition": {
        "items": 0, "hard": 0, "buckets": {"t easy": 1}, "median_answer_tokens": None,
        "median_answer_tokens_of_all": 2.0,
    },
    "threshold_sweep": [
        {"threshold": 0.01, "mean_depth": 2.0, "loop_cut": 0.0, "gap": None, "gain": 0, "seeds_without_loss": 2}
    ],
    "gap_closed": None,
    "leave_one_out": {
        "mean": 0.1, "low": 0.0, "high": 0.2,
        "folds": [{"threshold": 0.4, "mean_depth": 2.0, "accuracy_gain": 0.1, "nll_gain": 0.0}],
    },
    "operating_points": [
        {
            "name": "main", "threshold": 0.4, "floor": 2, "mean_depth": 2.5, "accuracy": 0.5, "easy": 2.0, "hard": None,
            "gap": None, "seeds": [{"easy": 2.0, "hard": None, "gap": None}], "easy_histogram": {"2": 4},
            "hard_histogram": {},
        }
    ],
    "tasks": [
        {"task": "t", "items": 2, "own_head": False, "fixed": 0.5, "best": 0.5, "best_depth": 2, "adaptive": 0.5,
         "mean_depth": 1.5},
        {"task": "u", "items": 2, "own_head": True, "fixed": 0.5, "best": 0.5, "best_depth": 1},
    ],
    "command": "recurtrace compare model",
}  # fmt: skip
OLD_BUDGET = {
    "method": "loop", "parameters": 1593041, "trained_parameters": 295888, "steps": 800, "batch_size": 8,
    "max_length": 128, "tokens": 819200, "mean_depth": 3.91625, "forward_flops": 5651961959165.315,
    "total_flops": 11237637813190.727, "seconds": 514.555996754003, "peak_bytes": 1129963520, "processes": 1,
    "device": "cpu", "precision": "fp32",
}  # fmt: skip
OLD_COST = {
    "base_parameters": 9, "added_parameters": 5,
    "depths": [{"loops": 2, "layer_passes": 8, "flops_ratio": 1.1, "time_ratio": 1.2, "kv_bytes_per_token": 64}],
    "note": "1 × 128 tokens", "command": "recurtrace cost model",
}  # fmt: skip
OLD_PROBE = {
    "loop_start": 7, "distances": [0.2, 0.1], "errors": [0.01, 0.01], "inputs": 100, "encoder_end": 4,
    "decoder_start": None, "loop_num_layers": 3,
    "windows": [{"start": 7, "mean_distance": 0.06, "nll": 2.1}, {"start": 8, "mean_distance": 0.08, "nll": None}],
    "base_nll": 1.9, "compared_on": 20, "compared_by": "plain loops", "model": "m", "base_fingerprint": "f",
    "data": "c4",
}  # fmt: skip
OLD = [
    (Analysis, OLD_ANALYSIS | {"command": "recurtrace compare model"}),
    (Analysis, OLD_ANALYSIS | OLD_HEAD),
    (Budget, OLD_BUDGET),
    (CostReport, OLD_COST),
    (BlockProbe, OLD_PROBE),
]


@pytest.mark.parametrize(("kind", "old"), OLD)
def test_files_of_older_versions_are_read_and_written_as_they_were(kind, old, tmp_path):
    (tmp_path / "old.json").write_text(json.dumps(old))
    found = kind.read(tmp_path / "old.json")
    write_record(tmp_path / "new.json", found)
    new = json.loads((tmp_path / "new.json").read_text())
    assert new == old
    assert next(iter(new)) == next(iter(old))
    assert kind.read(tmp_path / "new.json") == found


def test_keys_of_an_old_analysis_become_fields(tmp_path):
    (tmp_path / "old.json").write_text(json.dumps(OLD_ANALYSIS | OLD_HEAD))
    found = Analysis.read(tmp_path / "old.json")
    assert isinstance(found, HeadAnalysis)
    assert found.histogram == {2: 3, 3: 1}
    assert found.method("recurtrace").seed_accuracy == {0: 0.5, 1: 0.5}
    assert found.operating_points[0].seeds[0].hard is None
    assert (found.tasks[0].adaptive, found.tasks[1].adaptive) == (0.5, None)
    assert found.command == "recurtrace compare model"
    (tmp_path / "probe.json").write_text(json.dumps(OLD_PROBE))
    assert BlockProbe.read(tmp_path / "probe.json").loop_start == 7


def test_an_analysis_without_a_head_has_no_keys_of_one(tmp_path):
    heldout, test = made("heldout", 0), made("test", 1)
    found = analyse(heldout, test, {"act": head(0.0, -9.0, "act")}, **TRAINED)
    assert type(found) is Analysis
    write_record(tmp_path / "a.json", found)
    assert Analysis.read(tmp_path / "a.json") == found
    assert json.loads((tmp_path / "a.json").read_text()).keys() == {*OLD_ANALYSIS, "command", *SINCE}
    wrong = analyse(heldout, test, {None: head(2.0, 0.0, "act")}, **TRAINED)
    assert type(wrong) is Analysis  # a head trained otherwise is not the oracle's


def test_an_analysis_with_a_head_is_read_back_the_same(tmp_path):
    """Every item is right after one loop, so nothing can be said of hard ones; one task has no held-out items."""
    heldout, test = made("heldout", 0), made("test", 1)
    test = replace(test, items=[replace(item, task=("t", "u")[i % 2]) for i, item in enumerate(test.items)])
    test["correct"][:, 0] = True
    found = analyse(heldout, test, {None: head(2.0)}, **TRAINED)
    assert isinstance(found, HeadAnalysis)
    assert found.operating_points[0].hard is None
    write_record(tmp_path / "a.json", found)
    assert Analysis.read(tmp_path / "a.json") == found
    written = json.loads((tmp_path / "a.json").read_text())
    assert written.keys() == OLD_ANALYSIS.keys() | OLD_HEAD.keys() | {
        "worked",
        "heldout_calibration",
        "matched",
        "rations",
        *SINCE,
    }
    assert ["adaptive" in row for row in written["tasks"]] == [True, False]


def values(kind):
    """Any value of a type that fields of records have; floats without NaN, which JSON does not have."""
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return st.builds(kind, **{field.name: values(field.type) for field in fields(kind)})
    if origin is Annotated:  # the one list that may not be empty
        return st.lists(values(get_args(parts[0])[0]), min_size=1, max_size=3)
    if origin is list:
        return st.lists(values(parts[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values(parts[0]), values(parts[1]), max_size=3)
    if origin is UnionType:
        return st.one_of([values(part) for part in parts])
    if origin is Literal:
        return st.sampled_from(parts)
    return st.floats(allow_nan=False, allow_infinity=False) if kind is float else st.from_type(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_trip_changes_nothing(kind, tmp_path_factory):
    file = tmp_path_factory.mktemp("records") / "record.json"

    @given(values(kind))
    def check(record):
        write_record(file, record)
        assert kind.read(file) == record

    check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it is not JSON"),
        (b'{"items": 3, "da', "it is not JSON"),
        (b'{"data": "\xff"}', "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "it holds no fields"),
        (b"3", "it holds no fields"),
        (b"null", "it holds no fields"),
        (b"{}", r"(field required, and \d+ more|loop_start: field required)"),
    ],
)
def test_foreign_files_get_one_sentence(kind, content, problem, tmp_path):
    file = tmp_path / "foreign.json"
    file.write_bytes(content)
    with pytest.raises(RecurTraceError, match=rf"foreign.json is not (an?|the) .*{problem}\); make it again") as caught:
        kind.read(file)
    assert "`recurtrace " in str(caught.value)
    assert "\n" not in str(caught.value)
    for place, reason in ((tmp_path / "none.json", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(RecurTraceError, match=f"cannot read .*{reason}.*; make it with `recurtrace "):
            kind.read(place)


@pytest.mark.parametrize(
    ("kind", "old", "changes", "problem"),
    [
        (Analysis, OLD_ANALYSIS, {"items": "many"}, "items: input should be a valid integer"),
        (Analysis, OLD_ANALYSIS, {"methods": [OLD_METHOD | {"hue": 1}]}, "there is no field 'methods.0.hue'"),
        (Analysis, OLD_ANALYSIS, {"threshold": 0.5}, "floor: field required, and 10 more"),  # half of a head's
        (Analysis, OLD_ANALYSIS | OLD_HEAD, {"histogram": {"two": 3}}, "histogram.two"),
        (Analysis, OLD_ANALYSIS | OLD_HEAD, {"more": 3}, "there is no field 'more'"),
        (Budget, OLD_BUDGET, {"seconds": None}, "seconds: input should be a valid number"),
        (CostReport, OLD_COST, {"depths": {"1": 2}}, "depths: input should be a valid list"),
        (BlockProbe, OLD_PROBE, {"windows": []}, "windows: list should have at least 1 item"),
        (BlockProbe, OLD_PROBE, {"compared_by": "luck"}, "compared_by: input should be 'distance'"),
        (BlockProbe, OLD_PROBE, {"windows": [3]}, "windows.0: input should be a dictionary"),
    ],
)
def test_a_field_that_does_not_fit_is_named(kind, old, changes, problem, tmp_path):
    (tmp_path / "bad.json").write_text(json.dumps(old | changes))
    with pytest.raises(RecurTraceError) as caught:
        kind.read(tmp_path / "bad.json")
    assert f"({problem}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_says_what_it_should_be_and_how_to_make_it(tmp_path):
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(RecurTraceError) as caught:
        Analysis.read(tmp_path / "a.json")
    expected = (
        f"{tmp_path / 'a.json'} is not an analysis (it is not JSON); make it again with `recurtrace compare --out`."
    )
    assert str(caught.value) == expected
    with pytest.raises(RecurTraceError, match="is not a tea leaf .*; make it again with `brew`."):
        read_record(tmp_path / "a.json", Budget, "a tea leaf", "brew")


def test_what_cannot_be_said_is_null_in_the_file(tmp_path):
    probe = BlockProbe([0.1], [0.0], 1, None, None, 3, [Window(1, 0.1, math.nan)], None, 0, "distance")
    write_record(tmp_path / "probe.json", probe)
    assert "NaN" not in (tmp_path / "probe.json").read_text()
    assert BlockProbe.read(tmp_path / "probe.json") == replace(probe, windows=[Window(1, 0.1)])


def test_only_keys_that_may_be_missing_are_left_out(tmp_path):
    """A window without a loss says so, as it always did; a task without held-out items has no such keys."""
    assert "nll" in BlockProbe([], [], 1, None, None, 3, [Window(1, 0.1)], None, 0, "distance").as_json()["windows"][0]
    optional = {field.name for field in fields(TaskResult) if field.default is not MISSING}
    assert optional == OLD_HEAD["tasks"][0].keys() - OLD_HEAD["tasks"][1].keys()


def test_records_cannot_be_changed():
    for kind in KINDS:
        assert issubclass(kind, Record)
        assert kind.__dataclass_params__.frozen


def test_a_foreign_manifest_of_an_evaluation_gets_one_sentence(tmp_path):
    for content, problem in (("[]", "is damaged"), ('{"items": "x"}', "is not an evaluation .items: input should be")):
        (tmp_path / "evaluation.json").write_text(content)
        with pytest.raises(RecurTraceError, match=f"{problem}.*`recurtrace evaluate`"):
            read_evaluation(tmp_path)
