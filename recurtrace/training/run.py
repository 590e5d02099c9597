"""What every run has in common: its folder, packed data, the trainer, the files it leaves."""

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import datasets
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase, TrainerState, TrainingArguments

from recurtrace.data.collate import padding_id
from recurtrace.data.example import Example
from recurtrace.data.packing import PackCollator, open_packed, write_packed
from recurtrace.errors import RecurTraceError
from recurtrace.files import STAGING, Kind, begin, claim, difference, load_manifest, locked
from recurtrace.model import RecurTraceConfig, RecurTraceForCausalLM
from recurtrace.model.cost import cost_of
from recurtrace.records import BUDGET_FILE, Budget, write_record
from recurtrace.training.budget import training_macs
from recurtrace.training.checkpoints import has_trained, last_whole_checkpoint
from recurtrace.training.clock import Clock
from recurtrace.training.methods import loop_config
from recurtrace.training.recipe import Optimization, TrainRecipe
from recurtrace.training.trainer import LoopTrainer

logger = logging.getLogger(__name__)
RECIPE_FILE = "recipe.json"
MODEL_FOLDER = "model"
RUN = Kind(
    "run",
    RECIPE_FILE,
    ("checkpoint-*", STAGING, "packed", MODEL_FOLDER, "history.json", BUDGET_FILE),
    ("out", "batch_size"),
)


def run(
    recipe: Optimization,
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    arguments: TrainingArguments,
    training_data: datasets.Dataset,
    heldout_data: datasets.Dataset,
    **options: Any,
) -> Path:
    if len(training_data) < recipe.batch_size:
        raise RecurTraceError(
            f"the data fills {len(training_data)} sequences of {recipe.max_length} tokens, fewer than one batch of "
            f"{recipe.batch_size}; give more data or lower batch_size."
        )
    if arguments.should_save:
        shutil.rmtree(recipe.out / STAGING, ignore_errors=True)  # what a killed run was writing
    one_row = "flash" in str(getattr(recipe, "attention", None))
    last = last_whole_checkpoint(recipe.out)
    clock = Clock.read(last)
    trainer = LoopTrainer(
        model,
        arguments,
        PackCollator(recipe.max_length, padding_id(tokenizer), one_row, recipe.share_beginnings),
        tokenizer,
        clock,
        train_dataset=training_data,
        eval_dataset=heldout_data,
        **options,
    )
    if clock.launched not in (None, trainer.launched):
        raise RecurTraceError(
            f"{last} was written by {clock.launched}, and this is {trainer.launched}; resume with the launcher that "
            "started the run."
        )
    if last is not None and _trained_to_the_end(last) and not trainer.is_fsdp_enabled:
        trainer.restore(str(last))
    else:
        trainer.train(resume_from_checkpoint=str(last) if last is not None else None)
    if not _evaluated(trainer.state):
        trainer.evaluate()
    folder = recipe.out / MODEL_FOLDER
    trainer.save_model(str(folder))
    if arguments.should_save and isinstance(recipe, TrainRecipe) and recipe.method == "adapter":
        from recurtrace.model.peft_adapter import write_base

        write_base(folder, recipe.base, **recipe.hub)
    if arguments.should_save:
        trainer.state.save_to_json(str(recipe.out / "history.json"))
        write_record(recipe.out / BUDGET_FILE, _budget(recipe, trainer, training_data))
    trainer.accelerator.wait_for_everyone()
    return folder


@contextmanager
def own_folder(recipe: Optimization, arguments: TrainingArguments) -> Iterator[bool]:
    """Lock and claim the run's folder; whether the run is finished. Of several processes the first does it for all."""
    main = arguments.process_index == 0
    with locked(recipe.out) if main else nullcontext():
        with arguments.main_process_first(local=False, desc="the run's folder"):
            finished = _begin(recipe, recipe.overwrite and main)
        if finished:
            logger.info("%s is finished already.", recipe.out)
        yield finished


def _begin(recipe: Optimization, overwrite: bool) -> bool:
    file, fields = recipe.out / RECIPE_FILE, recipe.model_dump(mode="json")
    begun = load_manifest(file, RUN.name, "recurtrace train") if file.is_file() else {}
    known = begun.keys() | recipe.model_dump(exclude_defaults=True).keys()  # an older version had fewer fields
    what = {name: value for name, value in fields.items() if name in known and name != "root"}
    finished = (recipe.out / BUDGET_FILE).is_file()
    if begun and not has_trained(recipe.out):  # another recipe may replace it
        overwrite = overwrite or difference(begun, what, recipe.paths) is not None
    if claim(recipe.out, RUN, what, overwrite, recipe.paths) is None:
        begin(recipe.out, RUN, fields)
        return False
    return finished


