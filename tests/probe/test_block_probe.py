"""The block probe: distances measured naively, bends and windows on drawn curves, windows compared one by one."""

import math
from itertools import pairwise

import pytest
import torch

from recurtrace import RecurTraceError, RecurTraceForCausalLM
from recurtrace.data.collate import Encoded, collate_padded
from recurtrace.data.synthetic import training_items
from recurtrace.probe.block_probe import (
    DistanceMeter,
    compare_windows,
    find_span,
    named_windows,
    rank_windows,
)
from recurtrace.probe.examples import probe_block
from recurtrace.records import BlockProbe, Window
from tests.conftest import byte_tokenizer, every_family, tiny_base, tokens

# As the appendix describes the curve: falls through the encoder, is flat, rises again near the output.
CURVE = [0.45, 0.33, 0.24, 0.16, 0.11, 0.10, 0.095, 0.09, 0.08, 0.078, 0.079, 0.09, 0.095, 0.10, 0.17, 0.28, 0.4]


def encoded(*lengths: int, answer: int = 2) -> list[Encoded]:
    return [Encoded(tokens(length, seed=length).tolist(), length - answer) for length in lengths]


@every_family
def test_distances_are_those_of_the_final_token(family):
    base = tiny_base(family)
    rows = encoded(5, 9, 7)
    meter = DistanceMeter(base)
    meter.add(collate_padded(rows[:2], 0))
    meter.add(collate_padded(rows[2:], 0))
    naive = []
    for row in rows:
        with torch.no_grad():
            states = base(torch.tensor([row.input_ids]), output_hidden_states=True).hidden_states
        # the last of these states is normed, so the last layer is left out here
        pairs = pairwise(states[:-1])
        naive.append([math.acos(torch.cosine_similarity(a[0, -1], b[0, -1], dim=0)) / math.pi for a, b in pairs])
    expected = torch.tensor(naive)
    assert meter.inputs == 3
    torch.testing.assert_close(torch.tensor(meter.means[:-1]), expected.mean(0), atol=1e-5, rtol=1e-4)
    errors = expected.std(0) / math.sqrt(3)
    torch.testing.assert_close(torch.tensor(meter.errors[:-1]), errors, atol=1e-5, rtol=1e-3)


def test_the_bends_of_a_curve():
    assert find_span(CURVE) == (4, 13)
    assert find_span([0.1 + 0.1 * i for i in range(8)])[0] is None  # a line has no bend


def test_windows_are_ranked_inside_the_span():
    windows = rank_windows(CURVE, 4, 13)
    assert windows[0].start == 8
    assert {window.start for window in windows} == set(range(5, 11))
    assert windows == sorted(windows, key=lambda window: window.mean_distance)
    assert {window.start for window in rank_windows(CURVE, None, None)} == set(range(1, 14))
    narrow = {window.start for window in rank_windows(CURVE, 8, 10)}  # one layer between them
    assert narrow == {7, 8, 9}
    with pytest.raises(RecurTraceError, match="a base of 4 layers is too shallow to loop 3"):
        rank_windows(CURVE[:4], None, None)


def test_windows_can_be_named():
    assert [window.start for window in named_windows(CURVE, [0, 8, 13])] == [8, 13, 0]
    assert named_windows(CURVE, [8])[0] == rank_windows(CURVE, 4, 13)[0]
    with pytest.raises(RecurTraceError, match="from layer 15 is outside of the 17 layers"):
        named_windows(CURVE, [15])


def test_windows_are_compared_by_two_plain_loops():
    base = tiny_base()
    rows = encoded(6, 11, 8)
    before = [parameter.clone() for parameter in base.parameters()]
    windows, base_nll = compare_windows(base, [Window(1, 0.1), Window(2, 0.2)], [collate_padded(rows, 0, "left")])
    assert windows[0].nll <= windows[1].nll
    for window in windows:
        model = RecurTraceForCausalLM.from_base(base, loop_start=window.start, loop_memory=False)
        for loops, found in ((2, window.nll), (1, base_nll)):
            with torch.no_grad():
                losses = [
                    model(torch.tensor([row.input_ids]), labels=torch.tensor([row.labels]), loops=loops).loss
                    for row in rows
                ]
            assert found == pytest.approx(float(torch.stack(losses).mean()), abs=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(before, base.parameters(), strict=True))


def test_a_result_is_written_and_read(tmp_path):
    found = BlockProbe(CURVE, CURVE, 10, 4, None, 3, [Window(8, 0.1, 2.0)], 1.9, 4, "plain loops", "m", "f", "c4")
    found.write(tmp_path / "probe.json")
    assert BlockProbe.read(tmp_path / "probe.json") == found
    with pytest.raises(RecurTraceError, match="was measured on another model, m; probe this one"):
        found.check_base("other", tmp_path / "probe.json")
    for text in ("{", "[]", '{"loop_start": 3}', '{"loop_start": 3, "windows": [], "more": 1}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(RecurTraceError, match="is not a result of `recurtrace probe`"):
            BlockProbe.read(tmp_path / "bad.json")


def test_states_that_are_not_finite_are_refused():
    base = tiny_base()
    with torch.no_grad():
        base.model.layers[2].mlp.down_proj.weight.fill_(math.nan)
    with pytest.raises(RecurTraceError, match="not finite"):
        DistanceMeter(base).add(collate_padded(encoded(5), 0))


def test_too_few_examples():
    with pytest.raises(RecurTraceError, match="there are 3 examples, and comparing windows takes 4"):
        probe_block(tiny_base(vocab_size=300), byte_tokenizer(), [*training_items("p_hop", 3, 0)], compare=4)
