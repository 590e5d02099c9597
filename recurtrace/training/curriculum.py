"""The order of rows that lessons give (training/lessons.py)."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.utils.data import Sampler


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
        for lesson, (begin, stop) in enumerate(itertools.pairwise(bounds)):
            rows = (lessons <= lesson).nonzero().flatten()
            for start in range(begin, stop, len(rows)):  # each row once before any comes again
                order = torch.randperm(len(rows), generator=generator)[: stop - start]
                yield from rows[order].tolist()
