"""Samples of a test set: stratified by task and bucket, and cut into disjoint evaluation seeds."""

import logging
import random
from collections import defaultdict
from collections.abc import Sequence

from recurtrace.data.example import Example
from recurtrace.errors import RecurTraceError

logger = logging.getLogger(__name__)

EVALUATION_SEEDS = 8
ITEMS_PER_SEED = 300


def stratified_order(examples: Sequence[Example], seed: int = 0) -> list[Example]:
    """All examples in a seeded order of which every stretch holds each task's buckets in their shares.

    Each bucket of a task is shuffled and spread evenly over [0, 1); the order is that of the places.
    """
    rng = random.Random(f"{seed} stratified")
    buckets: dict[tuple[str, str], list[Example]] = defaultdict(list)
    for example in examples:
        buckets[example.task, example.bucket].append(example)
    placed = []
    for bucket in sorted(buckets):
        members = rng.sample(buckets[bucket], len(buckets[bucket]))
        offset = rng.random()
        placed += [((i + offset) / len(members), example.id, example) for i, example in enumerate(members)]
    return [example for _, _, example in sorted(placed, key=lambda place: place[:2])]


def stratified(examples: Sequence[Example], count: int, seed: int = 0) -> list[Example]:
    """`count` of the examples, with the buckets in their shares."""
    if 0 < len(examples) < count:
        tasks = ", ".join(sorted({example.task for example in examples}))
        logger.warning("%s: %d examples are used, not %d: there are no more.", tasks, len(examples), count)
    return stratified_order(examples, seed)[:count]


def evaluation_seeds(
    examples: Sequence[Example], seeds: int = EVALUATION_SEEDS, per_seed: int = ITEMS_PER_SEED, seed: int = 0
) -> list[list[Example]]:
    """Disjoint samples, each of them stratified; which items they are depends on `seed` alone."""
    if len(examples) < seeds * per_seed:
        raise RecurTraceError(
            f"{seeds} seeds of {per_seed} items need {seeds * per_seed} different ones, but there are {len(examples)}; "
            "lower seeds or per_seed."
        )
    order = stratified_order(examples, seed)
    return [order[number * per_seed : (number + 1) * per_seed] for number in range(seeds)]
