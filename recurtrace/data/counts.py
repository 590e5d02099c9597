"""How many examples the tasks have, and how many of each test an evaluation like the paper's takes. No data is loaded.

Counts are the published sizes of the splits, for plans and lists; a build or an evaluation counts for itself.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from recurtrace.data.benchmarks import TASKS, Task
from recurtrace.data.example import Example
from recurtrace.data.synthetic import TEST_ITEMS_PER_BUCKET, TEST_STEPS, TRAIN_ITEMS


@dataclass(frozen=True)
class Counts:
    train: int
    test: int


_GENERATED = Counts(TRAIN_ITEMS, len(TEST_STEPS) * TEST_ITEMS_PER_BUCKET)
COUNTS = {
    "arithmetic": _GENERATED,
    "p_hop": _GENERATED,
    "symbolic": _GENERATED,
    "gsm8k": Counts(7_473, 1_319),
    "math": Counts(7_500, 5_000),
    "mathqa": Counts(29_837, 2_985),
    "aqua_rat": Counts(97_467, 254),
    "hotpotqa": Counts(90_447, 7_405),
    "musique": Counts(19_938, 2_417),
    "2wikimultihopqa": Counts(167_454, 12_576),
    "strategyqa": Counts(1_832, 458),  # 2,290 questions, a fifth of them by hash
    "proofwriter": Counts(585_860, 174_180),
    "clutrr": Counts(9_074, 1_146),
    "babi": Counts(17_100, 19_000),
    "metamathqa": Counts(395_000, 0),
    "orca_math": Counts(200_035, 0),
    "arc_easy": Counts(2_251, 2_376),
    "arc_challenge": Counts(1_119, 1_172),
    "openbookqa": Counts(4_957, 500),
    "boolq": Counts(9_427, 3_270),
    "piqa": Counts(16_113, 1_838),
    "hellaswag": Counts(39_905, 10_042),
    "winogrande": Counts(40_398, 1_267),
    "mmlu": Counts(0, 14_042),
    **{name: Counts(0, 250) for name in TASKS if name.startswith("bbh_")},
    "lambada": Counts(0, 5_153),
    "multiarith": Counts(0, 180),
    "svamp": Counts(0, 300),
}


@dataclass(frozen=True)
class Sample:
    """A suite's test items as the paper evaluates them."""

    per_task: int
    """At most so many of each task, stratified; the paper gives a suite's total and no task's."""
    paper: int
    """The paper's total."""
    why: str
    """Where ours differs."""


SAMPLES = {
    "train_covered": Sample(
        5_000,
        45_722,
        "The paper gives no task's number; 5,000 of each come within 0.3 % of its total. StrategyQA (no test split of "
        "its own) and CLUTRR (several configurations) may make the difference.",
    ),
    "classic": Sample(
        612,
        4_785,
        "OpenBookQA has 500 test questions; of each of the others, the number that comes nearest to the total.",
    ),
    "diagnostic": Sample(1_000, 2_730, "Every test item, and 1,000 of LAMBADA's 5,153: the paper's total exactly."),
}


def sampled(task: Task) -> int | None:
    """At most so many test items of a task in an evaluation like the paper's; None: all there are."""
    return next((SAMPLES[suite].per_task for suite in task.suites if suite in SAMPLES), None)


def evaluated(tasks: Iterable[Task]) -> int:
    """Items of such an evaluation."""
    return sum(min(COUNTS[task.name].test, sampled(task) or COUNTS[task.name].test) for task in tasks)


def sample_sizes(examples: Sequence[Example]) -> dict[str, int]:
    """For each task of some examples, how many of them to take."""
    there = Counter(example.task for example in examples)
    limits = {name: sampled(TASKS[name]) if name in TASKS else None for name in there}
    return {name: min(count, limits[name] or count) for name, count in there.items()}
