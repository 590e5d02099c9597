"""Things in things, in plain English: for a language model that knows the words and was never asked for one of them.

    The ball is in the box. The key is in the pot. The box is in the garden. Where is the ball? → garden

A story has three lines of as many facts each, told in any order, so that only following one tells where it ends. The
number of facts (sentences) that an answer needs is the item's bucket. An item is a pure function of (seed, split,
index), and every split has things of its own in each of its stories, so no story is in two of them.
"""

import itertools
import random
from collections.abc import Iterator

from recurtrace.data.example import Example
from recurtrace.data.stories import Split, Story
from recurtrace.data.synthetic import PAPER, TEST_ITEMS_PER_BUCKET, Sizes

TASK = "nested"
PLACES = (
    *("beach", "castle", "cave", "church", "farm", "field", "forest", "garden", "hall", "hill", "house", "kitchen"),
    *("lake", "library", "market", "park", "river", "room", "school", "shed", "store", "street", "tower", "yard"),
)
CONTAINERS = (
    *("bag", "basket", "bed", "bin", "boat", "box", "bucket", "bus", "can", "car", "cart", "case", "coat", "cup"),
    *("hat", "jar", "net", "pack", "package", "pan", "plate", "pocket", "pot", "ship", "suit", "tank", "tent", "tin"),
    *("train", "trap", "tub", "van"),
)
THINGS: dict[Split, tuple[str, ...]] = {
    "train": (
        *("apple", "ball", "bear", "bird", "card", "cat", "coin"),
        *("dog", "egg", "key", "leaf", "pen", "star", "stone"),
    ),
    "heldout": ("bell", "button", "doll", "fish", "seed"),
    "test": ("cookie", "flower", "mouse", "ring", "stick"),
}
LINES = 3


def told(rng: random.Random, split: Split, length: int) -> Story:
    """`LINES` things, each at the end of a line of `length` facts to a place of its own."""
    places = rng.sample(PLACES, LINES)
    between = rng.sample(CONTAINERS, LINES * (length - 1))
    things = rng.sample(THINGS[split], LINES)
    holder: dict[str, str] = {}
    for line, above in enumerate(places):
        for one in (*between[line::LINES], things[line]):
            holder[one], above = above, one
    story = Story()
    for one in rng.sample(list(holder), len(holder)):
        story.say(f"The {one} is in the {holder[one]}.", one, holder[one])
    return story


def questions(name: str, story: Story) -> Iterator[Example]:
    for asked in story.holder:
        place, facts = story.trail(asked, PLACES) or ("", 0)
        yield Example(f"{name}/{asked}", TASK, f"{story} Where is the {asked}?", place, bucket=f"facts={facts}")


def item(task: str, split: Split, index: int, seed: int, facts: int | None = None, sizes: Sizes = PAPER) -> Example:
    """The `index`-th item, with a story of its own; `facts` are drawn if they are not given."""
    rng = random.Random(f"{seed} {task} {split} {index} {facts}")
    needed = facts or rng.randint(1, sizes.facts)
    name = f"{task}/{split}/{seed}/{f'facts{facts}/' if facts else ''}{index}"
    story = told(rng, split, rng.randint(needed, max(needed, sizes.facts)))
    return rng.choice([one for one in questions(name, story) if one.bucket == f"facts={needed}"])


def training_items(task: str, count: int, seed: int, sizes: Sizes = PAPER) -> Iterator[Example]:
    """All questions to a story, then to the next: packed, a story is read once for all of them."""
    return itertools.islice(_training_items(task, seed, sizes), count)


def _training_items(task: str, seed: int, sizes: Sizes) -> Iterator[Example]:
    lengths = range(1, sizes.facts + 1)  # long ones more often: most questions to them are easy
    for number in itertools.count():
        rng = random.Random(f"{seed} {task} train {number}")
        story = told(rng, "train", *rng.choices(lengths, weights=lengths))
        asked = list(questions(f"{task}/train/{seed}/{number}", story))
        yield from rng.sample(asked, len(asked))


def evaluation_items(
    task: str, seed: int, per_bucket: int = TEST_ITEMS_PER_BUCKET, sizes: Sizes = PAPER
) -> Iterator[Example]:
    """Fresh items for every number of facts; those with more than stage 1 has are the extrapolation."""
    for facts in range(1, sizes.facts + sizes.facts_beyond + 1):
        yield from (item(task, "test", index, seed, facts, sizes) for index in range(per_bucket))
