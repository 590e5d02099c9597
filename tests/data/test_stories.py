"""The little world: every answer solved again from the text, no short cut to it, and nothing asked that was read."""

import itertools
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurtrace.data.loading import load
from recurtrace.data.stories import (
    CONTAINERS,
    EVERYONE,
    NAMES,
    PLACES,
    QUESTIONS,
    THINGS,
    build_tokenizer,
    evaluation_items,
    item,
    texts,
)
from recurtrace.data.synthetic import Sizes

FACT = r"(?:\w+ left |\w+ gave |)(\w+) (?:is in|is with|went to|went into|in|to) (\w+)"


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


def read(text):
    """Who and what is where after each sentence, with the sentences that say so: by patterns, not by the generator."""
    state = {}
    for number, sentence in enumerate(text.strip().rstrip(".").split(". ")):
        who, where = re.fullmatch(FACT, sentence).groups()
        state[who] = (where, {number})
    return state


def solve(prompt):
    """The answer, and the number of sentences it takes."""
    story, kind, asked = re.fullmatch(r"Story: (.*\.) (Where|Who)\? (\w+)", prompt).groups()
    state, here, needed = read(story), asked, set()
    answers = EVERYONE if kind == "Who" else PLACES
    while here not in answers:
        here, because = state[here]
        needed |= because
    return here, len(needed)


@pytest.mark.parametrize("task", QUESTIONS)
@given(index=st.integers(0, 10_000), seed=st.integers(0, 100), split=st.sampled_from(sorted(NAMES)))
def test_every_answer_is_what_the_text_says(task, index, seed, split):
    example = item(task, split, index, seed)
    answer, facts = solve(example.prompt)
    assert (example.answer, example.bucket) == (answer, f"facts={facts}")


@pytest.mark.parametrize("task", QUESTIONS)
def test_the_test_has_every_number_of_facts_and_more_than_stage_1(task):
    items = list(evaluation_items(task, seed=0, per_bucket=5))
    assert Counter(e.bucket for e in items) == {f"facts={facts}": 5 for facts in QUESTIONS[task].test_facts}
    for example in items:
        assert solve(example.prompt) == (example.answer, int(example.bucket.split("=")[1]))
    assert len({example.id for example in items}) == len(items)
    if task != "where_person":
        assert max(QUESTIONS[task].test_facts) > max(QUESTIONS[task].train_facts)


@pytest.mark.parametrize("task", QUESTIONS)
def test_a_mixture_may_ask_for_fewer_facts(task):
    few = Sizes(facts=3)
    most = 1 if task == "where_person" else 3
    for split, largest in (("train", most), ("heldout", most), ("test", most + 2 if most > 1 else 1)):
        buckets = {
            example.bucket for example in load(task, split, limit=400 if split != "test" else None, sizes=few).examples
        }
        assert max(buckets) == f"facts={largest}"
    in_range = load(task, "test", sizes=Sizes(facts=3, facts_beyond=0)).examples
    assert max(example.bucket for example in in_range) == f"facts={most}"


def test_no_name_is_in_two_splits_and_the_base_has_read_all():
    named = {
        split: {word for i in range(300) for word in re.findall(r"\w+", item("where_thing", split, i, 0).prompt)}
        & set(EVERYONE)
        for split in NAMES
    }
    assert named == {split: set(names) for split, names in NAMES.items()}
    assert {item("who_has", "test", i, 0).answer for i in range(300)} <= set(NAMES["train"])  # as all places are known
    assert sum(map(len, named.values())) == len(set().union(*named.values()))
    words = {word for text in texts(2000, seed=0) for word in re.findall(r"\w+", f"{text.prompt} {text.answer}")}
    assert set(EVERYONE + PLACES + CONTAINERS + THINGS) < words
    questions = {word for task in QUESTIONS for word in re.findall(r"\w+", item(task, "test", 0, 0).prompt)}
    assert questions < words


def test_the_base_reads_no_direct_answer():
    direct = re.compile(r"(?:Where|Who)\?|\? (?:" + "|".join(EVERYONE + PLACES + CONTAINERS) + r")\.")
    assert not any(direct.search(f"{text.prompt} {text.answer}") for text in texts(2000, seed=1))


