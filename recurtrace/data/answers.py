"""Short final answers: taken out of a benchmark's record, and compared with what a model wrote.

A scorer says whether a prediction counts as right for a reference; `SCORERS` names them for the task table.
"""

import re
import string
from collections.abc import Callable
from decimal import Decimal, DecimalException

LETTERS = string.ascii_uppercase


def boxed(solution: str) -> str | None:
    r"""What stands in the last \boxed{…} (or \fbox{…}, or bare `\boxed 5`) of a MATH solution."""
    start = max(solution.rfind(r"\boxed"), solution.rfind(r"\fbox"))
    if start < 0:
        return None
    rest = solution[start:].split("boxed" if solution.startswith(r"\boxed", start) else "fbox", 1)[1].lstrip()
    if not rest.startswith("{"):
        bare = re.match(r"[^\s$]+", rest)
        return bare[0] if bare else None
    depth = 0
    for position, character in enumerate(rest):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return rest[1:position].strip()
    return None


def after_hashes(solution: str) -> str | None:
    """The number after `####` of a GSM8K solution, without thousands separators."""
    match = re.search(r"####\s*(-?[\d,]*\.?\d+)", solution)
    return match[1].replace(",", "") if match else None


def mathqa_options(options: str) -> list[str]:
    """`"a ) 14.83 , b ) 14.81 , …"` as a list; a comma inside an option does not split it.

    Some records hold the text of a Python list of the options instead.
    """
    if options.startswith("["):
        options = " , ".join(re.findall(r"'([^']*)'", options))
    parts = re.split(r"(?:^|,)\s*([a-e])\s*\)\s*", options)
    return [text.strip() for text in parts[2::2]]


def number(text: str) -> Decimal | None:
    """The text as a number, if it is one: `$1,200.00`, `15 %`, `-3.0`."""
    cleaned = re.sub(r"[\s,$%]", "", text)
    try:
        return Decimal(cleaned).normalize()
    except DecimalException:
        return None


def plain_number(value: float | str) -> str:
    """`72.0` as `72`, `0.50` as `0.5`."""
    parsed = number(str(value))
    return f"{parsed:f}" if parsed is not None else str(value)


def normalize_text(text: str) -> str:
    """As question-answering scores do: lower case, no punctuation, no articles, single spaces.

    What is nothing but articles stays: "A" and "an" are different answers.
    """
    words = "".join(character for character in text.lower() if character not in string.punctuation).split()
    return " ".join([word for word in words if word not in ("a", "an", "the")] or words)


def normalize_latex(text: str) -> str:
    """Spellings of the same MATH answer made one: fractions, spaces, units of typesetting."""
    text = text.strip().rstrip(".")
    for old, new in (("\\left", ""), ("\\right", ""), ("\\!", ""), ("\\,", ""), ("\\ ", ""), ("\\$", ""), ("$", "")):
        text = text.replace(old, new)
    text = text.replace("dfrac", "frac").replace("tfrac", "frac").replace("\\%", "").replace("%", "")
    text = re.sub(r"\\(?:text|mbox|mathrm)\{([^}]*)\}", r"\1", text)
    text = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\sqrt(\w)", r"\\sqrt{\1}", text)
    text = re.sub(r"\^\{?\\circ\}?", "", text)
    text = re.sub(r"\s+", "", text)
    return re.sub(r"^(-?)\.(\d)", r"\g<1>0.\2", text)


def same_text(prediction: str, reference: str) -> bool:
    return normalize_text(prediction) == normalize_text(reference)


def same_symbol(prediction: str, reference: str) -> bool:
    """Character by character: symbols, names and labels."""
    return prediction.strip() == reference.strip()


def same_number(prediction: str, reference: str) -> bool:
    """The first number the model wrote against the reference."""
    match = re.search(r"-?\$?\d[\d,]*\.?\d*|-?\.\d+", prediction)
    return match is not None and number(match[0].rstrip(".,")) == number(reference)


def same_letter(prediction: str, reference: str) -> bool:
    match = re.match(r"\s*\(?([A-Za-z])\b", prediction)
    return match is not None and match[1].upper() == reference.upper()


def same_math(prediction: str, reference: str) -> bool:
    one, other = normalize_latex(prediction.split("\n")[0]), normalize_latex(reference)
    if one == other:
        return True
    value = number(one)
    return value is not None and value == number(other)


def first_line(text: str) -> str:
    """What a model answered: it may go on after it."""
    return text.strip().split("\n")[0].strip()


SCORERS: dict[str, Callable[[str, str], bool]] = {
    "exact": same_symbol,
    "text": same_text,
    "number": same_number,
    "letter": same_letter,
    "math": same_math,
}
