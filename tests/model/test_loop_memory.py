"""Shapes and values at initialisation (the design's table), and what an extra loop costs."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from recurtrace import RecurTraceForCausalLM
from recurtrace.model.cost import cost_of
from tests.conftest import LOOP, tiny_base, tiny_looped, tokens

D, H, C = 32, 4, 8


def test_tensors_at_initialisation():
    torch.manual_seed(0)
    model = RecurTraceForCausalLM.from_base(tiny_base(), **LOOP)
    tensors = model.loop_state_dict()
    per_layer = {
        "norm.weight": (D,),
        **{f"{name}_proj.weight": (H * C, D) for name in "qkv"},
        "o_proj.weight": (D, H * C),
        "q_norm.weight": (C,),
        "k_norm.weight": (C,),
        "slope": (H,),
        "gate.weight": (D, 2 * D),
        "gate.bias": (D,),
        "scale": (),
    }
    expected = {f"loop.memory.{i}.{name}": shape for i in range(3) for name, shape in per_layer.items()}
    expected |= {"loop.injection.alpha": (), "loop.halting.weight": (1, D), "loop.halting.bias": (1,)}
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == expected

    for i in range(3):
        memory = {name: tensors[f"loop.memory.{i}.{name}"] for name in per_layer}
        assert all((memory[name] == 1).all() for name in ("norm.weight", "q_norm.weight", "k_norm.weight", "scale"))
        assert memory["slope"].tolist() == pytest.approx([2**-2, 2**-4, 2**-6, 2**-8])
        assert (memory["gate.weight"] == 0).all()
        assert (memory["gate.bias"] == -3.0).all()
        assert torch.sigmoid(memory["gate.bias"][0]) == pytest.approx(0.047, abs=1e-3)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            assert memory[f"{name}.weight"].std() == pytest.approx(0.02, rel=0.1)
    assert tensors["loop.injection.alpha"] == 0
    assert (tensors["loop.halting.weight"] == 0).all()
    assert tensors["loop.halting.bias"] == 0


def test_switches_shape_the_modules():
    assert not any("memory" in name for name in tiny_looped(loop_memory=False).loop_state_dict())
    assert not any("q_norm" in name for name in tiny_looped(loop_qk_norm=False).loop_state_dict())


@torch.no_grad()
def test_the_window_forgets_what_is_older():
    """With W = 1 the softmax has one term, so the slopes cannot matter; with W = 2 they do from the third loop on."""
    ids = tokens(1, 5)
    for window, loops, matters in ((1, 4, False), (2, 2, False), (2, 3, True)):
        model = tiny_looped(loop_memory_window=window)
        before = model(ids, loops=loops).logits
        for memory in model.loop.memory:
            memory.slope.mul_(-5)
        assert torch.equal(model(ids, loops=loops).logits, before) != matters


@torch.no_grad()
def test_a_signed_slope_prefers_older_states():
    model = tiny_looped(loop_memory_window=2, loop_qk_norm=True)
    memory = model.loop.memory[0]
    memory.q_proj.weight.zero_()
    memory.slope.fill_(-math.log(3))  # bias +log 3 per loop of distance: weights 1/4 and 3/4
    newest, older = torch.randn(2, 1, 1, D)
    nothing = torch.zeros(1, 1, D)
    _, window = memory(nothing, older, ())
    out, _ = memory(nothing, newest, window)
    values = [memory.v_proj(memory.norm(state)) for state in (newest, older)]
    x_bar = (memory.norm(newest) + memory.norm(older)) / 2
    gate = torch.sigmoid(memory.gate(torch.cat([memory.norm(newest), x_bar], -1)))
    expected = memory.scale * gate * memory.o_proj(values[0] / 4 + values[1] * 3 / 4)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("switches", [{}, {"loop_memory": False}, {"loop_memory_window": 1}])
@torch.no_grad()
def test_an_extra_loop_costs_the_block_plus_the_added_parameters(switches):
    """Counted by torch, not by us, and equal to what `recurtrace info` states."""
    model = tiny_looped(attention="eager", **switches)
    cost = cost_of(model.config)
    rows, length = 2, 7

    def measured(loops):
        with FlopCounterMode(display=False) as counter:
            model(tokens(rows, length), loops=loops)
        return counter.get_total_flops()

    for loops in (1, 2, 4, 8):
        # Eager attention computes every score, masked or not: each token attends to `length` positions.
        assert measured(loops) == 2 * rows * length * cost.macs(loops, context=length)


@torch.no_grad()
def test_a_batch_costs_the_sum_of_its_depths():
    model = tiny_looped(attention="eager")
    cost = cost_of(model.config)
    depths, length = [1, 5, 2, 3], 6
    ids = tokens(len(depths), length)
    with FlopCounterMode(display=False) as prefill:
        cache = model(ids, loops=depths, use_cache=True).past_key_values
    assert prefill.get_total_flops() == 2 * length * sum(cost.macs(loops, context=length) for loops in depths)
    with FlopCounterMode(display=False) as decode:
        model(tokens(len(depths), 1), loops=depths, past_key_values=cache)
    assert decode.get_total_flops() == 2 * sum(cost.macs(loops, context=length + 1) for loops in depths)


@torch.no_grad()
def test_halted_sequences_leave_the_computation():
    model = tiny_looped(attention="eager")
    cost = cost_of(model.config)
    ids = tokens(6, 6)
    with FlopCounterMode(display=False) as counter:
        depths = model(ids, loops="adaptive").depths.tolist()
    head = 2 * 32 * sum(sum(1 for depth in depths if depth >= t) for t in range(1, max(depths) + 1))
    assert len(set(depths)) > 1, "the test needs different depths"
    assert counter.get_total_flops() == 2 * 6 * sum(cost.macs(loops, context=6) for loops in depths) + head