def test_talk_says_what_the_story_says():
    for text in texts(300, seed=2, rhymes=0):
        state = read(text.prompt.removeprefix("Story: "))
        said = re.findall(r"(?:Where is|Who has) (\w+)\? (?:In|With|It is with) (\w+)\.", text.answer)
        said += re.findall(r"(\w+) is (?:in|with) (\w+)\.", text.answer.replace("It is with", ""))
        chants = [
            re.findall(r"[A-Z]\w+", line)
            for line in re.findall(r"(?<![:?] )\b[A-Z]\w+(?: (?:in |with )?[A-Z]\w+)+\.", text.answer)
        ]
        said += [pair for chant in chants for pair in itertools.pairwise(chant)]
        assert said
        assert all(state[who][0] == where for who, where in said if who in state)


def test_counting_rhymes_walk_along_their_pairs():
    for text in texts(100, seed=2, rhymes=1):
        *pairs, start = text.prompt.removeprefix("Story: ").split(", ")
        follow = dict(pair.split() for pair in pairs)
        walk = [start, *text.answer.rstrip(".").split()]
        assert all(follow[one] == other for one, other in itertools.pairwise(walk))


HEURISTICS = {
    "last": lambda named, after: named[-1],
    "first": lambda named, after: named[0],
    "most": lambda named, after: Counter(named).most_common(1)[0][0],
    "next": lambda named, after: (after or named)[0],
}


@pytest.mark.parametrize("heuristic", HEURISTICS)
@pytest.mark.parametrize("task", ["who_has", "where_thing", "where_left"])
def test_no_short_cut_to_three_facts_and_more(task, heuristic):
    right = total = 0
    for i in range(900):
        example = item(task, "train", i, 4)
        if int(example.bucket.split("=")[1]) < 3:
            continue
        story, asked = re.fullmatch(r"Story: (.*\.) \w+\? (\w+)", example.prompt).groups()
        answers = EVERYONE if task == "who_has" else PLACES
        words = re.findall(r"\w+", story)
        last = max(i for i, word in enumerate(words) if word == asked)
        named, after = ([w for w in part if w in answers] for part in (words, words[last:]))
        right += HEURISTICS[heuristic](named, after) == example.answer
        total += 1
    assert right / total < 0.45  # one of three people or places, and what is mentioned twice


def test_answers_and_places_are_balanced():
    found = Counter(item("where_thing", "train", i, 0).answer for i in range(4000))
    assert set(found) == set(PLACES)
    assert max(found.values()) < 1.2 * min(found.values())


def test_a_story_of_stage_1_is_as_long_whatever_it_takes(tokenizer):
    lengths = {
        facts: [len(tokenizer(item("where_thing", "train", i, 0, facts).prompt)["input_ids"]) for i in range(200)]
        for facts in range(1, 6)
    }
    means = [sum(found) / len(found) for found in lengths.values()]
    assert max(means) - min(means) < 1.5  # tokens
    assert max(max(found) for found in lengths.values()) <= 96


def test_a_word_is_one_token(tokenizer):
    for text in [*texts(100, seed=3), *(item(task, "test", 0, 0) for task in QUESTIONS)]:
        whole = f"{text.prompt} {text.answer}"
        assert len(tokenizer(whole)["input_ids"]) == len(re.findall(r"Story:|\w+|[^\w\s]", whole))
        assert tokenizer.decode(tokenizer(whole)["input_ids"]) == whole
    assert len(tokenizer) < 400


def test_any_text_has_tokens(tokenizer):
    for text in ("Grüße, 世界!", "def f(x):\n\treturn x", "  two  spaces"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_same_seed_gives_the_same_world():
    assert list(texts(50, seed=1)) == list(texts(50, seed=1))
    assert list(texts(50, seed=1)) != list(texts(50, seed=2))
    assert item("where_left", "train", 7, 0) == item("where_left", "train", 7, 0)
    assert item("where_left", "train", 7, 0) != item("where_left", "train", 8, 0)
