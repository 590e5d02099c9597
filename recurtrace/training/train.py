"""Stage 1 or a baseline from its recipe; the same call resumes after an interruption."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import torch
from transformers import PreTrainedTokenizerBase, TrainingArguments

from recurtrace.config_file import check_attention
from recurtrace.data.example import Example
from recurtrace.data.mixture import read_examples, read_split
from recurtrace.data.sampling import stratified
from recurtrace.errors import RecurTraceError
from recurtrace.model import RecurTraceForCausalLM
from recurtrace.model.base import read_base_config
from recurtrace.model.depth import check_limit
from recurtrace.model.tokenizer import load_tokenizer
from recurtrace.training.arguments import training_arguments
from recurtrace.training.curriculum import CurriculumSampler
from recurtrace.training.depth_sampler import DepthSampler
from recurtrace.training.lessons import first_lesson
from recurtrace.training.methods import build_model, changes_base, check_probe, fitted, loop_config, on_its_base
from recurtrace.training.recipe import TrainRecipe
from recurtrace.training.run import MODEL_FOLDER, own_folder, packed, run

ALIKE = 0.9999  # cosine of two rows of the LM head that cannot be told apart


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
    with own_folder(recipe, arguments) as finished:
        return recipe.out / MODEL_FOLDER if finished else _train(recipe, arguments, tokenizer, held_out)


def _train(
    recipe: TrainRecipe, arguments: TrainingArguments, tokenizer: PreTrainedTokenizerBase, held_out: list[Example]
) -> Path:
    with arguments.main_process_first(local=False, desc="tokenising"):
        lesson_of = partial(first_lesson, recipe.curriculum) if recipe.curriculum else None
        training_data = packed(recipe, "train", lambda: _shuffled(recipe), tokenizer, lesson_of=lesson_of)
        heldout_data = packed(recipe, "heldout", lambda: held_out, tokenizer, len(held_out))
    model = build_model(recipe)
    if recipe.answer_end == "text" and recipe.method != "full":
        _refuse_unwritable(model, tokenizer)
    sampler = DepthSampler.of(model.config, recipe.seed) if isinstance(model, RecurTraceForCausalLM) else None
    return run(
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
        block_learning_rate=recipe.block_learning_rate,
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
