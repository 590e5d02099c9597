"""The world of the embedded base: people, places and things in short stories, first as text, later with questions.

The base reads stories and the talk that follows them, as in a children's book: who asked, and what was said. It never
reads a question with a direct answer, which is what stage 1 asks ("Where? Ball", "Garden"). A story is told as

    told      facts in any order: "Ball is in Box. Box is with Anna. Anna is in Garden."
    happened  events in their order: "Anna left Box in Barn. Ball went into Box. Ben gave Pot to Eva."

As in a picture book everything has a name, so a fact is the same four words whatever it is about.

A thing's place is found by following facts: from the ball to the box, to who has it, to where she is. The number of
facts (sentences) that an answer needs is the item's bucket. An item is a pure function of (seed, task, split, index).
The names of a split occur in no other, so no item does; the base has read all names.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from recurtrace.data.example import Example
from recurtrace.data.synthetic import PAPER, TEST_ITEMS_PER_BUCKET, Sizes

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
PLACED = 0.75  # share of the stories that say where people are
BEFORE = 0.25  # share of people and things that were somewhere else before
LENGTHS = (1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 8)  # of the lines that the base reads about
ASKED_LENGTHS = (1, 1, 1, 2, 2, 2, 3, 3, 4, 5)  # of those that stage 1 asks about: a long line has more to ask about
PATIENCE = 2000  # stories drawn for one item


@dataclass
class Story:
    sentences: list[str] = field(default_factory=list)
    holder: dict[str, str] = field(default_factory=dict)
    """Where every person and object is in the end, at one remove."""

    def say(self, sentence: str, who: str, holder: str) -> None:
        self.holder[who] = holder
        self.sentences.append(sentence)

    def trail(self, asked: str, until: Sequence[str]) -> tuple[str, int] | None:
        """Where the facts lead to from `asked`, and how many that takes; None if they pass by `until`."""
        here, facts = asked, 0
        while here not in until:
            if here not in self.holder:
                return None
            here, facts = self.holder[here], facts + 1
        return here, facts

    @property
    def people(self) -> list[str]:
        return sorted({who for who in (*self.holder, *self.holder.values()) if who in EVERYONE})

    def __str__(self) -> str:
        return " ".join(self.sentences)


# --- the two ways to tell a story --------------------------------------------------------------------------------


def who_holds_what(rng: random.Random, names: Sequence[str], lines: int, length: int, placed: bool) -> dict[str, str]:
    """For each line a person in a place, and `length` things one in the other, which that person has or which lie in
    another place. Lines are of one length and kind, so that only following one tells where it ends. A story that is not
    `placed` says who has what, and not where they are."""
    who = rng.sample(names, lines)
    places = rng.sample(PLACES, 2 * lines)
    containers = rng.sample(CONTAINERS, lines * max(length - 1, 0))
    things = rng.sample(THINGS, lines)
    lying = placed and rng.random() < LYING
    holder = {}
    for number, person in enumerate(who):
        if placed:
            holder[person] = places[number]
        inside = containers[number::lines] + things[number : number + bool(length)]
        above = places[lines + number] if lying else person
        for one in inside:
            holder[one], above = above, one
    return holder


def told(rng: random.Random, names: Sequence[str], lines: int, length: int, placed: bool = True) -> Story:
    """Facts in any order."""
    holder = who_holds_what(rng, names, lines, length, placed)
    story = Story()
    for one in rng.sample(list(holder), len(holder)):
        story.say(statement(one, holder[one]), one, holder[one])
    return story


def happened(rng: random.Random, names: Sequence[str], lines: int, length: int, placed: bool = True) -> Story:
    """Events, of which the last counts. Whoever left a thing in a place went on; a thing may be handed on."""
    holder = who_holds_what(rng, names, lines, length, placed)
    who = sorted({one for one in (*holder, *holder.values()) if one in EVERYONE})
    queues: dict[str, list[tuple[str, str, str]]] = {one: [] for one in holder}  # sentence, of whom or what, to where
    for one, above in holder.items():
        others = [person for person in who if person != above]
        before = rng.random() < BEFORE
        if one in EVERYONE:
            if before:
                queues[one].append(_went(one, rng.choice([place for place in PLACES if place != above])))
            queues[one].append(_went(one, above))
        elif above in PLACES:
            leaver = rng.choice(who)
            queues[leaver].insert(0, (f"{leaver} left {one} in {above}.", one, above))
        elif above in EVERYONE and before and others:
            giver = rng.choice(others)
            queues[one] += [_went(one, giver), (f"{giver} gave {one} to {above}.", one, above)]
        else:
            queues[one].append(_went(one, above))
    story = Story()
    while queues := {one: queue for one, queue in queues.items() if queue}:
        story.say(*queues[rng.choice(list(queues))].pop(0))
    return story


def _went(one: str, to: str) -> tuple[str, str, str]:
    return f"{one} went {'to' if to in (*EVERYONE, *PLACES) else 'into'} {to}.", one, to


TELLINGS = {"told": told, "happened": happened}


def statement(one: str, holder: str) -> str:
    return f"{one} is {'with' if holder in EVERYONE else 'in'} {holder}."


# --- what the base reads -----------------------------------------------------------------------------------------


def talk(rng: random.Random, story: Story, turns: int) -> Iterator[str]:
    """Said after a story: one fact of it, or all that lead from one name to its end."""
    known = list(story.holder)
    asked = rng.choice(known)
    for _ in range(turns):
        holder = story.holder[asked]
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
    while asked in story.holder:
        asked = story.holder[asked]
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
            sizes = rng.randint(1, LINES), rng.choice(LENGTHS)
            story = rng.choice((told, happened))(rng, EVERYONE, *sizes, placed=rng.random() < PLACED)
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
    placed: bool
    """Whether its stories say where people are."""
    tellings: tuple[str, ...]
    train_facts: Sequence[int]
    test_facts: Sequence[int]

    def at_most(self, sizes: Sizes) -> "Question":
        """With no more facts than `sizes` allow in training, and so many beyond these in the test."""
        trained = [number for number in self.train_facts if number <= sizes.facts]
        tested = [number for number in self.test_facts if number <= max(trained) + sizes.facts_beyond]
        return replace(self, train_facts=trained, test_facts=tested)

    def names(self, split: Split) -> tuple[str, ...]:
        """People of the stories: strangers, except where they are what an answer is one of, as places always are."""
        return NAMES["train" if self.until == EVERYONE else split]


QUESTIONS = {
    "where_person": Question("Where", PLACES, True, True, ("told", "happened"), (1,), (1,)),
    "who_has": Question("Who", EVERYONE, False, False, ("told", "happened"), range(1, 6), range(1, 8)),
    "where_thing": Question("Where", PLACES, False, True, ("told",), range(1, 7), range(1, 9)),
    "where_left": Question("Where", PLACES, False, True, ("happened",), range(2, 7), range(2, 9)),
}


def item(task: str, split: Split, index: int, seed: int, facts: int | None = None, sizes: Sizes = PAPER) -> Example:
    """The `index`-th item of a task, with a story of its own; `facts` are drawn if they are not given."""
    rng = random.Random(f"{seed} {task} {split} {index} {facts}")
    question = QUESTIONS[task].at_most(sizes)
    needed = facts or rng.choice(question.train_facts)
    telling = rng.choice(question.tellings)
    for _ in range(PATIENCE):
        length = max(rng.choice((needed - 1, needed)), LONGEST)
        story = TELLINGS[telling](rng, question.names(split), LINES, length, question.placed)
        fitting = [found for found in asked_of(rng, story, question) if found[2] == needed]
        if fitting:
            break
    else:
        raise LookupError(f"no story for {task} with {needed} facts")
    name = f"{task}/{split}/{seed}/{f'facts{facts}/' if facts else ''}{index}"
    return example(name, task, story, *fitting[0])


def training_items(task: str, count: int, seed: int, sizes: Sizes = PAPER) -> Iterator[Example]:
    """All questions of the task to a story, then to the next: packed, a story is read once for all of them."""
    return itertools.islice(_training_items(task, seed, QUESTIONS[task].at_most(sizes)), count)


def _training_items(task: str, seed: int, question: Question) -> Iterator[Example]:
    for number in itertools.count():
        rng = random.Random(f"{seed} {task} train {number}")
        telling, length = TELLINGS[rng.choice(question.tellings)], rng.choice(ASKED_LENGTHS)
        story = telling(rng, NAMES["train"], LINES, length, question.placed)
        for asked, answer, facts in asked_of(rng, story, question):
            if facts in question.train_facts:
                yield example(f"{task}/train/{seed}/{number}/{asked}", task, story, asked, answer, facts)


def asked_of(rng: random.Random, story: Story, question: Question) -> list[tuple[str, str, int]]:
    """Whom or what the question can be asked about, the answer and the number of facts, in any order."""
    about = [one for one in story.holder if (one in EVERYONE) == question.of_people]
    trails = ((one, story.trail(one, question.until)) for one in rng.sample(about, len(about)))
    return [(one, *found) for one, found in trails if found]


def example(name: str, task: str, story: Story, asked: str, answer: str, facts: int) -> Example:
    return Example(name, task, f"{OPENING} {story} {QUESTIONS[task].word}? {asked}", answer, bucket=f"facts={facts}")


def evaluation_items(
    task: str, seed: int, per_bucket: int = TEST_ITEMS_PER_BUCKET, sizes: Sizes = PAPER
) -> Iterator[Example]:
    """Fresh items for every number of facts; those with more than stage 1 has are the extrapolation."""
    for facts in QUESTIONS[task].at_most(sizes).test_facts:
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
