"""Has a base the step that loops would repeat? One fact of twelve, looked up in text as the base may have read it.

    python -m studies.lookups embedded/base nickypro/tinyllama-15M --page docs/results.md
    python -m studies.lookups nickypro/tinyllama-15M=FOLDER      # where the hub's copy lies in a folder

An answer is the likeliest of the twelve names that the facts end with, so one in twelve is right by chance.
"""

import argparse
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.common import write_between
from recurtrace.assets import EMBEDDED, place
from recurtrace.data import nested, stories
from recurtrace.errors import told
from recurtrace.model.base import load_base
from recurtrace.report.render import markdown_table
from recurtrace.report.table import Table

FACTS = 12
Facts = Sequence[tuple[str, str]]
Wording = Callable[[Facts, str], str]


def _each(fact: str, facts: Facts, between: str = " ") -> str:
    return between.join(fact.format(one, other) for one, other in facts)


ENGLISH: dict[str, Wording] = {
    "The ball is in the box. … The ball is in the": lambda facts, asked: (
        f"{_each('The {} is in the {}.', facts)} The {asked} is in the"
    ),
    "The ball is in the box. … Where is the ball? In the": lambda facts, asked: (
        f"{_each('The {} is in the {}.', facts)} Where is the {asked}? In the"
    ),
    "ball box, … ball": lambda facts, asked: f"{_each('{} {}', facts, ', ')}, {asked}",
}
NAMED: dict[str, Wording] = {
    "Story: Ball is in Box. … Where is Ball? In": lambda facts, asked: (
        f"{stories.OPENING} {_each('{} is in {}.', facts)} Where is {asked}? In"
    ),
}
WORDS = (*nested.CONTAINERS, *nested.PLACES, *(thing for things in nested.THINGS.values() for thing in things))
NAMES = (*stories.CONTAINERS, *stories.PLACES, *stories.THINGS)


@torch.no_grad()
def found(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, words: Sequence[str], wording: Wording, items: int
) -> float:
    """The share of lookups that end in the right one of the facts."""
    firsts = {word: tokenizer(f" {word}", add_special_tokens=False)["input_ids"][-1] for word in words}
    right = 0
    for index in range(items):
        rng = random.Random(index)
        drawn = rng.sample(words, 2 * FACTS)
        facts, asked = list(zip(drawn[:FACTS], drawn[FACTS:], strict=True)), rng.randrange(FACTS)
        text = tokenizer(wording(facts, facts[asked][0]), return_tensors="pt")["input_ids"]
        scores = model(text).logits[0, -1, [firsts[other] for _, other in facts]]
        right += int(scores.argmax()) == asked
    return right / items


@told()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bases", nargs="+", help="hub ids or folders; embedded/base is the one in the package")
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--page", type=Path, help="page to write the table into")
    given = parser.parse_args()
    rows = []
    for one in given.bases:
        name, _, folder = one.partition("=")
        model, _ = load_base(folder or place(name))
        tokenizer = AutoTokenizer.from_pretrained(folder or place(name))
        words, wordings = (NAMES, NAMED) if name in EMBEDDED else (WORDS, ENGLISH)
        whole = [word for word in words if len(tokenizer.tokenize(f" {word}")) == 1]
        for text, wording in wordings.items():
            rows.append([name, text, f"{100 * found(model.eval(), tokenizer, whole, wording, given.items):.1f}"])
    note = f"{given.items} stories for each text. The likeliest of twelve names: chance is {100 / FACTS:.1f} %."
    table = Table("lookups", "One fact of twelve", ["Base", "Text", "Found, %"], rows, note)
    text = f"{markdown_table(table)}\n\n{note}"
    if given.page is not None:
        write_between(given.page, "lookups", text)
    print(text)


if __name__ == "__main__":
    main()
