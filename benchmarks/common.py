"""What the benchmarks share."""

from pathlib import Path

from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.initialization import no_init_weights

from recurtrace.errors import RecurTraceError
from recurtrace.files import writing
from recurtrace.model.families import QWEN3


def qwen3_06b() -> Qwen3Config:
    """The shape of Qwen3-0.6B."""
    return QWEN3["0.6B"].config()


def random_base(config: Qwen3Config) -> Qwen3ForCausalLM:
    """A base with random weights, made quickly: what they are does not matter to time and memory."""
    with no_init_weights():
        base = Qwen3ForCausalLM(config)
    for name, parameter in base.named_parameters():
        parameter.data.fill_(1.0) if "norm" in name else parameter.data.uniform_(-0.03, 0.03)
    base.tie_weights()
    return base


def write_between(file: Path, mark: str, text: str) -> None:
    """Put a text between `<!-- mark: begin -->` and `<!-- mark: end -->`."""
    before, _, after = between(file, mark)
    with writing(file) as temporary:
        temporary.write_text(f"{before}\n{text}\n{after}", encoding="utf-8")


def between(file: Path, mark: str) -> tuple[str, str, str]:
    """A page up to the first marker, between the two, and from the second on."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, found, rest = file.read_text(encoding="utf-8").partition(begin)
    inside, closed, after = rest.partition(end)
    if not found or not closed:
        raise RecurTraceError(f"{file} has no markers {begin} and {end}; add them where the text is to stand.")
    return before + begin, inside, end + after
