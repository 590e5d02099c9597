"""A run from its recipe: data, model, trainer; the same call resumes after an interruption."""

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM, TrainerState, TrainingArguments
from transformers.integrations import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations

from recurtrace.config_file import check_attention
from recurtrace.data import little_world, stories
from recurtrace.data.collate import padding_id
from recurtrace.data.example import Example
from recurtrace.data.mixture import read_examples, read_split
from recurtrace.data.packing import PackCollator, open_packed, write_packed
from recurtrace.data.sampling import stratified
from recurtrace.errors import RecurTraceError
from recurtrace.files import STAGING, Kind, begin, claim, difference, load_manifest, locked
from recurtrace.model import RecurTraceConfig, RecurTraceForCausalLM
from recurtrace.model.base import read_base_config
from recurtrace.model.checkpoint import WeightReader, weight_files
from recurtrace.model.cost import cost_of
from recurtrace.model.depth import check_limit
from recurtrace.model.tokenizer import load_tokenizer
from recurtrace.records import BUDGET_FILE, Budget, write_record
from recurtrace.training.budget import Clock, training_macs
from recurtrace.training.checkpoints import has_trained, last_whole_checkpoint
from recurtrace.training.curriculum import CurriculumSampler
from recurtrace.training.depth_sampler import DepthSampler
from recurtrace.training.lessons import first_lesson
from recurtrace.training.methods import build_model, changes_base, check_probe, fitted, loop_config, on_its_base
from recurtrace.training.recipe import Optimization, PretrainRecipe, TrainRecipe
from recurtrace.training.trainer import LoopTrainer

logger = logging.getLogger(__name__)

RECIPE_FILE = "recipe.json"
MODEL_FOLDER = "model"
ALIKE = 0.9999  # cosine of two rows of the LM head that cannot be told apart
RUN = Kind(
    "run",
    RECIPE_FILE,
    ("checkpoint-*", STAGING, "packed", MODEL_FOLDER, "history.json", BUDGET_FILE),
    ("out", "batch_size"),
)
_PATIENCE = 6 * 3600  # seconds that processes wait for the one that tokenises


def train(recipe: TrainRecipe) -> Path:
    """Run stage 1 or a baseline; returns the folder of the trained model."""
    recipe = on_its_base(recipe)
    check_attention(recipe.attention, "attention", recipe.trust_remote_code)
    read_split(recipe.data, "train")  # refused before anything is written
    if not (held_out := stratified(read_examples(recipe.data, "heldout"), recipe.evaluate_on, recipe.seed)):
        raise RecurTraceError(
            f"the mixture {str(recipe.data)!r} has no held-out examples; build it with heldout above 0."
        )
    base_config = read_base_config(recipe.base, **recipe.hub)
    remedy = "set loop.loop_depth_limit in the recipe"
    check_limit(max(recipe.evaluate_depths), loop_config(recipe, base_config), "evaluate_depths", remedy)
    check_probe(recipe)
    recipe = fitted(recipe, base_config)
    tokenizer = load_tokenizer(recipe.base, **recipe.hub)
    arguments = training_arguments(recipe)
    with _own_folder(recipe, arguments) as finished:
        return recipe.out / MODEL_FOLDER if finished else _train(recipe, arguments, tokenizer, held_out)


def _train(
    recipe: TrainRecipe, arguments: TrainingArguments, tokenizer: PreTrainedTokenizerBase, held_out: list[Example]
) -> Path:
    with arguments.main_process_first(local=False, desc="tokenising"):
        lesson_of = partial(first_lesson, recipe.curriculum) if recipe.curriculum else None
        training_data = _packed(recipe, "train", lambda: _shuffled(recipe), tokenizer, lesson_of=lesson_of)
        heldout_data = _packed(recipe, "heldout", lambda: held_out, tokenizer, len(held_out))
    model = build_model(recipe)
    if recipe.answer_end == "text" and recipe.method != "full":
        _refuse_unwritable(model, tokenizer)
    sampler = DepthSampler.of(model.config, recipe.seed) if isinstance(model, RecurTraceForCausalLM) else None
    return _run(
        recipe,
        model,
        tokenizer,
        arguments,
        training_data,
        heldout_data,
        rows=_rows(recipe, training_data),
        sampler=sampler,
        evaluate_depths=recipe.evaluate_depths,
        merge_base=changes_base(recipe),
    )


def _rows(recipe: TrainRecipe, data: datasets.Dataset) -> CurriculumSampler | None:
    """The order of the rows where there are lessons; otherwise the Trainer shuffles them."""
    if not recipe.curriculum or recipe.steps is None:
        return None
    lessons = list(data["lesson"])
    for number, lesson in enumerate(recipe.curriculum):
        if min(lessons) > number:
            raise RecurTraceError(
                f"no example of {str(recipe.data)!r} is for the lesson until {lesson.until:g} of the run; check its "
                "tasks and hardest."
            )
    ends = [lesson.until for lesson in recipe.curriculum]
    return CurriculumSampler(lessons, ends, recipe.steps * recipe.batch_size, recipe.seed)


