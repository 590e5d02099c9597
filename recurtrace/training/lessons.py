"""Easy examples first: lessons that let in more of the data as a run goes on. An extension (not in the paper).

Every method of a comparison is given the same lessons, so budgets stay equal.
"""

import math
from collections.abc import Sequence

from pydantic import Field, PositiveInt

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
