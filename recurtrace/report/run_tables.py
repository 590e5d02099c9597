"""The paper's tables of settings and cost: the looped model, what depth costs."""

from typing import Any

from recurtrace.report.table import Table
from recurtrace.report.workspace import Workspace

FIELDS = (
    "loop_num_layers", "loop_train_max", "loop_sample_dist", "loop_train_mean", "loop_train_sigma",
    "loop_memory_window", "loop_attn_num_heads", "loop_gate_init", "loop_gate_init_bias", "loop_injection_init",
    "loop_halting_aux_margin", "loop_halting_depth_cost", "loop_halting_aux_depths", "loop_halting_pooling",
    "loop_halting_objective", "loop_halting_min_depth", "loop_halting_max_depth", "loop_halting_oracle_max",
)  # fmt: skip
"""Of the looped model's config, in the paper's order."""


def model(space: Workspace) -> Table:
    """The base, the block and the settings of loop, memory and halting."""
    name, title = "model", "The looped model"
    if space.config is None:
        return Table(name, title, missing="models/seed-<n>/config.json (recurtrace run, or recurtrace distill --out)")
    config, base = space.config, space.config["text_config"]
    first = config["loop_start"]
    rows = [
        ["Layers of the base", str(base["num_hidden_layers"])],
        ["Hidden size", str(base["hidden_size"])],
        ["Looped layers", f"{first}–{first + config['loop_num_layers'] - 1}"],
        *([field, _shown(config[field])] for field in FIELDS if field in config),
    ]
    note = f"Base: {config.get('base_model_name_or_path') or 'part of the model'}. The first training seed."
    return Table(name, title, ["Setting", "Value"], rows, note)


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value).replace("_", " ")


def cost(space: Workspace) -> Table:
    """Both settings: a prompt with logits at its end, and the paper's teacher-forced one with logits everywhere."""
    name, title = "cost", "What depth costs"
    if space.cost is None:
        return Table(name, title, missing="cost.json (recurtrace cost --out)")
    rows = [
        [
            str(row.loops),
            str(row.layer_passes),
            *(
                f"{ratio:.2f}×" if ratio is not None else "–"
                for ratio in (row.flops_ratio, row.time_ratio, row.all_logits_flops_ratio, row.all_logits_time_ratio)
            ),
            f"{row.kv_bytes_per_token:,}",
        ]
        for row in space.cost.depths
    ]
    settings = ("Last logits: FLOPs", "Last logits: time", "All logits: FLOPs", "All logits: time")
    columns = ["Loops", "Layer passes", *settings, "K/V bytes per token"]
    note = f"{space.cost.note} The paper measures with all logits (teacher forcing)."
    return Table(name, title, columns, rows, note, space.cost.command)
