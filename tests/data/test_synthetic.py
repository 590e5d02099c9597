"""The synthetic tasks: every answer recomputed from the text alone, the splits kept apart."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurtrace import RecurTraceError
from recurtrace.data.synthetic import (
    PAPER,
    TASKS,
    TEST_STEPS,
    Sizes,
    evaluation_items,
    item,
    symbol_pool,
    training_items,
)

SMALL = Sizes(
    symbols=24, test_symbols=8, mapping=6, registers=3, values=3, largest_start=20, operands=(2, 5), modulus=11
)


def solve_p_hop(prompt):
    pairs, hops, start = re.fullmatch(r"Map: (.*)\nHops: (\d+)\nStart: (\w+)", prompt).groups()
    table = [pair.split() for pair in pairs.split(", ")]
    here = start
    for _ in range(int(hops)):
        here = next(target for source, target in table if source == here)
    return here


def solve_symbolic(prompt, values):
    state_text, rules = re.fullmatch(r"State: (.*)\nRules: (.*)\nEnd:", prompt).groups()
    names, numbers = zip(*(part.split() for part in state_text.split(", ")), strict=True)
    cells = list(map(int, numbers))
    for rule in rules.split(", "):
        if match := re.fullmatch(r"swap (\w+) (\w+)", rule):
            i, j = map(names.index, match.groups())
            cells[i], cells[j] = cells[j], cells[i]
        elif match := re.fullmatch(r"inc (\w+)", rule):
            cells[names.index(match[1])] += 1
            cells[names.index(match[1])] %= values
        elif match := re.fullmatch(r"set (\w+) (\d) if (\w+) (\d)", rule):
            if cells[names.index(match[3])] == int(match[4]):
                cells[names.index(match[1])] = int(match[2])
        elif match := re.fullmatch(r"set (\w+) (\d)", rule):
            cells[names.index(match[1])] = int(match[2])
        else:
            target, source = re.fullmatch(r"copy (\w+) (\w+)", rule).groups()
            cells[names.index(target)] = cells[names.index(source)]
    return " ".join(map(str, cells))


def solve_arithmetic(prompt):
    start, modulus, steps = re.fullmatch(r"Start: (\d+)(?: mod (\d+))?\nSteps: (.*)\nEnd:", prompt).groups()
    expression = start
    for step in steps.split():
        expression = f"({expression}){step}"
    return str(eval(expression) % int(modulus) if modulus else eval(expression))


def solve(example, sizes):
    solver = {"p_hop": solve_p_hop, "arithmetic": solve_arithmetic}.get(example.task)
    return solver(example.prompt) if solver else solve_symbolic(example.prompt, sizes.values)


@pytest.mark.parametrize("sizes", [PAPER, SMALL], ids=["paper", "small"])
@pytest.mark.parametrize("task", TASKS)
@given(index=st.integers(0, 10**6), seed=st.integers(0, 100), split=st.sampled_from(["train", "test"]))
def test_every_answer_is_what_the_text_says(task, sizes, index, seed, split):
    example = item(task, split, index, seed, sizes=sizes)
    assert example.answer == solve(example, sizes)


def codes(text):
    return set(re.findall(r"\b[A-Z]{2}\b", text))


def test_symbols_128_codes_96_train_32_test():
    train, test = set(symbol_pool(PAPER, "train")), set(symbol_pool(PAPER, "test"))
    assert (len(train), len(test), len(train | test)) == (96, 32, 128)
    assert all(re.fullmatch("[A-Z]{2}", code) for code in train | test)
    for task in ("p_hop", "symbolic"):
        assert codes(" ".join(example.prompt for example in training_items(task, 300, seed=0))) == train
        assert codes(" ".join(example.prompt for example in evaluation_items(task, seed=0, per_bucket=20))) <= test


def test_shapes_of_the_paper():
    for example in training_items("p_hop", 50, seed=1):
        assert len(codes(example.prompt)) == 32
    for example in training_items("symbolic", 200, seed=1):
        assert len(example.answer.split()) == 6
        assert set(example.answer.split()) <= set("0123")
    rules = " ".join(example.prompt for example in training_items("symbolic", 300, seed=1))
    assert all(re.search(rule, rules) for rule in ("swap", "inc", " if ", "copy", r"set [A-Z]{2} \d[,\n]"))
    for example in training_items("arithmetic", 300, seed=1):
        start, *operands = map(int, re.findall(r"\d+", example.prompt))
        assert 1 <= start <= 99
        assert all(2 <= operand <= 9 for operand in operands)


def test_steps_are_uniform_in_training_and_bucketed_in_testing():
    counts = Counter(example.bucket for example in training_items("arithmetic", 7000, seed=3))
    assert counts.keys() == {f"k={k}" for k in range(2, 9)}
    assert all(850 < count < 1150 for count in counts.values())
    tests = list(evaluation_items("symbolic", seed=3, per_bucket=30))
    assert Counter(example.bucket for example in tests) == {f"k={k}": 30 for k in (2, 4, 6, 8, 10, 12, 14, 16)}
    assert list(TEST_STEPS) == [2, 4, 6, 8, 10, 12, 14, 16]


@pytest.mark.parametrize("task", TASKS)
def test_no_test_item_occurs_in_training(task):
    """At the small sizes the space of short arithmetic items is nearly exhausted by this many draws."""
    sizes = SMALL if task == "arithmetic" else PAPER
    train = {example.prompt for example in training_items(task, 20_000, seed=0, sizes=sizes)}
    test = [example.prompt for example in evaluation_items(task, seed=0, per_bucket=50, sizes=sizes)]
    assert not train & set(test)
    assert len(set(test)) == len(test)


@pytest.mark.parametrize("task", TASKS)
def test_any_number_of_workers_makes_the_same_items(task):
    alone = list(training_items(task, 30, seed=5))
    shared = [list(training_items(task, 30, seed=5, part=part, parts=4)) for part in range(4)]
    assert [shared[i % 4][i // 4] for i in range(30)] == alone
    assert len({example.id for example in alone}) == 30
    assert alone != list(training_items(task, 30, seed=6))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"symbols": 700}, "symbols must be between 1 and 676"),
        ({"mapping": 40}, "mapping needs between 2 and 32 symbols"),
        ({"registers": 1}, "registers needs between 2 and 32"),
        ({"operands": (5, 2)}, "operands a rising pair"),
    ],
)
def test_impossible_sizes(fields, message):
    with pytest.raises(RecurTraceError, match=message):
        Sizes(**fields)


def test_small_sizes_have_fewer_items_and_say_so(caplog):
    tiny = Sizes(symbols=8, test_symbols=4, mapping=2, registers=2, largest_start=5, operands=(2, 3))
    items = list(evaluation_items("arithmetic", seed=0, per_bucket=50, sizes=tiny, buckets=range(2, 3)))
    assert 0 < len(items) < 50
    assert len({example.prompt for example in items}) == len(items)
    assert f"arithmetic with k=2 has only {len(items)} different items" in caplog.text
