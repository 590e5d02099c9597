"""The world of the embedded base: the synthetic tasks in small sizes, some plain variety, and a tokenizer for it.

One token for a pointer, a rule or an operation, so that sequences are short and a step is one lookup: what a small
model can learn on a CPU. Any other text still has tokens: those of its bytes.
"""

import random
from collections.abc import Iterator

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from recurtrace.data.example import Example
from recurtrace.data.synthetic import TASKS, Sizes, draw, item, symbol_pool

SMALL = Sizes(symbols=24, test_symbols=8, mapping=6, registers=3, largest_start=6, operands=(2, 5), modulus=7)
PRETRAIN_STEPS = range(1, 5)  # fewer than stage 1 asks for, so that depth has something to add
WORKED_STEPS = range(4, 9)  # written out, more steps are only more practice in single ones

ANIMALS = ("fox", "bird", "fish", "cat", "dog", "bear", "frog", "goat", "hare", "mole")
QUALITIES = ("red", "small", "old", "kind", "loud", "fast", "shy", "wise", "wet", "calm")
PIECES = "|".join(
    (
        r"\n?[A-Z][a-z]+:",  # a heading
        r" [A-Z]{2}>[A-Z]{2}",  # a pointer
        r" swap [A-Z]{2} [A-Z]{2}| inc [A-Z]{2}| [A-Z]{2}=[A-Z]{2}| (?:if )?[A-Z]{2}=\d",  # a rule, or its condition
        r" [+\-*]\d",  # an operation
        r" ?[A-Z]{2}| ?[a-z]+| ?\d+|\s|.",
    )
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


def worked(task: str, index: int, seed: int, sizes: Sizes) -> Example:
    """A problem with the states on the way written out: how the base learns what a single step does."""
    k, problem = draw(task, "pretrain", index, seed, WORKED_STEPS, sizes)
    prompt = problem.prompt.replace("\nEnd:", "\nWork:")
    if task == "p_hop":  # where a hop leads from is where the one before led to
        lines = " ".join(problem.states)
    else:
        lines = "; ".join(f"{step}: {state}" for step, state in zip(problem.steps, problem.states, strict=True))
    return Example(f"worked/{task}/{seed}/{index}", f"worked_{task}", prompt, lines, bucket=f"k={k}")


def texts(
    count: int,
    seed: int,
    sizes: Sizes = SMALL,
    steps: range = PRETRAIN_STEPS,
    variety: float = 0.1,
    shown: float = 0.4,
) -> Iterator[Example]:
    """Pretraining examples: a share of plain variety, a share of worked problems, the rest direct answers."""
    pool = symbol_pool(sizes, "pretrain")
    tasks = list(TASKS)
    for index in range(count):
        rng = random.Random(f"{seed} little world {index}")
        kind = rng.random()
        if kind < variety:
            speak = rng.choice(VARIETY)
            prompt, answer = speak(rng, pool)
            yield Example(f"{speak.__name__}/{seed}/{index}", speak.__name__, prompt, answer)
        elif kind < variety + shown:
            yield worked(rng.choice(tasks), index, seed, sizes)
        else:
            yield item(rng.choice(tasks), "pretrain", index, seed, steps, sizes)


def build_tokenizer(sizes: Sizes = SMALL) -> PreTrainedTokenizerFast:
    """Byte-level BPE without merges: a piece that the world uses is one token, every other is spelled in bytes."""
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    splitter = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PIECES), "isolated"), to_bytes])
    codes = symbol_pool(sizes, "pretrain")
    pairs = [form.format(a, b) for a in codes for b in codes for form in (" {}>{}", " swap {} {}", " {}={}")]
    values = [form.format(a, v) for a in codes for v in range(sizes.values) for form in (" {}={}", " if {}={}")]
    forms = [form.format(code) for code in codes for form in ("{}", " {}", " inc {}")] + pairs + values
    numbers = [form.format(i) for i in range(100) for form in ("{}", " {}")]
    sample = [f"{example.prompt} {example.answer}" for example in texts(20_000, seed=0, sizes=sizes)]
    pieces = {piece for text in [*forms, *numbers, *sample] for piece, _ in splitter.pre_tokenize_str(text)}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = ["<pad>", "<eos>", *alphabet, *sorted(pieces - set(alphabet))]
    model = Tokenizer(models.BPE({piece: i for i, piece in enumerate(vocabulary)}, [], ignore_merges=True))
    model.pre_tokenizer = splitter
    model.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", eos_token="<eos>", padding_side="left", model_max_length=1024
    )
