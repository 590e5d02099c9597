"""The embedded base and its loop modules: small, whole, and a fair subject for depth."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from recurtrace import RecurTraceForCausalLM
from recurtrace.assets import TINY_BASE, TINY_LOOP
from recurtrace.data.collate import Encoder, collate_padded, padding_id
from recurtrace.data.stories import item, texts

ITEMS = 60


@pytest.fixture(scope="module")
def base():
    return AutoModelForCausalLM.from_pretrained(TINY_BASE)


@pytest.fixture(scope="module")
def looped():
    return RecurTraceForCausalLM.from_pretrained(TINY_LOOP)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY_BASE)


@torch.no_grad()
def accuracy(model, tokenizer, facts, **depth):
    """On test items, with names that stage 1 never sees."""
    encoder = Encoder(tokenizer, 256, end=None)
    encoded = encoder([item("where_thing", "test", i, 1, facts) for i in range(ITEMS)])
    batch = collate_padded(encoded, padding_id(tokenizer))
    labels = batch["labels"][:, 1:]
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"], **depth).logits[:, :-1]
    return ((logits.argmax(-1) == labels) | (labels == -100)).all(-1).float().mean().item()


def test_they_are_small():
    size = sum(file.stat().st_size for folder in (TINY_BASE, TINY_LOOP) for file in folder.rglob("*") if file.is_file())
    assert size < 10 * 2**20


def test_the_base_looks_things_up_in_a_story(base, tokenizer):
    """A chant names one fact after the other; given the story and its first name, the base goes on."""
    right = total = 0
    for text in texts(400, seed=99, rhymes=0):
        asked = text.answer.split(" ")[0]
        if text.answer.split(". ")[0].count(" ") < 1 or asked in ("Where", "Who") or ":" in text.answer.split(". ")[0]:
            continue
        first = tokenizer(f"{text.prompt} {asked}", return_tensors="pt")["input_ids"]
        whole = tokenizer(f"{text.prompt} {text.answer}", return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = base(whole).logits[0]
        names = range(first.shape[1], first.shape[1] + 3)
        hits = [logits[i - 1].argmax() == whole[0, i] for i in names if i < whole.shape[1]]
        right, total = right + sum(map(int, hits)), total + len(hits)
        if total > 300:
            break
    assert right / total > 0.6


def test_the_base_was_never_asked(base, tokenizer):
    assert accuracy(base, tokenizer, 2) < 0.1


def test_one_loop_is_the_base(base, looped, tokenizer):
    ids = tokenizer(item("who_has", "test", 0, 1, 2).prompt, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert torch.equal(looped(ids, loops=1).logits, base(ids).logits)


def test_more_facts_need_more_loops(looped, tokenizer):
    """What depth is for, on names that stage 1 never saw."""
    assert accuracy(looped, tokenizer, 1, loops=2) > 0.9
    assert accuracy(looped, tokenizer, 2, loops=2) > 0.8
    assert accuracy(looped, tokenizer, 3, loops=6) > accuracy(looped, tokenizer, 3, loops=2) + 0.3


def test_adaptive_depth_is_the_default(looped):
    assert looped.config.default_loops == "adaptive"
