"""Easy examples first: lessons that let in more of the data as a run goes on. An extension (not in the paper).

Every method of a comparison is given the same lessons, so budgets stay equal.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from pydantic import Field, PositiveInt
from torch.utils.data import Sampler

from recurtrace.data.example import Example
from recurtrace.recipe import Recipe


class Lesson(Recipe):
    """The beginning of a run, in which only some examples are drawn."""

    until: float = Field(gt=0, lt=1)
    """Share of the steps at which it ends."""
    tasks: list[str] = []
    """Tasks that are drawn from. Default: all."""
    hardest: PositiveInt | None = None
    """Largest number in an example's bucket, as the 2 of facts=2. Default: any."""

    def admits(self, example: Example) -> bool:
        return (not self.tasks or example.task in self.tasks) and (
            self.hardest is None or difficulty(example.bucket) <= self.hardest
        )


def difficulty(bucket: str) -> float:
    """The number in a bucket such as facts=2; without one, an example is for the time after all lessons."""
    number = bucket.rpartition("=")[2]
    return float(number) if number.isdecimal() else math.inf


def first_lesson(lessons: Sequence[Lesson], examples: Sequence[Example]) -> int:
    """The first lesson that admits all of these, which are packed together; `len(lessons)` if none does."""
    admitting = (all(map(lesson.admits, examples)) for lesson in lessons)
    return next((number for number, admits in enumerate(admitting) if admits), len(lessons))


@dataclass(frozen=True)
class CurriculumSampler(Sampler[int]):
    """Rows for a whole run, in order; a pure function of its fields, so a resumed run draws the same."""

    row_lessons: Sequence[int]
    """For each row, the lesson in which it is let in."""
    ends: Sequence[float]
    """Share of the run at which each lesson ends."""
    count: int
    """Rows to draw."""
    seed: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed)
        lessons = torch.tensor(self.row_lessons)
        bounds = [0, *(round(end * self.count) for end in self.ends), self.count]
        for lesson, (begin, stop) in enumerate(zip(bounds, bounds[1:], strict=False)):
            rows = (lessons <= lesson).nonzero().flatten()
            for start in range(begin, stop, len(rows)):  # each row once before any comes again
                order = torch.randperm(len(rows), generator=generator)[: stop - start]
                yield from rows[order].tolist()
