"""What training relies on: only loop modules learn, nothing is kept before the block, recomputation is exact."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from transformers import Trainer, TrainingArguments

from recurtrace import RecurTraceForCausalLM
from tests.conftest import LOOP, every_family, tiny_base, tiny_looped, tokens


@every_family
def test_only_loop_modules_get_gradients(family):
    model = tiny_looped(family)
    ids = tokens(2, 6)
    model(ids, labels=ids, loops=3).loss.backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    added = {f"loop.{name}" for name, _ in model.loop.named_parameters()}
    assert trained == added - {"loop.halting.weight", "loop.halting.bias"}
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == added


def test_only_loop_modules_after_loading(tmp_path):
    for frozen in (False, True):
        model = tiny_looped(loop_slope_frozen=frozen)
        for kind in ("adapter", "merged"):
            folder = tmp_path / f"{kind}-{frozen}"
            model.save_pretrained(folder, merge_base=kind == "merged")
            loaded = RecurTraceForCausalLM.from_pretrained(folder, base=tiny_base() if kind == "adapter" else None)
            added = {f"loop.{name}" for name, _ in loaded.loop.named_parameters() if not (frozen and "slope" in name)}
            assert {name for name, parameter in loaded.named_parameters() if parameter.requires_grad} == added


def test_frozen_slopes_and_open_gates():
    model = RecurTraceForCausalLM.from_base(tiny_base(), **LOOP, loop_slope_frozen=True, loop_gates_open=True)
    assert not any(memory.slope.requires_grad for memory in model.loop.memory)
    assert all((memory.gate.bias == 3.0).all() for memory in model.loop.memory)


def test_nothing_is_kept_for_backward_before_the_second_loop():
    model = tiny_looped().train()
    ids = tokens(2, 6)
    kept = []
    with saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        output = model(ids, loops=1, labels=ids)
    assert all(tensor.numel() <= 1 for tensor in kept)
    expected = model.eval()(ids, loops=1, labels=ids).loss
    assert not expected.requires_grad
    assert torch.equal(output.loss, expected)
    output.loss.backward()  # every process of a data-parallel run needs a gradient for every parameter
    assert all((parameter.grad == 0).all() for parameter in model.loop.parameters())


def test_gradient_checkpointing_gives_the_same_gradients():
    ids = tokens(2, 6)
    gradients = []
    for checkpointing in (False, True):
        model = tiny_looped().train()
        if checkpointing:
            model.gradient_checkpointing_enable()
            assert model.is_gradient_checkpointing
        output = model(ids, labels=ids, loops=4)
        assert (output.past_key_values is None) == checkpointing
        output.loss.backward()
        gradients.append({name: p.grad for name, p in model.loop.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


def test_gradients_at_mixed_depth_are_the_sum_of_the_rows():
    ids = tokens(3, 6)
    depths = [2, 4, 3]
    model = tiny_looped()
    model(ids, loops=depths).logits.square().sum().backward()
    together = {name: p.grad.clone() for name, p in model.loop.named_parameters() if p.grad is not None}
    model.zero_grad()
    for row, depth in enumerate(depths):
        model(ids[row : row + 1], loops=depth).logits.square().sum().backward()
    for name, gradient in together.items():
        torch.testing.assert_close(gradient, model.loop.get_parameter(name).grad, atol=1e-3, rtol=1e-3)


def test_the_hugging_face_trainer_trains_it(tmp_path):
    model = RecurTraceForCausalLM.from_base(tiny_base(), **LOOP)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    data = [{"input_ids": row, "labels": row} for row in tokens(16, 8)]
    arguments = TrainingArguments(
        tmp_path, max_steps=4, per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=1e-2,
        use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=data).train()
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed
    assert all(name.startswith("loop.") for name in changed)
    ids = tokens(2, 6)
    assert torch.equal(model(ids, loops=1).logits, tiny_base()(ids).logits)


def test_one_compiled_loop_serves_all_depths():
    """Graphs for the first loop, for each number of remembered loops, and one more since t was a constant at first."""
    model = tiny_looped(num_hidden_layers=3, loop_start=1, loop_num_layers=1, loop_memory_window=1)
    ids = tokens(2, 6)
    depths = range(1, 9)
    expected = [model(ids, loops=t, use_cache=False).logits for t in depths]
    graphs = []
    model.loop.compile(fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph.forward)
    for t, logits in zip(depths, expected, strict=True):
        torch.testing.assert_close(model(ids, loops=t, use_cache=False).logits, logits)
    assert len(graphs) <= 4


@pytest.mark.parametrize("loops", [1, 4])
def test_compiles_without_graph_breaks(loops):
    model = tiny_looped()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for ids in (tokens(2, 6), tokens(3, 9)):
            expected = model(ids, loops=loops, use_cache=False).logits
            torch.testing.assert_close(compiled(ids, loops=loops, use_cache=False).logits, expected)
