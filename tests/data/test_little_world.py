"""The world of the embedded base: one token for a thing, true walks, and both symbol pools known."""

import re

import pytest

from recurtrace.data.little_world import SMALL, build_tokenizer, texts
from recurtrace.data.synthetic import TASKS, item, symbol_pool


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


def test_a_thing_is_one_token_with_one_spelling(tokenizer):
    for code in symbol_pool(SMALL, "pretrain"):
        assert len(tokenizer(f" {code}")["input_ids"]) == 1
    for task in TASKS:
        example = item(task, "train", 0, 0, sizes=SMALL)
        words = re.findall(r"\w+:|[+*-]\d|\w+|,", f"{example.prompt} {example.answer}")
        assert len(tokenizer(f"{example.prompt} {example.answer}")["input_ids"]) == len(words)


def test_any_text_has_tokens(tokenizer):
    for text in ("Grüße, 世界!", "def f(x):\n\treturn x", "  two  spaces"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_walks_follow_the_map():
    walks = [text for text in texts(300, seed=3, walks=0.9) if text.task == "walk"]
    assert len(walks) > 200
    for walk in walks:
        pairs, hops, here = re.fullmatch(r"Map: (.*)\nHops: (\d+)\nWalk: (\w+)", walk.prompt).groups()
        follow = dict(pair.split() for pair in pairs.split(", "))
        for place in walk.answer.split():
            for _ in range(int(hops)):
                here = follow[here]
            assert place == here


def test_the_world_knows_the_symbols_that_stage_1_never_sees():
    seen = {code for text in texts(2000, seed=0) for code in re.findall(r"\b[A-Z]{2}\b", text.prompt)}
    assert seen == set(symbol_pool(SMALL, "pretrain"))
    assert set(symbol_pool(SMALL, "test")) < seen
    trained = {
        code
        for i in range(500)
        for code in re.findall(r"\b[A-Z]{2}\b", item("p_hop", "train", i, 0, sizes=SMALL).prompt)
    }
    assert not trained & set(symbol_pool(SMALL, "test"))


def test_the_same_seed_gives_the_same_world():
    assert list(texts(50, seed=1)) == list(texts(50, seed=1))
    assert list(texts(50, seed=1)) != list(texts(50, seed=2))
