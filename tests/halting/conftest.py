"""A small looped model over bytes, and examples it can read."""

import pytest

from recurtrace.data.synthetic import Sizes, item
from tests.conftest import byte_tokenizer, tiny_looped

SIZES = Sizes(symbols=24, test_symbols=8, mapping=3, registers=2, largest_start=9)


@pytest.fixture(scope="session")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="session")
def byte_model(tokenizer):
    return tiny_looped(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)


@pytest.fixture(scope="session")
def examples():
    return [item(task, "train", i, 0, sizes=SIZES) for i in range(7) for task in ("p_hop", "arithmetic")]
