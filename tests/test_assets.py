"""The embedded base and its loop modules: small, whole, and a fair subject for depth."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from recurtrace import RecurTraceForCausalLM
from recurtrace.assets import TINY_BASE, TINY_LOOP
from recurtrace.data.collate import Encoder, collate_padded, padding_id
from recurtrace.data.little_world import SMALL
from recurtrace.data.synthetic import TASKS, item

CHANCE = {"p_hop": 1 / 6, "symbolic": 1 / 64, "arithmetic": 1 / 7}


@pytest.fixture(scope="module")
def base():
    return AutoModelForCausalLM.from_pretrained(TINY_BASE)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY_BASE)


@torch.no_grad()
def accuracy(model, tokenizer, task, k, **depth):
    """On test items, with symbols that stage 1 never sees; an answer is right if every token of it is the likeliest."""
    encoded = Encoder(tokenizer, 256)([item(task, "test", i, 1, k, SMALL) for i in range(200)])
    batch = collate_padded(encoded, padding_id(tokenizer))
    labels = batch["labels"][:, 1:]
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"], **depth).logits[:, :-1]
    return ((logits.argmax(-1) == labels) | (labels == -100)).all(-1).float().mean().item()


def test_they_are_small():
    size = sum(file.stat().st_size for folder in (TINY_BASE, TINY_LOOP) for file in folder.rglob("*") if file.is_file())
    assert size < 12 * 2**20


@pytest.mark.parametrize("task", TASKS)
def test_the_base_is_a_fair_subject(task, base, tokenizer):
    """Clearly above chance on short problems, worse on longer ones, far from perfect on long ones."""
    one, two, eight = (accuracy(base, tokenizer, task, k) for k in (1, 2, 8))
    assert one > CHANCE[task] + 0.25
    assert one > two > CHANCE[task] + 0.05
    assert eight < 0.6
    if task != "p_hop":  # there the start itself is the answer more often the more divisors k has
        assert eight < two


def test_one_loop_is_the_base(base, tokenizer):
    looped = RecurTraceForCausalLM.from_pretrained(TINY_LOOP)
    ids = tokenizer(item("symbolic", "test", 0, 1, 4, SMALL).prompt, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert torch.equal(looped(ids, loops=1).logits, base(ids).logits)


def test_the_loop_modules_lower_the_loss(tokenizer):
    """What stage 1 was for, on symbols it never saw: over problems of all lengths it trained on."""
    looped = RecurTraceForCausalLM.from_pretrained(TINY_LOOP)
    encoder = Encoder(tokenizer, 256)
    examples = [item(task, "test", i, 2, k, SMALL) for task in TASKS for k in (2, 4, 6, 8) for i in range(40)]
    batch = collate_padded(encoder(examples), padding_id(tokenizer))
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
    with torch.no_grad():
        losses = {loops: looped(**inputs, loops=loops).loss.item() for loops in (1, 2, 4)}
    assert min(losses[2], losses[4]) < losses[1]


def test_adaptive_depth_is_the_default():
    looped = RecurTraceForCausalLM.from_pretrained(TINY_LOOP)
    assert looped.config.default_loops == "adaptive"
