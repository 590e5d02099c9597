"""`recurtrace convert`: a base becomes a looped model with fresh loop modules."""

from pathlib import Path
from typing import Annotated, Any

import typer

from recurtrace.assets import place
from recurtrace.cli.fields import config_options
from recurtrace.cli.options import Overwrite, TrustRemoteCode, next_step
from recurtrace.errors import RecurTraceError
from recurtrace.files import claim_new, finish_writing, locked, refuse_foreign, writing_folder
from recurtrace.stages.settings import Dtype


@config_options(
    "loop_start",
    "loop_num_layers",
    "loop_num_loops",
    "loop_memory",
    "loop_memory_window",
    "loop_attn_num_heads",
    "loop_attn_head_dim",
    "loop_qk_norm",
    "loop_slope_frozen",
    "loop_gates_open",
    "loop_gate_init",
    "loop_gate_init_bias",
    "loop_injection_init",
)
def convert(
    base: Annotated[str, typer.Argument(help="Hub id or folder of the base model.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    merge_base: Annotated[
        bool, typer.Option("--merge-base", help="Write the base's weights too, for serving.")
    ] = False,
    dtype: Annotated[Dtype, typer.Option(help="Type of the weights; auto keeps that of the base.")] = "auto",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the untrained loop modules.")] = 0,
    probe: Annotated[Path | None, typer.Option(help="Result of `recurtrace probe`: loop the block it found.")] = None,
    overwrite: Overwrite = False,
    trust_remote_code: TrustRemoteCode = False,
    **fields: Any,
) -> None:
    """Convert a pretrained model: add untrained loop modules and leave the base as it is."""
    import torch

    from recurtrace.cli.describe import describe
    from recurtrace.model import RecurTraceForCausalLM
    from recurtrace.model.base import refuse_other_kind
    from recurtrace.model.checkpoint import MODEL
    from recurtrace.model.cost import shape_of
    from recurtrace.model.tokenizer import load_tokenizer
    from recurtrace.records import BlockProbe

    base = place(base)
    finish_writing(out)
    refuse_other_kind(out, merge_base=merge_base)
    claim_new(out, MODEL, overwrite)  # refused before gigabytes are read
    found = BlockProbe.read(probe) if probe is not None else None
    if found is not None:
        if "loop_start" in fields or "loop_num_layers" in fields:
            raise RecurTraceError("--probe says which layers to loop; leave out --loop-start and --loop-num-layers.")
        fields |= {"loop_start": found.loop_start, "loop_num_layers": found.loop_num_layers}
    torch.manual_seed(seed)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code, **({"revision": revision} if revision else {})}
    model = RecurTraceForCausalLM.from_base(base, dtype=dtype, **options, **fields)
    if found is not None and probe is not None:
        found.check_base(model.config.base_fingerprint, probe)
    tokenizer = load_tokenizer(base, **options)
    with locked(out):
        claim_new(out, MODEL, overwrite)
        with writing_folder(out, replaces=MODEL.files) as temporary:
            model.save_pretrained(temporary, merge_base=merge_base)
            tokenizer.save_pretrained(temporary)
            refuse_foreign(out, temporary, MODEL)
    describe(shape_of(model.config))
    typer.echo(f"Saved {'the merged model' if merge_base else 'the loop modules'} and the tokenizer to {out}.")
    next_step(f'recurtrace generate {out} "Hello" --loops 2', f"recurtrace train RECIPE --set model={out}")
