"""The model card written beside a checkpoint: the facts of this model, none of them typed by hand."""

from importlib.metadata import version
from typing import TYPE_CHECKING

from recurtrace.model.parameters import ParameterCount

if TYPE_CHECKING:
    from recurtrace.model.configuration_recurtrace import HeadSettings, RecurTraceConfig


def model_card(config: "RecurTraceConfig", count: ParameterCount, merged: bool) -> str:
    base = config.get_text_config()
    block = f"layers {config.block.start}–{config.block.stop - 1} of {base.num_hidden_layers}"
    memory = (
        f"window {config.loop_memory_window}, {config.loop_attn_num_heads} heads of {config.loop_attn_head_dim}"
        if config.loop_memory
        else "off (plain looping)"
    )
    heads = {"Halting head": config.head_settings() if config.loop_halting_trained else None}
    heads |= {f"Head `{head}`": config.head_settings(head) for head in config.loop_halting_heads or {}}
    name = config.base_model_name_or_path
    facts = {
        "Base": f"`{name}`" if name else "not named",
        "Base fingerprint": f"`{config.base_fingerprint}`",
        "Base family": base.model_type,
        "Looped block": block,
        "Loop memory": memory,
        **{title: _settings(head) for title, head in heads.items()},
        "Default depth": config.default_loops,
        "Added parameters": f"{count.added:,} ({count.share:.2%} of the base's {count.base:,})",
        "This folder": "everything (merged)"
        if merged
        else "the added parameters only; the base is loaded from its place",
        "Made with": ", ".join(f"{package} {version(package)}" for package in ("recurtrace", "transformers", "torch")),
    }
    rows = "\n".join(f"| {fact} | {value} |" for fact, value in facts.items())
    front = ["library_name: recurtrace", "pipeline_tag: text-generation", "tags: [recurtrace, looped-transformer]"]
    if name and not name.startswith("/"):
        front.append(f"base_model: {name}")
    return f"""---
{chr(10).join(front)}
---
# A RecurTrace model

A pretrained language model whose middle block repeats and reads its own earlier loops. One loop is the base model.

| | |
|---|---|
{rows}

```python
from recurtrace import RecurTraceForCausalLM

model = RecurTraceForCausalLM.from_pretrained(folder)
model.generate(input_ids, loops={config.default_loops!r}, max_new_tokens=32)
```
"""


def _settings(head: "HeadSettings | None") -> str:
    if head is None:
        return "not trained yet"
    depths = f"depth {head.min_depth}–{head.max_depth}"
    return f"{head.objective}, threshold {head.threshold}, {depths}, pooling {head.pooling}"
