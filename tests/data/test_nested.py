"""Things in things: every answer solved again from the text, and nothing that splits share."""

import re
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from recurtrace.data.benchmarks import TASKS
from recurtrace.data.loading import few_of_each_bucket, load
from recurtrace.data.nested import CONTAINERS, PLACES, TASK, THINGS, item, training_items
from recurtrace.data.synthetic import Sizes

SMALL = Sizes(facts=4, facts_beyond=1)


def solve(prompt):
    """The answer and the number of sentences it takes, by patterns and not by the generator."""
    story, asked = re.fullmatch(r"(.*\.) Where is the (\w+)\?", prompt).groups()
    holder = dict(re.findall(r"The (\w+) is in the (\w+)\.", story))
    here, facts = asked, 0
    while here in holder:
        here, facts = holder[here], facts + 1
    return here, facts


@given(index=st.integers(0, 10_000), seed=st.integers(0, 100), split=st.sampled_from(sorted(THINGS)))
def test_every_answer_is_what_the_text_says(index, seed, split):
    example = item(TASK, split, index, seed, sizes=SMALL)
    answer, facts = solve(example.prompt)
    assert (example.answer, example.bucket) == (answer, f"facts={facts}")
    assert answer in PLACES
    assert 1 <= facts <= 4
    assert item(TASK, split, index, seed, sizes=SMALL) == example


def test_training_asks_all_questions_of_a_story_one_after_the_other():
    examples = list(training_items(TASK, 400, seed=1, sizes=SMALL))
    for example in examples:
        answer, facts = solve(example.prompt)
        assert (example.answer, example.bucket) == (answer, f"facts={facts}")
    stories = [example.prompt.rpartition(" Where")[0] for example in examples]
    assert sum(one != other for one, other in pairwise(stories)) == len(set(stories)) - 1
    assert {example.bucket for example in examples} == {f"facts={facts}" for facts in range(1, 5)}
    assert len({example.id for example in examples}) == len(examples)


def test_splits_share_no_thing_and_no_word_has_two_parts():
    for one, other in combinations(THINGS.values(), 2):
        assert not set(one) & set(other)
    words = [*PLACES, *CONTAINERS, *(word for things in THINGS.values() for word in things)]
    assert len(set(words)) == len(words)


def test_tests_go_beyond_training_where_the_sizes_say_so():
    loaded = load(TASKS[TASK], "test", sizes=SMALL).examples
    assert {example.bucket for example in loaded} == {f"facts={facts}" for facts in range(1, 6)}
    assert len({example.id for example in loaded}) == len(loaded)
    assert list(few_of_each_bucket(TASK, 2, sizes=SMALL)) == [f"facts={facts}" for facts in range(1, 6)]
    heldout = load(TASKS[TASK], "heldout", limit=200, sizes=SMALL).examples
    assert not {example.prompt for example in loaded} & {example.prompt for example in heldout}
