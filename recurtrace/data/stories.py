"""The world of the embedded base: people, places and things in short stories, first as text, later with questions.

The base reads stories and the talk that follows them, as in a children's book: who asked, and what was said. It never
reads a question with a direct answer, which is what stage 1 asks ("Where? Ball", "Garden"). A story is told as

    told      facts in any order: "Ball is in Box. Box is with Anna. Anna is in Garden."
    happened  events in their order: "Anna went to Barn. Anna dropped Box. Ball went into Box. Anna went to Garden."

As in a picture book everything has a name, so a fact is the same four words whatever it is about.

A thing's place is found by following facts: from the ball to the box, to who has it, to where she is. The number of
facts (sentences) that an answer needs is the item's bucket. An item is a pure function of (seed, task, split, index).
The names of a split occur in no other, so no item does; the base has read all names.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from recurtrace.data.example import Example
from recurtrace.data.synthetic import TEST_ITEMS_PER_BUCKET

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Split = Literal["train", "heldout", "test"]

NAMES: dict[Split, tuple[str, ...]] = {
    "train": (
        *("Ada", "Adam", "Alma", "Anna", "Bea", "Ben", "Carl", "Clara", "Dana", "David", "Dora", "Elsa", "Eric", "Eva"),
        *(
            "Felix",
            "Frida",
            "Greta",
            "Hugo",
            "Ines",
            "Ivan",
            "Jonas",
            "Julia",
            "Karl",
            "Lena",
            "Lina",
            "Lucas",
            "Marie",
        ),
        *("Max", "Mia", "Nina", "Noah", "Olga", "Oscar", "Paul", "Pia", "Rosa", "Sam", "Sara", "Tara", "Tom"),
        *("Uma", "Vera", "Viktor", "Will"),
    ),
    "heldout": ("Emma", "Finn", "Gus", "Hana", "Mona", "Rolf", "Theo", "Yara"),
    "test": ("Ida", "Jack", "Kate", "Leo", "Nora", "Otto", "Ruth", "Zoe"),
}
EVERYONE = tuple(name for names in NAMES.values() for name in names)
PLACES = ("Attic", "Barn", "Cellar", "Garden", "Hall", "Kitchen", "Shed", "Yard")
CONTAINERS = (
    *("Bag", "Barrel", "Basket", "Bowl", "Box", "Bucket", "Can", "Cart", "Case", "Chest", "Crate", "Cup"),
    *("Hamper", "Jar", "Pan", "Pot", "Pouch", "Sack", "Tin", "Trunk", "Urn", "Vase"),
)
THINGS = ("Ball", "Bell", "Coin", "Doll", "Key", "Ring")

ALL_NAMES = (*EVERYONE, *PLACES, *CONTAINERS, *THINGS)

PIECES = r" ?Story:| ?[A-Za-z]+|[^A-Za-z]"  # a heading, a word with the space before it, any other character
OPENING = "Story:"  # so that every word of a story has a space before it, the first as well

LINES = 3  # of things one in the other, in a story
LONGEST = 5  # things of such a line in an item with a story of its own
TURNS = 6  # of the talk after a story, at most
RHYME = 6  # pairs of a counting rhyme, and steps of its walk
LYING = 0.5  # share of the stories in which nobody carries anything
BEFORE = 0.25  # share of people and things that were somewhere else before
LENGTHS = (1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 8)  # of the lines that the base reads about
ASKED_LENGTHS = (1, 1, 1, 2, 2, 2, 3, 3, 4, 5)  # of those that stage 1 asks about: a long line has more to ask about
PATIENCE = 2000  # stories drawn for one item


@dataclass(frozen=True)
class Fact:
    """Where someone or something is, at one remove."""

    holder: str
    sentences: frozenset[int]
    """Those that say so: one, or two for what was dropped wherever its owner was."""


@dataclass
class Story:
    sentences: list[str] = field(default_factory=list)
    facts: dict[str, Fact] = field(default_factory=dict)
    """Of every person and object, the one that holds in the end."""

    def say(self, sentence: str, who: str, holder: str, also: frozenset[int] = frozenset()) -> None:
        self.facts[who] = Fact(holder, also | {len(self.sentences)})
        self.sentences.append(sentence)

    def trail(self, asked: str, until: Sequence[str]) -> tuple[str, int] | None:
        """Where the facts lead to from `asked`, and how many sentences that takes; None if they pass by `until`."""
        here, needed = asked, frozenset[int]()
        while here not in until:
            if here not in self.facts:
                return None
            needed |= self.facts[here].sentences
            here = self.facts[here].holder
        return here, len(needed)

    @property
    def people(self) -> list[str]:
        return [who for who in self.facts if who in EVERYONE]

    def __str__(self) -> str:
        return " ".join(self.sentences)


# --- the two ways to tell a story --------------------------------------------------------------------------------


def who_holds_what(rng: random.Random, names: Sequence[str], lines: int, length: int) -> dict[str, str]:
    """For each line a person in a place, and `length` things one in the other, which that person has or which lie in
    another place. Lines are of one length and kind, so that only following one tells where it ends."""
    who = rng.sample(names, lines)
    places = rng.sample(PLACES, 2 * lines)
    containers = rng.sample(CONTAINERS, lines * max(length - 1, 0))
    things = rng.sample(THINGS, lines)
    lying = rng.random() < LYING
    holder = {}
    for number, person in enumerate(who):
        holder[person] = places[number]
        inside = containers[number::lines] + things[number : number + bool(length)]
        above = places[lines + number] if lying else person
        for one in inside:
            holder[one], above = above, one
    return holder


def told(rng: random.Random, names: Sequence[str], lines: int, length: int) -> Story:
    """Facts in any order."""
    holder = who_holds_what(rng, names, lines, length)
    story = Story()
    for one in rng.sample(list(holder), len(holder)):
        story.say(statement(one, holder[one]), one, holder[one])
    return story


def happened(rng: random.Random, names: Sequence[str], lines: int, length: int) -> Story:
    """Events, of which the last counts. What lies in a place was dropped by someone who was there, and went on.

    Nobody is named who puts or sends a thing: whoever did so would be where the thing is.
    """
    holder = who_holds_what(rng, names, lines, length)
    who = [one for one in holder if one in EVERYONE]
    queues: dict[str, list[tuple[str, str]]] = {one: [(one, holder[one])] for one in holder}  # who or what, to where
    for what in (one for one in holder if one not in EVERYONE):
        if holder[what] in PLACES:
            queues[rng.choice(who)][:0] = [("went", holder[what]), ("dropped", what)]
            del queues[what]
        elif rng.random() < BEFORE and (others := [one for one in who if one != holder[what]]):
            queues[what].insert(0, (what, rng.choice(others)))
    for one in who:
        if len(queues[one]) == 1 and rng.random() < BEFORE:
            queues[one].insert(0, (one, rng.choice([place for place in PLACES if place != holder[one]])))
    story = Story()
    while queues:
        one = rng.choice(list(queues))
        event, other = queues[one].pop(0)
        if not queues[one]:
            del queues[one]
        if event == "dropped":
            here = story.facts[one]
            story.say(f"{one} dropped {other}.", other, here.holder, also=here.sentences)
        elif event == "went" or one in EVERYONE or other in EVERYONE:
            story.say(f"{one} went to {other}.", one, other)
        else:
            story.say(f"{one} went into {other}.", one, other)
    return story


TELLINGS = {"told": told, "happened": happened}


def statement(one: str, holder: str) -> str:
    return f"{one} is {'with' if holder in EVERYONE else 'in'} {holder}."


# --- what the base reads -----------------------------------------------------------------------------------------


def talk(rng: random.Random, story: Story, turns: int) -> Iterator[str]:
    """Said after a story, each time one fact of it; often the next is about what was just named."""
    known = list(story.facts)
    asked = rng.choice(known)
    for _ in range(turns):
        holder = story.facts[asked].holder
        kind = rng.random()
        if kind < 0.25:
            yield chant(story, asked, " ", " ")
        elif kind < 0.45:
            yield chant(story, asked, " in ", " with ")
        elif kind < 0.6:
            yield statement(asked, holder)
        else:
            yield rng.choices(["", f"{rng.choice(story.people)} asked:"], [0.8, 0.2])[0]
            if holder in EVERYONE and kind < 0.7:
                yield f"Who has {asked}? It is with {holder}."
            else:
                short = f"With {holder}." if holder in EVERYONE else f"In {holder}."
                yield f"Where is {asked}? {short if kind < 0.9 else statement(asked, holder)}"
        asked = rng.choice(known)


def chant(story: Story, asked: str, inside: str, held: str) -> str:
    """All the way, as nursery rhymes have it: "Ball in Box with Anna in Garden." Each name is one fact further."""
    words = asked
    while asked in story.facts:
        asked = story.facts[asked].holder
        words += (held if asked in EVERYONE else inside) + asked
    return f"{words}."


def counting_rhyme(rng: random.Random) -> tuple[str, str]:
    """Pairs of names and a walk along them. A lookup is learned here in minutes, and hardly at all where it is rare."""
    names = rng.sample(ALL_NAMES, RHYME)
    follow = dict(zip(names, rng.sample(names, RHYME), strict=True))
    walk = [rng.choice(names)]
    for _ in range(RHYME):
        walk.append(follow[walk[-1]])
    pairs = " ".join(f"{one} {other}," for one, other in follow.items())
    return f"{OPENING} {pairs} {walk[0]}", f"{' '.join(walk[1:])}."


def texts(count: int, seed: int, turns: int = TURNS, rhymes: float = 0.1) -> Iterator[Example]:
    """Pretraining examples: stories of any size with all names in them and talk about them, and counting rhymes.

    The loss is that of what is said: where people and things are at first cannot be known.
    """
    for index in range(count):
        rng = random.Random(f"{seed} little world {index}")
        if rng.random() < rhymes:
            read, said = counting_rhyme(rng)
        else:
            story = rng.choice((told, happened))(rng, EVERYONE, rng.randint(1, LINES), rng.choice(LENGTHS))
            read = f"{OPENING} {story}"
            said = " ".join(part for part in talk(rng, story, rng.randint(2, turns)) if part)
        yield Example(f"text/{seed}/{index}", "text", read, said)


# --- what stage 1 asks -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """One task: what is asked, in which stories, and with how many facts."""

    word: str
    until: tuple[str, ...]
    """What an answer is one of."""
    of_people: bool
    tellings: tuple[str, ...]
    train_facts: Sequence[int]
    test_facts: Sequence[int]


QUESTIONS = {
    "where_person": Question("Where", PLACES, True, ("told", "happened"), (1,), (1,)),
    "who_has": Question("Who", EVERYONE, False, ("told", "happened"), range(1, 6), range(1, 8)),
    "where_thing": Question("Where", PLACES, False, ("told",), range(1, 7), range(1, 9)),
    "where_left": Question("Where", PLACES, False, ("happened",), range(2, 7), range(2, 9)),
}


def item(task: str, split: Split, index: int, seed: int, facts: int | None = None) -> Example:
    """The `index`-th item of a task, with a story of its own; `facts` are drawn if they are not given."""
    rng = random.Random(f"{seed} {task} {split} {index} {facts}")
    question = QUESTIONS[task]
    needed = facts or rng.choice(question.train_facts)
    telling = rng.choice(question.tellings)
    for _ in range(PATIENCE):
        story = TELLINGS[telling](rng, NAMES[split], LINES, max(rng.choice((needed - 1, needed)), LONGEST))
        fitting = [found for found in asked_of(rng, story, question) if found[2] == needed]
        if fitting:
            break
    else:
        raise LookupError(f"no story for {task} with {needed} facts")
    name = f"{task}/{split}/{seed}/{f'facts{facts}/' if facts else ''}{index}"
    return example(name, task, story, *fitting[0])


def training_items(task: str, count: int, seed: int) -> Iterator[Example]:
    """All questions of the task to a story, then to the next: packed, a story is read once for all of them."""
    return itertools.islice(_training_items(task, seed), count)


def _training_items(task: str, seed: int) -> Iterator[Example]:
    question = QUESTIONS[task]
    for number in itertools.count():
        rng = random.Random(f"{seed} {task} train {number}")
        story = TELLINGS[rng.choice(question.tellings)](rng, NAMES["train"], LINES, rng.choice(ASKED_LENGTHS))
        for asked, answer, facts in asked_of(rng, story, question):
            if facts in question.train_facts:
                yield example(f"{task}/train/{seed}/{number}/{asked}", task, story, asked, answer, facts)


def asked_of(rng: random.Random, story: Story, question: Question) -> list[tuple[str, str, int]]:
    """Whom or what the question can be asked about, the answer and the number of facts, in any order."""
    about = [one for one in story.facts if (one in EVERYONE) == question.of_people]
    trails = ((one, story.trail(one, question.until)) for one in rng.sample(about, len(about)))
    return [(one, *found) for one, found in trails if found]


def example(name: str, task: str, story: Story, asked: str, answer: str, facts: int) -> Example:
    return Example(name, task, f"{OPENING} {story} {QUESTIONS[task].word}? {asked}", answer, bucket=f"facts={facts}")


def evaluation_items(task: str, seed: int, per_bucket: int = TEST_ITEMS_PER_BUCKET) -> Iterator[Example]:
    """Fresh items for every number of facts; those with more than stage 1 has are the extrapolation."""
    for facts in QUESTIONS[task].test_facts:
        yield from (item(task, "test", index, seed, facts) for index in range(per_bucket))


def build_tokenizer() -> "PreTrainedTokenizerFast":
    """Byte-level BPE without merges: a word that the world uses is one token, every other is spelled in bytes."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    splitter = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PIECES), "isolated"), to_bytes])
    forms = " ".join(("", *ALL_NAMES))
    sample = [f"{example.prompt} {example.answer}" for example in texts(2_000, seed=0)]
    asked = [item(task, "train", 0, 0).prompt for task in QUESTIONS]
    pieces = {piece for text in [forms, *sample, *asked] for piece, _ in splitter.pre_tokenize_str(text)}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = ["<pad>", "<eos>", *alphabet, *sorted(pieces - set(alphabet))]
    model = Tokenizer(models.BPE({piece: i for i, piece in enumerate(vocabulary)}, [], ignore_merges=True))
    model.pre_tokenizer = splitter
    model.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", eos_token="<eos>", padding_side="left", model_max_length=1024
    )
