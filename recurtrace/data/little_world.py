"""The world of the embedded base: the synthetic tasks in small sizes, some plain variety, and a tokenizer for it.

A symbol, a number, an operation is one token with one spelling: sequences are short, and a lookup is a match of equals,
which a small model can learn on a CPU. Any other text still has tokens: those of its bytes.
"""

import random
from collections.abc import Iterator, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from recurtrace.data.example import Example
from recurtrace.data.synthetic import PRETRAIN_STEPS, TASKS, Sizes, draw, item, symbol_pool

SMALL = Sizes(symbols=24, test_symbols=8, mapping=6, registers=3, largest_start=6, operands=(2, 5), modulus=7)
WALK = 6  # symbols that a walk writes down

ANIMALS = ("fox", "bird", "fish", "cat", "dog", "bear", "frog", "goat", "hare", "mole")
QUALITIES = ("red", "small", "old", "kind", "loud", "fast", "shy", "wise", "wet", "calm")
PIECES = (
    r"\n?[A-Z][a-z]+:| [+\-*]\d| [A-Z]{2}| [a-z]+| \d+|,|\s|."  # a heading, an operation, a symbol, a word, a number
)


def story(rng: random.Random, pool: list[str]) -> tuple[str, str]:
    """Who is what: a fact to be looked up."""
    animals, qualities = rng.sample(ANIMALS, 4), rng.sample(QUALITIES, 4)
    facts = " and ".join(f"the {animal} is {quality}" for animal, quality in zip(animals, qualities, strict=True))
    asked = rng.randrange(4)
    return f"Story: {facts}\nAsk: the {animals[asked]}\nEnd:", qualities[asked]


def counting(rng: random.Random, pool: list[str]) -> tuple[str, str]:
    start, length = rng.randrange(80), rng.randint(3, 8)
    return f"Count: {start}\nEnd:", " ".join(str(start + i + 1) for i in range(length))


def copying(rng: random.Random, pool: list[str]) -> tuple[str, str]:
    symbols = rng.sample(pool, rng.randint(2, 8))
    return f"Copy: {' '.join(symbols)}\nEnd:", " ".join(symbols)


def reversing(rng: random.Random, pool: list[str]) -> tuple[str, str]:
    symbols = rng.sample(pool, rng.randint(2, 6))
    return f"Reverse: {' '.join(symbols)}\nEnd:", " ".join(reversed(symbols))


def sorting(rng: random.Random, pool: list[str]) -> tuple[str, str]:
    numbers = rng.sample(range(30), rng.randint(2, 6))
    return f"Sort: {' '.join(map(str, numbers))}\nEnd:", " ".join(map(str, sorted(numbers)))


def finding(rng: random.Random, pool: list[str]) -> tuple[str, str]:
    symbols = rng.sample(pool, 6)
    asked = rng.choice(symbols) if rng.random() < 0.5 else rng.choice(pool)
    return f"Find: {asked}\nList: {' '.join(symbols)}\nEnd:", "yes" if asked in symbols else "no"


VARIETY = (story, counting, copying, reversing, sorting, finding)


def walk(index: int, seed: int, k: int, sizes: Sizes) -> Example:
    """Pointers followed on and on, every k-th symbol written down: a lookup learned at each of them."""
    _, problem = draw("p_hop", "pretrain", index, seed, k * WALK, sizes)
    prompt = problem.prompt.replace(f"Hops: {k * WALK}\nStart:", f"Hops: {k}\nWalk:")
    return Example(f"walk/{seed}/{index}", "walk", prompt, " ".join(problem.states[k - 1 :: k]), bucket=f"k={k}")


def texts(
    count: int,
    seed: int,
    sizes: Sizes = SMALL,
    steps: Sequence[int] = PRETRAIN_STEPS,
    variety: float = 0.1,
    walks: float = 0.2,
) -> Iterator[Example]:
    """Pretraining examples: a share of plain variety, a share of walks, the rest problems with direct answers."""
    pool = symbol_pool(sizes, "pretrain")
    tasks = list(TASKS)
    for index in range(count):
        rng = random.Random(f"{seed} little world {index}")
        kind = rng.random()
        if kind < variety:
            speak = rng.choice(VARIETY)
            prompt, answer = speak(rng, pool)
            yield Example(f"{speak.__name__}/{seed}/{index}", speak.__name__, prompt, answer)
        elif kind < variety + walks:
            yield walk(index, seed, rng.choice(steps), sizes)
        else:
            yield item(rng.choice(tasks), "pretrain", index, seed, steps, sizes)


def build_tokenizer(sizes: Sizes = SMALL) -> PreTrainedTokenizerFast:
    """Byte-level BPE without merges: a piece that the world uses is one token, every other is spelled in bytes."""
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    splitter = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PIECES), "isolated"), to_bytes])
    forms = [f" {word}" for word in (*symbol_pool(sizes, "pretrain"), *range(100))]
    sample = [f"{example.prompt} {example.answer}" for example in texts(20_000, seed=0, sizes=sizes)]
    pieces = {piece for text in [*forms, *sample] for piece, _ in splitter.pre_tokenize_str(text)}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = ["<pad>", "<eos>", *alphabet, *sorted(pieces - set(alphabet))]
    model = Tokenizer(models.BPE({piece: i for i, piece in enumerate(vocabulary)}, [], ignore_merges=True))
    model.pre_tokenizer = splitter
    model.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", eos_token="<eos>", padding_side="left", model_max_length=1024
    )
