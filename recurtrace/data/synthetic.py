"""The three synthetic tasks (appendix "Synthetic Reasoning Tasks"), in direct-answer form.

An item is a pure function of (seed, task, split, index), whatever the number of workers. Training and test share no
symbol in the two symbol tasks; and in all three, an item whose text hashes into the test's share is never drawn for
training, so that no test item can occur there. A base of our own is pretrained on the symbols of both pools, so that
it knows them all, and on no test item either.
"""

import hashlib
import logging
import random
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from recurtrace.data.example import Example
from recurtrace.errors import RecurTraceError

logger = logging.getLogger(__name__)

Split = Literal["train", "test", "pretrain"]

TRAIN_STEPS = range(2, 9)  # k of a training item, up to the eight-loop clamp
PRETRAIN_STEPS = (1, 1, 1, 1, 2, 2, 2, 3, 3, 4)  # of the embedded base: fewer than stage 1 asks for
TEST_STEPS = range(2, 17, 2)  # the test's buckets; those above 8 are the extrapolation
TEST_ITEMS_PER_BUCKET = 500
TRAIN_ITEMS = 150_000
PATIENCE = 1000  # draws without a new item, until there are taken to be no more
TEST_SHARE = 16  # one text in so many may only occur in a test


@dataclass(frozen=True)
class Sizes:
    """How large the tasks are: the paper's by default, smaller for small models."""

    symbols: int = 128
    """Two-letter codes in all."""
    test_symbols: int = 32
    """Codes kept for testing."""
    mapping: int = 32
    """Symbols in one pointer-chasing instance."""
    registers: int = 6
    values: int = 4
    """Values of a register, counted modulo."""
    largest_start: int = 99
    operands: tuple[int, int] = (2, 9)
    """Smallest and largest operand of the arithmetic task."""
    modulus: int = 0
    """Arithmetic counts modulo this; 0 counts without end, as in the paper."""
    facts: int = 6
    """Most facts of a question about a story in training. Not in the paper."""
    facts_beyond: int = 2
    """How many more a task's test goes up to. Not in the paper."""

    def __post_init__(self) -> None:
        train = self.symbols - self.test_symbols
        if not 0 < self.symbols <= len(string.ascii_uppercase) ** 2:
            raise RecurTraceError(f"symbols must be between 1 and {26**2} (two letters each), got {self.symbols}.")
        for name, size in (("mapping", self.mapping), ("registers", self.registers)):
            if not 2 <= size <= min(train, self.test_symbols):
                raise RecurTraceError(
                    f"{name} needs between 2 and {min(train, self.test_symbols)} symbols, the smaller of the "
                    f"training ({train}) and test ({self.test_symbols}) pools; got {size}."
                )
        if self.values < 2 or self.largest_start < 1 or not 0 < self.operands[0] <= self.operands[1]:
            raise RecurTraceError(
                "values must be at least 2, largest_start at least 1, operands a rising pair above 0."
            )
        if self.modulus < 0 or self.modulus == 1:
            raise RecurTraceError(f"modulus must be 0 or at least 2, got {self.modulus}.")
        if not 2 <= self.facts <= 6:
            raise RecurTraceError(f"facts must be between 2 and 6, got {self.facts}.")
        if not 0 <= self.facts_beyond <= 2:
            raise RecurTraceError(f"facts_beyond must be 0, 1 or 2, got {self.facts_beyond}.")


PAPER = Sizes()


@cache
def symbol_pool(sizes: Sizes, split: Split) -> list[str]:
    """The codes of a split; which codes there are does not depend on any run's seed."""
    codes = [a + b for a in string.ascii_uppercase for b in string.ascii_uppercase]
    drawn = random.Random("recurtrace symbols").sample(codes, sizes.symbols)
    if split == "pretrain":
        return drawn
    return drawn[: sizes.test_symbols] if split == "test" else drawn[sizes.test_symbols :]


@dataclass(frozen=True)
class Problem:
    prompt: str
    states: list[str]
    """What each of the k steps leads to; the last is the answer."""


def pointer_chasing(rng: random.Random, k: int, pool: list[str], sizes: Sizes) -> Problem:
    """Follow a random permutation k times from a start."""
    symbols = rng.sample(pool, sizes.mapping)
    targets = rng.sample(symbols, len(symbols))
    follow = dict(zip(symbols, targets, strict=True))
    path = [rng.choice(symbols)]
    for _ in range(k):
        path.append(follow[path[-1]])
    pairs = ", ".join(f"{symbol} {target}" for symbol, target in follow.items())
    return Problem(f"Map: {pairs}\nHops: {k}\nStart: {path[0]}", path[1:])


