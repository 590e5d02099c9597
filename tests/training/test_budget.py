"""The analytical FLOPs of a training step against what torch counts."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode

from recurtrace import RecurTraceForCausalLM
from recurtrace.model.cost import cost_of
from recurtrace.model.labelled_loss import accept_return_logits
from recurtrace.training.budget import training_macs
from recurtrace.training.methods import freeze_for_stage_1, matched_ranks
from tests.conftest import LOOP, tiny_base, tokens

ROWS, LENGTH = 2, 12


def counted(model: torch.nn.Module, labels: torch.Tensor | None = None, **options: int) -> tuple[int, int]:
    """FLOPs of forward and backward, as torch counts them."""
    ids = tokens(ROWS, LENGTH)
    with FlopCounterMode(display=False) as forward:
        loss = model(ids, labels=ids if labels is None else labels, use_cache=False, **options).loss
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    return forward.get_total_flops(), backward.get_total_flops()


def stated(cost, method: str, depth: int, **options) -> tuple[float, float]:
    # Attention is counted over all positions; what is masked is computed too.
    macs = training_macs(cost, method, depth, LENGTH, LOOP["loop_start"], **options)
    return 2 * ROWS * LENGTH * macs.forward, 2 * ROWS * LENGTH * (macs.activations + macs.weights)


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
@pytest.mark.parametrize("memory", [True, False])
def test_stage_1(depth, memory):
    model = RecurTraceForCausalLM.from_base(tiny_base(attention="eager"), **LOOP, loop_memory=memory).train()
    freeze_for_stage_1(model)
    method = "loop" if memory else "plain_loop"
    assert counted(model, loops=depth) == pytest.approx(stated(cost_of(model.config), method, depth))


@pytest.mark.parametrize("depth", [1, 3])
def test_with_the_block_itself(depth):
    """The block's very first projections read what has no gradient; that one is not told apart."""
    model = RecurTraceForCausalLM.from_base(tiny_base(attention="eager"), **LOOP).train()
    freeze_for_stage_1(model, train_block=True)
    expected = stated(cost_of(model.config), "loop", depth, with_block=True)
    assert counted(model, loops=depth) == pytest.approx(expected, rel=0.05)


def test_full_fine_tune():
    base = tiny_base(attention="eager").train()
    cost = cost_of(RecurTraceForCausalLM.from_base(base, **LOOP).config)
    base.requires_grad_(True)
    assert counted(base) == pytest.approx(stated(cost, "full", 1))


@pytest.mark.parametrize("with_block", [False, True])
def test_the_adapter(with_block):
    """Its size is the loop's but for the roundness of ranks; the first projections are as with the block itself."""
    base = tiny_base(attention="eager")
    config = RecurTraceForCausalLM.from_base(base, **LOOP).config
    ranks = matched_ranks(config, with_block)
    lora = LoraConfig(rank_pattern=ranks, target_modules=list(ranks), lora_dropout=0.0, task_type="CAUSAL_LM")
    expected = stated(cost_of(config), "adapter", 1, with_block=with_block)
    assert counted(get_peft_model(base.train(), lora)) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("method", ["loop", "full"])
def test_the_head_counts_where_there_is_a_label(method):
    """Its backward runs within the forward, so the two are compared together."""
    base = tiny_base(attention="eager").train()
    model = looped = RecurTraceForCausalLM.from_base(base, **LOOP).train()
    freeze_for_stage_1(looped)
    labels = tokens(ROWS, LENGTH)
    labels[:, :-3] = -100
    depth = {"loops": 3}
    if method == "full":
        base.requires_grad_(True)
        accept_return_logits(base)
        model, depth = base, {}
    expected = stated(cost_of(looped.config), method, 3, labelled=3 / LENGTH)
    assert sum(counted(model, labels, return_logits=False, **depth)) == pytest.approx(sum(expected))