def packed(
    recipe: Optimization,
    name: str,
    examples: Callable[[], Iterable[Example]],
    tokenizer: PreTrainedTokenizerBase,
    count: int | None = None,
    lesson_of: Callable[[Sequence[Example]], int] | None = None,
) -> datasets.Dataset:
    file = recipe.out / "packed" / f"{name}.arrow"
    if file.is_file():
        try:
            return open_packed(file)
        except (OSError, ValueError):
            logger.warning("%s is damaged, so the data is tokenised again.", file)
            file.unlink()
    if not file.is_file():
        share, end = recipe.share_beginnings, recipe.answer_end
        lengths = write_packed(examples(), count, tokenizer, recipe.max_length, file, share, end, lesson_of)
        logger.info("%s: %s", name, lengths)
    return open_packed(file)


def _evaluated(state: TrainerState) -> bool:
    """Whether the losses after the last step are known."""
    return any(
        entry["step"] == state.global_step and any(name.startswith("eval_") for name in entry)
        for entry in state.log_history
    )


def _trained_to_the_end(checkpoint: Path) -> bool:
    state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    return state.global_step >= state.max_steps


def _budget(recipe: Optimization, trainer: LoopTrainer, data: datasets.Dataset) -> Budget:
    model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    arguments, state = trainer.args, trainer.state
    method = recipe.method if isinstance(recipe, TrainRecipe) else "full"
    if isinstance(model, RecurTraceForCausalLM):
        config = model.config
    elif isinstance(recipe, TrainRecipe):
        config = loop_config(recipe, model.config)
    else:  # a base alone has no block; where one would be does not matter to what it costs
        config = RecurTraceConfig(text_config=model.config, loop_start=1)
    cost = cost_of(config)
    sample = data.select(range(0, len(data), -(-len(data) // 2000)))
    lengths = [length for row in sample["lengths"] for length in row]
    begins = [begin for row in sample["begins"] for begin in row]
    context = sum(n * (before + n / 2) for n, before in zip(lengths, begins, strict=True)) / sum(lengths)
    prompts = sum(length for row in sample["prompt_lengths"] for length in row)
    labelled = (sum(lengths) - prompts) / (len(sample) * recipe.max_length)
    passes = _forward_passes(len(trainer.rows or data), state.max_steps, arguments)
    depths = [trainer.sampler(index) if trainer.sampler is not None else 1 for index in passes]
    tokens_per_pass = recipe.micro_batch_size * arguments.world_size * recipe.max_length
    with_block = isinstance(recipe, TrainRecipe) and recipe.counts_block
    macs = [training_macs(cost, method, depth, context, config.block.start, with_block, labelled) for depth in depths]
    return Budget(
        method=method,
        parameters=sum(p.numel() for p in model.parameters()),
        trained_parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        steps=state.max_steps,
        batch_size=recipe.batch_size,
        max_length=recipe.max_length,
        tokens=len(depths) * tokens_per_pass,
        mean_depth=sum(depths) / len(depths),
        forward_flops=2 * tokens_per_pass * sum(part.forward for part in macs),
        total_flops=2 * tokens_per_pass * sum(part.total for part in macs),
        seconds=trainer.clock.seconds,
        peak_bytes=trainer.clock.peak_bytes,
        processes=arguments.world_size,
        device=torch.cuda.get_device_name(arguments.device)
        if arguments.device.type == "cuda"
        else str(arguments.device),
        precision=recipe.precision,
        micro_batch_size=recipe.micro_batch_size,
        learning_rate=recipe.learning_rate,
        layers=cost.layers,
        looped_layers=cost.looped_layers,
        train_block=(with_block and method != "adapter") or None,
    )


def _forward_passes(rows: int, steps: int, arguments: TrainingArguments) -> Iterator[int]:
    """Indices of a run's forward passes: the last step of an epoch has what is left."""
    per_step = arguments.gradient_accumulation_steps
    per_epoch = rows // (arguments.per_device_train_batch_size * arguments.world_size)
    steps_per_epoch = -(-per_epoch // per_step)
    for step in range(steps):
        left = per_epoch - (step % steps_per_epoch) * per_step
        yield from (step * per_step + number for number in range(min(per_step, left)))
