"""The paper's claims on records whose outcome is known."""

from dataclasses import replace

import numpy as np
import pytest

from recurtrace.errors import RecurTraceError
from recurtrace.records import DepthResult, Evaluation, EvaluationManifest, ItemRecord
from recurtrace.report.workspace import Workspace
from studies.ablated import ablated_table, rivals_table
from studies.claims import claims, difference, right
from studies.depths import FATES, fate_table, stops_table
from studies.study import halting_headline
from studies.worlds import BABI, STORIES, World, world_of
from tests.report.test_budget_table import FULL
from tests.report.test_report import TRAINED, head, made, named

HEAD = "The head beats fixed depths of as many loops, and is at least the best one"
WORLD = World(
    tasks=frozenset({"p_hop", "symbolic"}),
    kind=lambda record: record.task,
    stateful=("symbolic",),
    lookups=("p_hop", "never asked"),
    facts=lambda record: int(record.bucket.removeprefix("k=")),
    hard=6,
    deepest=9,
)
LOOPS = ("1", "2", "4", "8", "16", "adaptive")


def evaluation(right_at, depth=lambda i: 2) -> Evaluation:
    """Sixty items of two tasks, k = 2 and 8; `right_at(i, loops)` says which are right."""
    records = []
    for i in range(60):
        results = [DepthResult(t, depth(i) if t == "adaptive" else int(t), 1.0, right_at(i, t), "x") for t in LOOPS]
        task, bucket = ("p_hop", "symbolic")[i % 2], f"k={(2, 8)[i // 2 % 2]}"
        records.append(ItemRecord(f"{i:02d}", task, bucket, -1, "h", "x", 1, results, []))
    return Evaluation(EvaluationManifest(60, list(LOOPS), "m", "looped"), records)


@pytest.fixture
def space(tmp_path):
    from recurtrace.evaluation.analysis import analyse

    heads = {None: head(2.0), "act": head(0.0, -9.0, "act"), "pondernet": head(0.0, -9.0, "pondernet")}
    analyses = [analyse(made("heldout", s), named(made("test", s + 5)), heads, **TRAINED) for s in range(2)]

    def memory(i, t):  # wrong at sixteen loops, except on the task with a state
        return i % 5 != 0 and (t == "adaptive" or i % 7 != 0) and (t != "16" or i % 2 == 1)

    def hard(i):
        return 6 if i // 2 % 2 else 2

    loop = [evaluation(memory, hard)] * 2
    plain = [evaluation(lambda i, t: i % 5 > 1 and i % 7 != 0 and t != "16")] * 2
    worse = [evaluation(lambda i, t: i % 3 == 0)] * 2
    return Workspace(
        tmp_path, None, None, analyses, {"loop": loop, "plain-loop": plain, "full": worse, "adapter": loop}, {}
    )


def test_what_holds_and_what_does_not(space):
    found = {claim.says: claim for claim in claims(space, WORLD)}
    assert len(found) == 10
    verdicts = {says: claim.verdict for says, claim in found.items()}
    assert verdicts["Memory beats plain looping"] == "holds"
    assert verdicts["More so on items that carry a state, beyond the training depth"] == "holds"
    assert verdicts["Fixed depth peaks, then falls"] == "holds"
    assert verdicts[HEAD] == "holds"
    assert verdicts["ACT and PonderNet collapse to one loop"] == "holds"
    assert verdicts["Hard items get more loops"] == "holds"
    assert verdicts["Gain over a same-budget full fine-tune"] == "holds"
    assert verdicts["The gain is not explained by a matched adapter"] == "holds"
    assert found["Hard items get more loops"].measured.startswith("+4.00 ± 0.00 loops")
    assert found["Memory beats plain looping"].seeds == 2


def test_the_head_is_held_against_as_many_loops(space):
    claim = {claim.says: claim for claim in claims(space, WORLD)}[HEAD]
    gains = [100 * (one.matched.accuracy - one.matched.fixed_accuracy) for one in space.head_analyses]
    assert claim.measured.startswith(f"{np.mean(gains):+.1f} ±")
    assert claim.p == ", ".join(f"{one.matched.p_value:.2g}" for one in space.head_analyses)
    assert "of the way from there to the correctness ceiling" in claim.measured
    older = [replace(one, matched=None) for one in space.head_analyses]
    with pytest.raises(RecurTraceError, match="make it anew with `recurtrace compare`"):
        claims(replace(space, analyses=older), WORLD)


def test_the_difference_is_paired():
    ours, theirs = (right([evaluation(rule)], "4") for rule in (lambda i, t: i < 40, lambda i, t: i < 30))
    found = difference(ours, theirs)
    assert found.points == pytest.approx([100 * 10 / 60])
    assert found.p == [2 / 2**10]
    assert found.low < found.points[0] < found.high


