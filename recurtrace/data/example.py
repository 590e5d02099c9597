"""A direct-answer example: what the model reads, and the short text it must write."""

import hashlib
from dataclasses import dataclass
from typing import Literal

End = Literal["text", "line"]
"""How an answer ends: with the tokenizer's end of text, or with the line, for a base that cannot write the former."""


@dataclass(frozen=True)
class Example:
    id: str
    """Unique within its source, and the same in every run."""
    task: str
    prompt: str
    """Ends where the answer begins; the answer follows after one space."""
    answer: str
    choices: tuple[str, ...] = ()
    """For multiple choice, the texts of the options; the answer is then the letter of one of them."""
    bucket: str = ""
    """Difficulty or category, for stratified samples."""
    aliases: tuple[str, ...] = ()
    """Other answers that count as right."""
    question: str = ""
    """What the overlap audit compares, where that is not the whole prompt: it leaves out the frame and the options."""
    scorer: str = ""
    """How an answer is compared (data/answers.py); empty for a task of the table, whose row says it."""
    max_new_tokens: int = 0
    """Tokens a model may write; 0 for a task of the table, whose row says it."""

    @property
    def asked(self) -> str:
        return self.question or self.prompt

    @property
    def prompt_hash(self) -> str:
        return hashlib.sha256(self.prompt.encode()).hexdigest()[:16]
