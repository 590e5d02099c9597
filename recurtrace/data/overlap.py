"""The overlap audit: which training questions are, or nearly are, a benchmark's test question.

A question is compared after lower-casing and stripping white space; it is near another if the sets of their 13-grams
of words have a Jaccard similarity above 0.85. The comparison is exact. Grams are looked up by 64-bit hashes, so that
an equal gram is always found, and what was found is counted again on the grams themselves.

Test questions are held in memory as sorted arrays; training questions stream by in batches.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import xxhash

GRAM = 13  # words
THRESHOLD = 0.85  # above is an overlap
BATCH = 4096

_POWERS = np.array([pow(0x9E3779B97F4A7C15, i, 2**64) for i in range(GRAM)], dtype=np.uint64)


@dataclass(frozen=True)
class Overlap:
    """A training question that must go, and the test question it repeats."""

    index: int
    """Position among the training questions."""
    kind: Literal["exact", "near"]
    similarity: float
    test_id: str
    test_question: str
    question: str


def normalized(text: str) -> str:
    return "".join(text.lower().split())


def grams(text: str) -> set[tuple[str, ...]]:
    """The 13-grams of a text's words; a shorter text is one gram."""
    words = text.lower().split()
    if len(words) < GRAM:
        return {tuple(words)} if words else set()
    return {tuple(words[i : i + GRAM]) for i in range(len(words) - GRAM + 1)}


def jaccard(one: set, other: set) -> float:
    return len(one & other) / len(one | other) if one and other else 0.0


class OverlapIndex:
    """The test questions of every benchmark, ready to be compared with."""

    def __init__(self, questions: Iterable[tuple[str, str]], threshold: float = THRESHOLD):
        """`questions` are (id, text)."""
        self.threshold = threshold
        self.ids, self.texts = map(list, zip(*questions, strict=True)) if (questions := list(questions)) else ([], [])
        self._exact: dict[str, int] = {}
        for number, text in enumerate(self.texts):
            self._exact.setdefault(normalized(text), number)
        self._words: dict[str, int] = {}
        hashes, owners = self._hash_grams(self.texts)
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._owners = hashes[order], owners[order].astype(np.int32)
        self._sizes = np.bincount(owners, minlength=len(self.texts))
        self._words.clear()  # training text has its own words

    def audit(self, questions: Iterable[str]) -> Iterator[Overlap]:
        """The overlapping ones among the training questions, in order."""
        batch: list[str] = []
        start = 0
        for question in questions:
            batch.append(question)
            if len(batch) == BATCH:
                yield from self._audit_batch(batch, start)
                start += len(batch)
                batch = []
        yield from self._audit_batch(batch, start)

    def _audit_batch(self, batch: list[str], start: int) -> list[Overlap]:
        if not batch or not self.texts:
            return []
        found: dict[int, Overlap] = {}
        for position, candidates in self._near_candidates(batch):
            own = grams(batch[position])
            best = max(candidates, key=lambda number: jaccard(own, grams(self.texts[number])))
            similarity = jaccard(own, grams(self.texts[best]))
            if similarity > self.threshold:
                found[position] = self._overlap(start, position, batch, best, "near", similarity)
        for position, question in enumerate(batch):
            if (number := self._exact.get(normalized(question))) is not None:
                found[position] = self._overlap(start, position, batch, number, "exact", 1.0)
        return [found[position] for position in sorted(found)]

    def _overlap(
        self, start: int, position: int, batch: list[str], number: int, kind: Literal["exact", "near"], value: float
    ) -> Overlap:
        return Overlap(start + position, kind, value, self.ids[number], self.texts[number], batch[position])

    def _near_candidates(self, batch: list[str]) -> Iterator[tuple[int, list[int]]]:
        """Positions in the batch with the test questions that share enough hashed grams to be near."""
        hashes, owners = self._hash_grams(batch)
        if len(self._words) > 2_000_000:  # bounds memory; the hash of a word does not depend on what was seen before
            self._words.clear()
        left = np.searchsorted(self._hashes, hashes, side="left")
        right = np.searchsorted(self._hashes, hashes, side="right")
        hit = np.flatnonzero(right > left)
        sizes = np.bincount(owners, minlength=len(batch))
        shared: dict[int, Counter[int]] = {}
        for gram in hit.tolist():
            counts = shared.setdefault(int(owners[gram]), Counter())
            counts.update(self._owners[left[gram] : right[gram]].tolist())
        for position, counts in shared.items():
            near = [
                number
                for number, count in counts.items()
                if count > self.threshold * (sizes[position] + self._sizes[number] - count)
            ]
            if near:
                yield position, near

    def _hash_grams(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Hashes of the distinct grams of each text, and the number of the text each belongs to."""
        words = [text.lower().split() for text in texts]
        known = self._words
        flat = np.fromiter((self._hash(word, known) for text in words for word in text), dtype=np.uint64)
        lengths = np.array([len(text) for text in words], dtype=np.int64)
        owner_of_word = np.repeat(np.arange(len(texts)), lengths)
        position = np.arange(len(flat)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        # A gram starts at every word that has twelve more behind it; a short text is one gram, from its first word.
        long = lengths[owner_of_word] >= GRAM
        starts = np.flatnonzero(np.where(long, position <= lengths[owner_of_word] - GRAM, position == 0))
        padded = np.concatenate([flat, np.zeros(GRAM, dtype=np.uint64)])
        owners = owner_of_word[starts]
        hashes = np.zeros(len(starts), dtype=np.uint64)
        for i in range(GRAM):
            inside = (position[starts] + i) < lengths[owners]
            hashes += np.where(inside, padded[starts + i], np.uint64(0)) * _POWERS[i]
        hashes ^= np.minimum(lengths[owners], GRAM).astype(np.uint64)  # a short gram is not a longer one's front
        pairs = np.unique(np.stack([owners.astype(np.uint64), hashes]), axis=1)
        return pairs[1], pairs[0].astype(np.int64)

    @staticmethod
    def _hash(word: str, known: dict[str, int]) -> int:
        value = known.get(word)
        if value is None:
            value = known[word] = xxhash.xxh3_64_intdigest(word.encode())
        return value
