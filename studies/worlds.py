"""What the claims have to know of a study's questions: states, lookups, how many facts they need."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from recurtrace.records import ItemRecord


@dataclass(frozen=True)
class World:
    """Questions of one kind of data; an item's kind is its task or its bucket."""

    tasks: frozenset[str]
    kind: Callable[[ItemRecord], str]
    stateful: tuple[str, ...]
    """Kinds whose answer is passed on from fact to fact."""
    lookups: tuple[str, ...]
    """Kinds that one fact answers."""
    facts: Callable[[ItemRecord], int]
    hard: int
    """Facts from which an item is hard."""
    deepest: int
    """That stage 1 trains."""


def _facts(record: ItemRecord) -> int:
    return int(record.bucket.removeprefix("facts="))


STORIES = World(
    tasks=frozenset({"where_thing", "where_left", "who_has", "where_person"}),
    kind=lambda record: record.task,
    stateful=("where_thing", "where_left", "who_has"),
    lookups=("where_person",),
    facts=_facts,
    hard=3,
    deepest=9,
)

NESTED = World(
    tasks=frozenset({"nested"}),
    kind=lambda record: "one fact" if _facts(record) == 1 else "several facts",
    stateful=("several facts",),
    lookups=("one fact",),
    facts=_facts,
    hard=3,
    deepest=9,
)

# Supporting facts of bAbI's twenty tasks, as their authors count them; where that differs from item to item (7, 8, 18),
# what most of them have.
_BABI_FACTS = dict(enumerate((1, 2, 3, 1, 1, 1, 2, 2, 1, 1, 2, 1, 2, 2, 2, 3, 2, 2, 2, 1), start=1))

BABI = World(
    tasks=frozenset({"babi"}),
    kind=lambda record: record.bucket.replace("task=", "task "),
    stateful=("task 2", "task 3", "task 7", "task 8", "task 11", "task 13", "task 14"),
    lookups=("task 1", "task 4", "task 5", "task 6", "task 9", "task 10", "task 12", "task 20"),
    facts=lambda record: _BABI_FACTS[int(record.bucket.removeprefix("task="))],
    hard=2,
    deepest=8,
)


def world_of(records: Iterable[ItemRecord]) -> World | None:
    """The one whose questions these are; None of others."""
    tasks = {record.task for record in records}
    return next((world for world in (STORIES, NESTED, BABI) if tasks <= world.tasks), None)
