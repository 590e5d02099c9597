"""Final answers as benchmarks write them, and as models do."""

import pytest

from recurtrace.data.answers import (
    SCORERS,
    after_hashes,
    boxed,
    mathqa_options,
    normalize_latex,
    plain_number,
)


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"so $r = \boxed{3}.$", "3"),
        (r"thus $\boxed{\frac{\sqrt{3}}{2}}$ and done", r"\frac{\sqrt{3}}{2}"),
        (r"first \boxed{1}, then \boxed{\{2, 3\}}", r"\{2, 3\}"),
        (r"we get $\boxed 5$", "5"),
        (r"the box \fbox{12}", "12"),
        ("no box at all", None),
        (r"never closed \boxed{7", None),
    ],
)
def test_boxed(solution, answer):
    assert boxed(solution) == answer


def test_gsm8k():
    assert after_hashes("160 minutes\n#### 160") == "160"
    assert after_hashes("… #### 1,234,567") == "1234567"
    assert after_hashes("#### -3.5") == "-3.5"
    assert after_hashes("nothing") is None


def test_mathqa_options():
    assert mathqa_options("a ) 14.83 , b ) 14.81 , c ) 14.8 , d ) 15.25 , e ) 14.12") == [
        "14.83", "14.81", "14.8", "15.25", "14.12",
    ]  # fmt: skip
    assert mathqa_options("['a ) 6 cm', 'b ) 10 cm', 'c ) none']") == ["6 cm", "10 cm", "none"]
    assert mathqa_options("a ) rs . 3,400 , b ) 5 , 6 and 7 , c ) none of these")[:2] == ["rs . 3,400", "5 , 6 and 7"]


def test_plain_number():
    assert [plain_number(value) for value in ("72.0", 36.0, "0.50", "1,200", "100", "x")] == [
        "72", "36", "0.5", "1200", "100", "x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("scorer", "prediction", "reference", "right"),
    [
        ("text", " The Eiffel Tower.", "Eiffel tower", True),
        ("text", "Paris, France", "Paris", False),
        ("text", "A", "AN", False),
        ("text", "The A", "a", False),
        ("exact", " AN ", "AN", True),
        ("exact", "A", "AN", False),
        ("exact", "an", "AN", False),
        ("math", "1e9999999", "1", False),
        ("number", " 1,200 dollars", "1200", True),
        ("number", "12.0", "12", True),
        ("number", "-7", "7", False),
        ("number", "about ten", "10", False),
        ("letter", " B. bake it", "B", True),
        ("letter", "(c)", "C", True),
        ("letter", "Because", "B", False),
        ("math", r"\dfrac{1}{2}", r"\frac12", True),
        ("math", r"x^2 + 1\n", r"x^2+1\n", True),
        ("math", ".5", "0.50", True),
        ("math", r"90^\circ", "90", True),
        ("math", r"\frac{1}{3}", r"\frac{1}{2}", False),
    ],
)
def test_scorers(scorer, prediction, reference, right):
    assert SCORERS[scorer](prediction, reference) is right


def test_latex_spellings():
    assert normalize_latex(r"\left( 3, \frac{\pi}{2} \right)") == r"(3,\frac{\pi}{2})"
    assert normalize_latex(r"\text{Evelyn}") == "Evelyn"
