"""What the benchmarks share."""

from pathlib import Path

from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.initialization import no_init_weights

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
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, rest = file.read_text(encoding="utf-8").split(begin)
    file.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}", encoding="utf-8")
