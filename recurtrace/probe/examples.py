"""The block probe on examples: sampled, batched by length, measured, compared."""

from collections.abc import Sequence

from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from recurtrace.data.collate import Encoded, Encoder, collate_padded, padding_id
from recurtrace.data.example import Example
from recurtrace.data.sampling import stratified
from recurtrace.errors import RecurTraceError
from recurtrace.model.families import PRESET_NUM_LAYERS
from recurtrace.probe.block_probe import Batch, DistanceMeter, compare_windows, find_span, named_windows, rank_windows
from recurtrace.records import BlockProbe


def probe_block(
    base: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    *,
    inputs: int = 10_000,
    compare: int = 256,
    loop_num_layers: int = PRESET_NUM_LAYERS,
    starts: Sequence[int] = (),
    max_length: int = 512,
    batch_size: int = 16,
    seed: int = 0,
) -> BlockProbe:
    """Probe a base on up to `inputs` prompts; `compare` other examples decide between the windows (0: the distance).

    `starts` are the first layers of the windows to compare, wherever they are; without them, all inside the span.
    """
    sample = stratified(examples, inputs + compare, seed)
    if len(sample) <= compare:
        raise RecurTraceError(
            f"there are {len(sample)} examples, and comparing windows takes {compare} of them, which leaves none to "
            "measure; lower compare (--compare) or pass more data."
        )
    encoder = Encoder(tokenizer, max_length, end=None)

    def batches(encoded: list[Encoded], side: str, task: str) -> list[Batch]:
        encoded = sorted(encoded, key=lambda item: len(item.input_ids))
        rows = [encoded[i : i + batch_size] for i in range(0, len(encoded), batch_size)]
        return tqdm([collate_padded(row, padding_id(tokenizer), side) for row in rows], desc=task, unit="batch")

    base.eval()
    meter = DistanceMeter(base)
    prompts = [Encoded(item.input_ids[: item.prompt_length], item.prompt_length) for item in encoder(sample[compare:])]
    held_out = encoder(sample[:compare])
    if not prompts or (compare and not held_out):
        raise RecurTraceError(f"no example fits in {max_length} tokens; raise max_length (--max-length).")
    for batch in batches(prompts, "right", "angular distance"):
        meter.add(batch)
    encoder_end, decoder_start = find_span(meter.means)
    if starts:
        windows = named_windows(meter.means, starts, loop_num_layers)
    else:
        windows = rank_windows(meter.means, encoder_end, decoder_start, loop_num_layers)
    base_nll = None
    if compare:
        compared = batches(held_out, "left", f"{len(windows)} windows")
        windows, base_nll = compare_windows(base, windows, compared, loop_num_layers)
    return BlockProbe(
        distances=meter.means,
        errors=meter.errors,
        inputs=meter.inputs,
        encoder_end=encoder_end,
        decoder_start=decoder_start,
        loop_num_layers=loop_num_layers,
        windows=windows,
        base_nll=base_nll,
        compared_on=len(held_out),
        compared_by="plain loops" if compare else "distance",
    )
