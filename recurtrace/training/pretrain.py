"""A small base from nothing, for the embedded worlds."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, TrainingArguments

from recurtrace.data import little_world, stories
from recurtrace.data.example import Example
from recurtrace.model.checkpoint import WeightReader, weight_files
from recurtrace.training.arguments import training_arguments
from recurtrace.training.recipe import PretrainRecipe
from recurtrace.training.run import MODEL_FOLDER, own_folder, packed, run


def pretrain(recipe: PretrainRecipe) -> Path:
    """Make a small base from nothing; returns its folder."""
    arguments = training_arguments(recipe)
    with own_folder(recipe, arguments) as finished:
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
        training_data = packed(recipe, "train", generated(recipe.examples, recipe.seed), tokenizer, recipe.examples)
        held_out = generated(recipe.evaluate_on, recipe.seed + 1_000_003)
        heldout_data = packed(recipe, "heldout", held_out, tokenizer, recipe.evaluate_on)
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
    return run(recipe, model, tokenizer, arguments, training_data, heldout_data)


def _take_weights(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Those of an earlier lesson."""
    tied = frozenset(model.all_tied_weights_keys)
    with WeightReader(weight_files(str(folder))) as reader:
        reader.expect({name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}, optional=tied)
        model.load_state_dict({name: reader[name] for name in reader.shapes()}, strict=not tied)
