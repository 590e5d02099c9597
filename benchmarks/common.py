"""What the benchmarks share."""

from pathlib import Path

from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.initialization import no_init_weights


def qwen3_06b() -> Qwen3Config:
    """The shape of Qwen3-0.6B."""
    return Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
    )  # fmt: skip


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
