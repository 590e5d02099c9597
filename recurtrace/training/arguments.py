"""The Trainer's arguments, from a recipe."""

import os
from collections.abc import Sequence

import torch
from transformers import TrainingArguments
from transformers.integrations import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations

from recurtrace.errors import RecurTraceError
from recurtrace.training.recipe import Optimization

_PATIENCE = 6 * 3600  # seconds that processes wait for the one that tokenises


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