def _refuse_unwritable(model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """A frozen head writes no token whose row is that of others, as those of tokens it never saw can be."""
    rows = model.get_output_embeddings().weight.detach().float()
    alike = int((torch.cosine_similarity(rows, rows[tokenizer.eos_token_id][None]) > ALIKE).sum())
    if alike > 1:
        raise RecurTraceError(
            f"the base cannot write its end of text {tokenizer.eos_token!r}: {alike - 1:,} other tokens have the same "
            "row in its LM head; set answer_end: line."
        )


def pretrain(recipe: PretrainRecipe) -> Path:
    """Make a small base from nothing; returns its folder."""
    arguments = training_arguments(recipe)
    with _own_folder(recipe, arguments) as finished:
        return recipe.out / MODEL_FOLDER if finished else _pretrain(recipe, arguments)


def _pretrain(recipe: PretrainRecipe, arguments: TrainingArguments) -> Path:
    if recipe.world == "stories":
        tokenizer = stories.build_tokenizer()
        read = partial(stories.texts, turns=recipe.turns, rhymes=recipe.rhymes)
    else:
        tokenizer = little_world.build_tokenizer(recipe.sizes)
        read = partial(
            little_world.texts, sizes=recipe.sizes, steps=recipe.k, variety=recipe.variety, walks=recipe.walks
        )

    def generated(count: int, seed: int) -> Callable[[], Iterable[Example]]:
        return lambda: read(count, seed)

    with arguments.main_process_first(local=False, desc="tokenising"):
        training_data = _packed(recipe, "train", generated(recipe.examples, recipe.seed), tokenizer, recipe.examples)
        held_out = generated(recipe.evaluate_on, recipe.seed + 1_000_003)
        heldout_data = _packed(recipe, "heldout", held_out, tokenizer, recipe.evaluate_on)
    torch.manual_seed(recipe.seed)
    config = Qwen3Config(
        **recipe.architecture,
        vocab_size=-(-len(tokenizer) // 16) * 16,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    if recipe.start_from is not None:
        _take_weights(model, recipe.start_from)
    return _run(recipe, model, tokenizer, arguments, training_data, heldout_data)


def _take_weights(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Those of an earlier lesson."""
    tied = frozenset(model.all_tied_weights_keys)
    with WeightReader(weight_files(str(folder))) as reader:
        reader.expect({name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}, optional=tied)
        model.load_state_dict({name: reader[name] for name in reader.shapes()}, strict=not tied)


def training_arguments(recipe: Optimization) -> TrainingArguments:
    os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16" if recipe.precision == "bf16" else "no"  # above a launcher's
    _check_trackers(recipe.report_to)
    length = {"max_steps": recipe.steps} if recipe.steps else {"num_train_epochs": recipe.epochs}
    arguments = TrainingArguments(
        output_dir=str(recipe.out),
        seed=recipe.seed,
        data_seed=recipe.seed,
        per_device_train_batch_size=recipe.micro_batch_size,
        per_device_eval_batch_size=recipe.micro_batch_size,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=recipe.warmup,
        adam_beta1=recipe.betas[0],
        adam_beta2=recipe.betas[1],
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.clip,
        bf16=recipe.precision == "bf16",
        torch_compile=recipe.compile,
        gradient_checkpointing=recipe.gradient_checkpointing,
        logging_steps=recipe.log_every,
        logging_nan_inf_filter=False,
        eval_strategy="steps",
        eval_steps=recipe.evaluate_every,
        save_strategy="steps",
        save_steps=recipe.save_every,
        save_total_limit=recipe.keep,
        report_to=recipe.report_to or "none",
        remove_unused_columns=False,
        dataloader_drop_last=True,
        ddp_find_unused_parameters=False,
        ddp_timeout=_PATIENCE,
        use_cpu=not torch.cuda.is_available(),
        **length,
    )
    passes, rest = divmod(recipe.batch_size, recipe.micro_batch_size * arguments.world_size)
    if rest or not passes:
        raise RecurTraceError(
            f"batch_size {recipe.batch_size} cannot be shared by {arguments.world_size} processes in micro-batches of "
            f"{recipe.micro_batch_size}; change one of them."
        )
    arguments.gradient_accumulation_steps = passes
    arguments._n_gpu = min(arguments.n_gpu, 1)  # several are for a launcher, not for torch's DataParallel
    return arguments


def _check_trackers(names: Sequence[str]) -> None:
    there = get_available_reporting_integrations()
    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            raise RecurTraceError(
                f"report_to names {name!r}, which is no tracker; they are {', '.join(sorted(INTEGRATION_TO_CALLBACK))}."
            )
        if name not in there:
            raise RecurTraceError(f"report_to names {name}, which is not installed; install it or leave it out.")


def _run(
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
    block = isinstance(recipe, TrainRecipe) and recipe.train_block
    macs = [training_macs(cost, method, depth, context, config.block.start, block, labelled) for depth in depths]
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
    )


def _forward_passes(rows: int, steps: int, arguments: TrainingArguments) -> Iterator[int]:
    """Indices of a run's forward passes: the last step of an epoch has what is left."""
    per_step = arguments.gradient_accumulation_steps
    per_epoch = rows // (arguments.per_device_train_batch_size * arguments.world_size)
    steps_per_epoch = -(-per_epoch // per_step)
    for step in range(steps):
        left = per_epoch - (step % steps_per_epoch) * per_step
        yield from (step * per_step + number for number in range(min(per_step, left)))


def _trained_to_the_end(checkpoint: Path) -> bool:
    state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    return state.global_step >= state.max_steps


@contextmanager
def _own_folder(recipe: Optimization, arguments: TrainingArguments) -> Iterator[bool]:
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


def _packed(
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


def _shuffled(recipe: TrainRecipe) -> Iterable[Example]:
    """Training examples in the seed's order, without holding them in memory.

    Those that share a beginning are neighbours in the data and stay so; the trainer shuffles the packed rows.
    """
    files = [str(file) for file in read_split(recipe.data, "train")]
    rows = datasets.Dataset.from_parquet(files, cache_dir=str(recipe.out / "packed" / "cache"))
    if not recipe.share_beginnings:
        rows = rows.shuffle(seed=recipe.seed)
    for row in rows:
        yield Example(row["id"], row["task"], row["prompt"], row["answer"], bucket=row["bucket"] or "")
