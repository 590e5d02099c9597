"""Data of one's own as a task: a file of records, which columns are prompt and answer, and how answers are compared.

    {file: train.jsonl, test: test.jsonl, prompt: "Question: {question}\\nAnswer:", answer: solution, scorer: number}

It may stand in a mixture's recipe in the place of a task's name, or in a YAML file of its own, which `--data` takes.
"""

import math
import re
from pathlib import Path
from typing import Any, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from recurtrace.data.answers import SCORERS
from recurtrace.data.benchmarks import SUITES, TASKS, Parts, Read, Record, Task
from recurtrace.recipe import Recipe

ONE_IN = 10
"""Without a file of test records, one record in so many is a test, chosen by its hash."""
_COLUMN = re.compile(r"\{([^{}]+)\}")


class OwnTask(Recipe):
    """One JSON object a line; values of the columns that are used are texts or numbers."""

    name: str = ""
    """What results call it. Default: the name of the file."""
    file: Path | None = None
    """Records to train on. Default: none, the task is for testing only."""
    test: Path | None = None
    """Records to test on. Default: one in ten of `file`, chosen by hash and kept from training."""
    prompt: str = Field(min_length=1)
    """A column, or a text with {columns} in it. The answer follows after one space."""
    answer: str = Field(min_length=1)
    """A column, or a text with {columns} in it."""
    scorer: str = "exact"
    """How an answer is compared: exact, text, number, letter or math (data/answers.py)."""
    bucket: str | None = None
    """Column with a difficulty or category, for stratified samples."""
    max_new_tokens: PositiveInt = Task.max_new_tokens
    """Longest answer that a model may write."""

    @classmethod
    def resolve(cls, fields: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Files are found from the recipe's folder, or else from the working directory."""
        found = {
            name: str(folder / str(fields[name]))
            for name in ("file", "test")
            if isinstance(fields.get(name), str) and (folder / str(fields[name])).is_file()
        }
        return super().resolve({**fields, **found}, folder)

    @field_validator("file", "test")
    @classmethod
    def _found_from_anywhere(cls, file: Path | None) -> Path | None:
        return file.absolute() if file is not None else None

    @field_validator("scorer")
    @classmethod
    def _known(cls, scorer: str) -> str:
        if scorer not in SCORERS:
            raise ValueError(f"must be one of {', '.join(SCORERS)}")
        return scorer

    @model_validator(mode="before")
    @classmethod
    def _named(cls, fields: Any) -> Any:
        if not isinstance(fields, dict) or fields.get("name"):
            return fields
        first = fields.get("file") or fields.get("test")
        stem = Path(first).stem if isinstance(first, str | Path) else ""
        return {**fields, "name": re.sub(r"[^A-Za-z0-9_-]+", "_", stem)}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.file is None and self.test is None:
            raise ValueError("a task of your own needs file, its records, or test")
        if not re.fullmatch(r"[A-Za-z0-9_-]+", self.name):
            raise ValueError(f"name may have letters, digits, - and _ only, got {self.name!r}")
        if self.name in TASKS or self.name in SUITES:
            raise ValueError(f"{self.name} is the name of another task; give this one a name of its own")
        return self

    @property
    def row(self) -> Task:
        """As a row of the table of tasks."""
        files = {"train": self.file, "test": self.test or self.file}
        there = {split: file for split, file in files.items() if file is not None}
        columns = [*_columns(self.prompt), *_columns(self.answer), *([self.bucket] if self.bucket else [])]
        return Task(
            self.name,
            (),
            _reader(self.prompt, self.answer, self.bucket),
            splits={split: split for split in there},
            columns=tuple(dict.fromkeys(columns)),
            scorer=self.scorer,
            max_new_tokens=self.max_new_tokens,
            hash_split=ONE_IN if self.test is None else 0,
            files=there,
        )


def _columns(text: str) -> list[str]:
    """The columns that a text names; one without braces is a column itself."""
    return _COLUMN.findall(text) or [text]


def _reader(prompt: str, answer: str, bucket: str | None) -> Read:
    def read(record: Record) -> Parts:
        def filled(text: str) -> str:
            named = text if _COLUMN.search(text) else f"{{{text}}}"
            return _COLUMN.sub(lambda column: _plain(record, column[1]), named)

        return Parts(
            filled(prompt).rstrip(),
            filled(answer).strip(),
            bucket=_plain(record, bucket) if bucket else "",
            frame="bare",
        )

    return read


def _plain(record: Record, column: str) -> str:
    value = record[column]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"{column} is neither a text nor a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{column} is {value}")
    return str(value)
