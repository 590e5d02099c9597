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
    "train": ("Anna", "Ben", "Clara", "David", "Mia", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tara", "Will"),
    "heldout": ("Emma", "Finn", "Gus", "Hana"),
    "test": ("Ida", "Jack", "Kate", "Leo"),
}
EVERYONE = tuple(name for names in NAMES.values() for name in names)
PLACES = ("Attic", "Barn", "Cellar", "Garden", "Kitchen", "Yard")
CONTAINERS = ("Bag", "Basket", "Box", "Chest", "Crate", "Jar", "Pot", "Sack", "Trunk")
THINGS = ("Ball", "Coin", "Doll", "Key")

ALL_NAMES = (*EVERYONE, *PLACES, *CONTAINERS, *THINGS)

PIECES = r" ?Story:| ?[A-Za-z]+|[^A-Za-z]"  # a heading, a word with the space before it, any other character
OPENING = "Story:"  # so that every word of a story has a space before it, the first as well

PEOPLE = 3
OBJECTS = 8
LONGEST_CHAIN = 6
TURNS = 6  # of the talk after a story, at most
RHYME = 6  # pairs of a counting rhyme, and steps of its walk
LYING = 0.2  # share of the outermost objects that nobody has
BEFORE = 0.25  # share of people and objects that were somewhere else before
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


def who_holds_what(rng: random.Random, names: Sequence[str], people: int, objects: int, chain: int) -> dict[str, str]:
    """Everyone in a place with one object, or that lies in a place too; the others inside of these.

    `chain` objects are one in the other; nothing but following them tells whose they are, since everyone is named
    equally often and everyone's object has something in it, as far as there are enough.
    """
    who = rng.sample(names, people)
    places = rng.sample(PLACES, len(PLACES))
    small = rng.sample(THINGS, min(objects // 2, 2))
    what = rng.sample(CONTAINERS, objects - len(small))
    chained = [*what[: chain - 1], rng.choice([*what[chain - 1 :], *small])] if chain else []
    others = [one for one in what if one not in chained]
    roots = [*chained[:1], *others][:people]
    inner = [one for one in [*others, *small] if one not in roots and one not in chained]
    holder = dict(zip(who, places, strict=False))
    holder |= {one: rng.choice(places[people:]) if rng.random() < LYING else who[i] for i, one in enumerate(roots)}
    holder |= {inside: outside for outside, inside in itertools.pairwise(chained)}
    depth = dict.fromkeys(roots, 1) | {one: i + 1 for i, one in enumerate(chained)}
    ends = [one for one in depth if one in CONTAINERS and one not in holder.values()]
    for i, one in enumerate(inner):
        longer = [end for end in ends if depth[end] < LONGEST_CHAIN - 1 and end not in chained] or ends or who
        above = roots[i + 1] if i + 1 < len(roots) else rng.choice(longer)
        holder[one], depth[one] = above, depth.get(above, 0) + 1
        ends = [end for end in ends if end != above] + [one] * (one in CONTAINERS)
    return holder


def told(rng: random.Random, names: Sequence[str], people: int, objects: int, chain: int = 0) -> Story:
    """Facts in any order."""
    holder = who_holds_what(rng, names, people, objects, chain)
    story = Story()
    for one in rng.sample(list(holder), len(holder)):
        story.say(statement(one, holder[one]), one, holder[one])
    return story


def happened(rng: random.Random, names: Sequence[str], people: int, objects: int, chain: int = 0) -> Story:
    """Events, of which the last counts. What lies in a place was dropped by someone who was there, and went on.

    Nobody is named who puts or sends a thing: whoever did so would be where the thing is.
    """
    holder = who_holds_what(rng, names, people, objects, chain)
    who = [one for one in holder if one in EVERYONE]
    queues: dict[str, list[tuple[str, str]]] = {one: [(one, holder[one])] for one in holder}  # who or what, to where
    for what in (one for one in holder if one not in EVERYONE):
        if holder[what] in PLACES:
            queues[rng.choice(who)][:0] = [("went", holder[what]), ("dropped", what)]
            del queues[what]
        elif rng.random() < BEFORE:
            queues[what].insert(0, (what, rng.choice(who)))
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
        elif one in EVERYONE or other in EVERYONE:
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
            story = rng.choice((told, happened))(rng, EVERYONE, rng.randint(1, PEOPLE), rng.randint(1, OBJECTS))
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
    """The `index`-th item of a task; `facts` are drawn if they are not given."""
    rng = random.Random(f"{seed} {task} {split} {index} {facts}")
    question = QUESTIONS[task]
    needed = facts or rng.choice(question.train_facts)
    telling = rng.choice(question.tellings)
    for _ in range(PATIENCE):
        chain = rng.choice((needed - 1, needed))
        objects = max(OBJECTS, chain + 3)  # a story for a longer chain has more in it
        story = TELLINGS[telling](rng, NAMES[split], PEOPLE, objects, chain)
        trails = ((one, story.trail(one, question.until)) for one in rng.sample(list(story.facts), len(story.facts)))
        fitting = [(one, found[0]) for one, found in trails if found and found[1] == needed and _fits(one, question)]
        if fitting:
            asked, answer = fitting[0]
            break
    else:
        raise LookupError(f"no story for {task} with {needed} facts")
    prompt = f"{OPENING} {story} {question.word}? {asked}"
    name = f"{task}/{split}/{seed}/{f'facts{facts}/' if facts else ''}{index}"
    return Example(name, task, prompt, answer, bucket=f"facts={needed}")


def evaluation_items(task: str, seed: int, per_bucket: int = TEST_ITEMS_PER_BUCKET) -> Iterator[Example]:
    """Fresh items for every number of facts; those with more than stage 1 has are the extrapolation."""
    for facts in QUESTIONS[task].test_facts:
        yield from (item(task, "test", index, seed, facts) for index in range(per_bucket))


def _fits(one: str, question: Question) -> bool:
    return (one in EVERYONE) == question.of_people


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
