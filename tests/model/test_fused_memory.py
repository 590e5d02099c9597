"""The memories of all looped layers at once: fewer operations, the same model, never with outdated weights."""

import copy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from recurtrace.model.loop_state import LoopState
from tests.conftest import tiny_looped, tokens

aten = torch.ops.aten


class Operations(TorchDispatchMode):
    """Counts what is dispatched, views left out."""

    count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += not (operation.is_view or operation is aten._unsafe_view.default)
        return operation(*args, **(kwargs or {}))


def operations_per_loop(model: nn.Module, loops: int = 6) -> list[int]:
    """Of the loop modules alone: the layers do nothing."""
    state = LoopState.before(torch.randn(2, 1, 32, dtype=model.dtype), 3, None)
    counts = []
    for t in range(1, loops + 1):
        with Operations() as operations:
            model.loop(t, state, lambda index, h: h)
        counts.append(operations.count)
    return counts


def layer_by_layer(model):
    """The same model with a hook that looks on."""
    model = copy.deepcopy(model)
    model.loop.memory[0].register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_at_most_60_operations_per_loop(dtype):
    model = tiny_looped().to(dtype)
    operations_per_loop(model)  # the weights are stacked once
    counts = operations_per_loop(model)
    assert counts[0] == 0
    assert max(counts) <= 60
    assert min(operations_per_loop(layer_by_layer(model))[1:]) > 100


@pytest.mark.parametrize(
    "switches", [{}, {"loop_qk_norm": False}, {"loop_memory_window": 1}, {"loop_num_layers": 1}], ids=str
)
@torch.no_grad()
def test_it_is_the_same_model(switches):
    """Up to the order of sums in a product; also for sequences of different depth, with a cache and without."""
    model = tiny_looped(**switches)
    other = layer_by_layer(model)
    ids = tokens(3, 7)
    for loops in (2, 5, [1, 5, 3]):
        mine, theirs = model(ids, loops=loops), other(ids, loops=loops)
        assert model.loop._fused is not None
        assert other.loop._fused is None
        torch.testing.assert_close(mine.logits, theirs.logits, atol=2e-6, rtol=1e-5)
        mine, theirs = (
            m(ids[:, :1], past_key_values=out.past_key_values) for m, out in ((model, mine), (other, theirs))
        )
        torch.testing.assert_close(mine.logits, theirs.logits, atol=2e-6, rtol=1e-5)


@torch.no_grad()
def test_in_bfloat16_it_errs_no_more():
    exact = tiny_looped()
    ids = tokens(3, 7)
    expected = exact(ids, loops=5).logits
    model = tiny_looped().to(torch.bfloat16)
    mine, theirs = ((m(ids, loops=5).logits - expected).abs().mean() for m in (model, layer_by_layer(model)))
    assert mine < 1.2 * theirs


def change_in_place(model):
    model.loop.memory[1].gate.bias.add_(1.0)


def load(model):
    model.load_loop_modules({name: 0.5 * tensor for name, tensor in model.loop_state_dict().items()})


def change_type(model):
    model.double()


def replace_a_weight(model):
    model.loop.memory[0].q_proj.weight = nn.Parameter(torch.ones_like(model.loop.memory[0].q_proj.weight))


def train_without_saying_so(model):
    with torch.enable_grad():
        model(tokens(1, 5), labels=tokens(1, 5), loops=3).loss.backward()
    for parameter in model.loop.memory.parameters():
        parameter.data -= parameter.grad


@pytest.mark.parametrize("change", [change_in_place, load, change_type, replace_a_weight, train_without_saying_so])
@torch.no_grad()
def test_changed_weights_are_seen(change):
    model = tiny_looped()
    before = model(tokens(1, 5), loops=3).logits
    change(model)
    after = model(tokens(1, 5), loops=3).logits
    assert not torch.equal(after, before.to(after.dtype))
    torch.testing.assert_close(after, layer_by_layer(model)(tokens(1, 5), loops=3).logits)


def test_training_drops_it_and_files_never_have_it():
    model = tiny_looped()
    names = set(model.state_dict())
    with torch.inference_mode():
        model(tokens(1, 5), loops=2)
    assert model.loop._fused is not None
    assert set(model.state_dict()) == names
    assert model.train().loop._fused is None
    model(tokens(1, 5), labels=tokens(1, 5), loops=3).loss.backward()
    assert model.loop._fused is None


@torch.no_grad()
def test_what_is_not_ours_goes_layer_by_layer():
    """An adapter on a projection, say, whose weight is not all there is to it."""

    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = tiny_looped()
    before = model(tokens(1, 5), loops=3).logits
    model.loop.memory[0].v_proj.__class__ = Doubled
    assert (model(tokens(1, 5), loops=3).logits - before).abs().max() > 1e-3