def test_a_run_that_is_not_there_leaves_its_claim_open(space):
    del space.evaluations["adapter"]
    *_, last = claims(space, WORLD)
    assert (last.measured, last.verdict) == ("matched adapter was not run", "cannot be told here")


def test_a_study_that_is_not_finished_gets_a_sentence(space):
    del space.evaluations["loop"]
    with pytest.raises(RecurTraceError, match="lacks evaluations/loop"):
        claims(space, WORLD)


def test_memory_is_compared_with_a_trained_block_where_both_have_one(space):
    space.evaluations["plain-block"] = space.evaluations["loop"]
    first, *_ = claims(space, WORLD)
    assert first.measured.endswith("at 4 loops, on the frozen base")
    space.evaluations["memory-block"] = space.evaluations["loop"]
    first, *_ = claims(space, WORLD)
    assert first.measured.startswith(
        "+0.0 ± 0.0 points, memory against plain looping at 4 loops, with a trained block (on the frozen base +"
    )
    assert first.verdict == "cannot be told here"


def test_a_study_whose_every_loop_trains_its_block_says_so(space):
    space.evaluations["plain"] = space.evaluations.pop("plain-loop")
    first, *_ = claims(space, WORLD)
    assert first.measured.endswith("at 4 loops, both with a trained block")
    assert first.verdict == "holds"


def test_an_adapter_of_fewer_parameters_is_no_matched_one(space):
    sizes = {"loop": 4_000_000, "adapter": 1_000_000}
    budgets = {run: [replace(FULL, trained_parameters=size)] for run, size in sizes.items()}
    *_, last = claims(replace(space, budgets=budgets), WORLD)
    assert last.measured.endswith("which has 25% of the parameters that the loop trained")
    assert last.verdict == "cannot be told here"
    budgets["adapter"] = budgets["loop"]
    *_, last = claims(replace(space, budgets=budgets), WORLD)
    assert last.verdict == "holds"


def test_what_becomes_of_an_answer(space):
    def rule(i, t):  # 12 each: always, never, from four loops on, until four loops, now and then
        return (True, False, int(t) >= 4, int(t) <= 4, t == "4")[i % 5] if t.isdecimal() else True

    space.evaluations["loop"] = [evaluation(rule)]
    assert fate_table(space, deepest=9).rows == [[fate, "20.0"] for fate in FATES]


def test_the_sentences_about_the_head(space):
    said = halting_headline(space)
    first = space.head_analyses[0]
    assert said.startswith(f"2 training seeds, {first.items} test items: ")
    assert f"p = {', '.join(f'{one.matched.p_value:.2g}' for one in space.head_analyses)}, seed by seed" in said


def test_where_the_head_stops(space):
    table = stops_table(space)
    rows = {row[0]: row for row in table.rows}
    first = {bucket.bucket: bucket for bucket in space.head_analyses[0].buckets}
    assert list(rows) == list(first)
    assert all(int(row[1]) == first[name].items for name, row in rows.items())
    assert not stops_table(replace(space, analyses=[])).rows


def test_the_world_is_known_by_its_questions(space):
    record = space.evaluations["loop"][0].records[0]
    asked = replace(record, task="babi", bucket="task=16")
    assert world_of([asked]) is BABI
    assert (BABI.kind(asked), BABI.facts(asked)) == ("task 16", 3)
    assert world_of([replace(record, task="where_left")]) is STORIES
    assert world_of([asked, record]) is None


def test_only_kinds_that_were_asked_are_named(space):
    found = {claim.says: claim for claim in claims(space, WORLD)}
    assert "against memory on p_hop at 4" in found["Plain looping is no worse on pure lookups"].measured


def test_changes_are_held_against_the_full_memory(space):
    space.evaluations["window-1"] = space.evaluations["loop"]
    rows = {row[0]: row for row in ablated_table(space).rows}
    assert set(rows) == {"Plain looping", "Memory window W = 1"}  # nothing without loops
    assert rows["Memory window W = 1"] == ["Memory window W = 1", *("+0.0 ± 0.0", "[+0.0, +0.0]", "1, 1") * 3, "2"]
    _, *cells = next(row for row in rivals_table(space).rows if row[0] == "Full fine-tune")
    lead = difference(right(space.evaluations["loop"], "adaptive"), right(space.evaluations["full"], "1"))
    assert cells[1:] == [f"[{lead.low:+.1f}, {lead.high:+.1f}]", ", ".join(f"{p:.2g}" for p in lead.p), "2"]
    lost = difference(*(right(space.evaluations[run], "4") for run in ("plain-loop", "loop")))
    assert rows["Plain looping"][2] == f"[{lost.low:+.1f}, {lost.high:+.1f}]"
    assert rows["Plain looping"][3] == ", ".join(f"{p:.2g}" for p in lost.p)
    assert lost.high < 0
    del space.evaluations["window-1"], space.evaluations["plain-loop"]
    assert ablated_table(space).missing