def state_tracking(rng: random.Random, k: int, pool: list[str], sizes: Sizes) -> Problem:
    """Apply k rules to named registers; the answer is the final state."""
    names = rng.sample(pool, sizes.registers)
    state = {name: rng.randrange(sizes.values) for name in names}
    before = ", ".join(f"{name} {value}" for name, value in state.items())
    rules, states = [], []
    for _ in range(k):
        rule = rng.choice(("assign", "swap", "increment", "conditional", "copy"))
        a, b = rng.sample(names, 2)
        value, test = rng.randrange(sizes.values), rng.randrange(sizes.values)
        if rule == "assign":
            rules.append(f"set {a} {value}")
            state[a] = value
        elif rule == "swap":
            rules.append(f"swap {a} {b}")
            state[a], state[b] = state[b], state[a]
        elif rule == "increment":
            rules.append(f"inc {a}")
            state[a] = (state[a] + 1) % sizes.values
        elif rule == "conditional":
            rules.append(f"set {a} {value} if {b} {test}")
            if state[b] == test:
                state[a] = value
        else:
            rules.append(f"copy {a} {b}")
            state[a] = state[b]
        states.append(" ".join(str(state[name]) for name in names))
    return Problem(f"State: {before}\nRules: {', '.join(rules)}\nEnd:", states)


def arithmetic(rng: random.Random, k: int, pool: list[str], sizes: Sizes) -> Problem:
    """Apply k operations to a number, from left to right."""
    value = start = rng.randint(1, sizes.largest_start)
    steps, values = [], []
    for _ in range(k):
        operation, operand = rng.choice("+-*"), rng.randint(*sizes.operands)
        steps.append(f"{operation}{operand}")
        value = {"+": value + operand, "-": value - operand, "*": value * operand}[operation]
        value = value % sizes.modulus if sizes.modulus else value
        values.append(str(value))
    modulus = f" mod {sizes.modulus}" if sizes.modulus else ""
    return Problem(f"Start: {start}{modulus}\nSteps: {' '.join(steps)}\nEnd:", values)


TASKS: dict[str, Callable[[random.Random, int, list[str], Sizes], Problem]] = {
    "p_hop": pointer_chasing,
    "symbolic": state_tracking,
    "arithmetic": arithmetic,
}


def item(
    task: str, split: Split, index: int, seed: int, steps: int | Sequence[int] = TRAIN_STEPS, sizes: Sizes = PAPER
) -> Example:
    """The `index`-th item of a task; `steps` is k, or what k is drawn from."""
    k, problem = draw(task, split, index, seed, steps, sizes)
    bucket = f"k{k}/" if isinstance(steps, int) else ""
    name = f"{task}/{split}/{seed}/{bucket}{index}"
    return Example(id=name, task=task, prompt=problem.prompt, answer=problem.states[-1], bucket=f"k={k}")


def draw(
    task: str, split: Split, index: int, seed: int, steps: int | Sequence[int] = TRAIN_STEPS, sizes: Sizes = PAPER
) -> tuple[int, Problem]:
    """k and the problem itself, with its states on the way."""
    rng = random.Random(f"{seed} {task} {split} {index} {steps}")
    pool = symbol_pool(sizes, split)
    while True:
        k = steps if isinstance(steps, int) else rng.choice(steps)
        problem = TASKS[task](rng, k, pool, sizes)
        if _is_test_text(problem.prompt) == (split == "test"):
            return k, problem


def training_items(
    task: str, count: int, seed: int, sizes: Sizes = PAPER, part: int = 0, parts: int = 1
) -> Iterator[Example]:
    """Items `part`, `part + parts`, …: workers that share the work make the same items as one alone."""
    return (item(task, "train", index, seed, sizes=sizes) for index in range(part, count, parts))


def evaluation_items(
    task: str, seed: int, per_bucket: int = TEST_ITEMS_PER_BUCKET, sizes: Sizes = PAPER, buckets: range = TEST_STEPS
) -> Iterator[Example]:
    """Fresh items for every bucket of k, no two the same; fewer where small sizes do not have so many."""
    for k in buckets:
        seen: set[str] = set()
        index = last_new = 0
        while len(seen) < per_bucket and index - last_new < PATIENCE:
            example = item(task, "test", index, seed, steps=k, sizes=sizes)
            if example.prompt not in seen:
                seen.add(example.prompt)
                last_new = index
                yield example
            index += 1
        if len(seen) < per_bucket:
            logger.warning("%s with k=%d has only %d different items at these sizes.", task, k, len(seen))


def _is_test_text(prompt: str) -> bool:
    return hashlib.blake2b(prompt.encode(), digest_size=1).digest()[0] % TEST_SHARE == 0
