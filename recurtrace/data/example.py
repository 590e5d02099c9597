"""A direct-answer example: what the model reads, and the short text it must write."""

import hashlib
from dataclasses import dataclass


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

    @property
    def asked(self) -> str:
        return self.question or self.prompt

    @property
    def prompt_hash(self) -> str:
        return hashlib.sha256(self.prompt.encode()).hexdigest()[:16]
