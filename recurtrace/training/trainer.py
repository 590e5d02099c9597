"""The Hugging Face Trainer with a depth for each forward pass.

Everything else (accelerate, DeepSpeed, FSDP, mixed precision, accumulation, trackers) is the Trainer's own. Added are
the sampled depth, a loss without the logits of positions that have no label, evaluation at several depths, checkpoints
that appear whole or not at all, and a stop at the first loss that is not finite.
"""

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProgressCallback,
    Trainer,
    TrainerState,
    TrainingArguments,
)
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.trainer_utils import rotate_checkpoints

from recurtrace.data.collate import IGNORED
from recurtrace.data.packing import PackCollator
from recurtrace.errors import RecurTraceError
from recurtrace.files import STAGING
from recurtrace.model import RecurTraceForCausalLM
from recurtrace.model.checkpoint import ADAPTER_FILE, WeightReader, read_adapter, weight_files
from recurtrace.model.labelled_loss import accept_return_logits
from recurtrace.training.checkpoints import publish
from recurtrace.training.clock import Clock
from recurtrace.training.curriculum import CurriculumSampler
from recurtrace.training.depth_sampler import DepthSampler


class DepthProgress(ProgressCallback):
    """The progress bar with the latest loss and depth in it; only evaluations are printed."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        logs = logs or {}
        if state.is_world_process_zero and self.training_bar is not None and "loss" in logs:
            self.training_bar.set_postfix({key: logs[key] for key in ("loss", "depth") if key in logs})
        elif any(key.startswith("eval") for key in logs):
            super().on_log(args, state, control, logs, **kwargs)


class LoopTrainer(Trainer):
    """Trains a looped model at sampled depths; a model without loops as usual."""

    control: Any  # the Trainer's own, replaced by what its callbacks return

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        collator: PackCollator,
        tokenizer: PreTrainedTokenizerBase,
        clock: Clock,
        rows: CurriculumSampler | None = None,
        sampler: DepthSampler | None = None,
        evaluate_depths: Sequence[int] = (1,),
        merge_base: bool = False,
        block_learning_rate: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(model, args, data_collator=collator, processing_class=tokenizer, **kwargs)
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(DepthProgress)
        self.rows = rows
        self.sampler = sampler
        self.evaluate_depths = evaluate_depths if sampler is not None else [None]
        self.merge_base = merge_base
        self.block_learning_rate = block_learning_rate
        self.clock = clock
        self._saving = False
        if not isinstance(model, RecurTraceForCausalLM):  # a causal LM, or PEFT around one
            accept_return_logits(next(part for part in model.modules() if isinstance(part, PreTrainedModel)))
        # ZeRO-3 follows each module forward and then backward, and has no weights in between.
        self._loss_options = {"return_logits": is_deepspeed_zero3_enabled()}
        self._micro = (-1, 0)  # optimizer step, forward passes in it
        self._depths: list[int] = []  # since the last log
        # Our models' losses divide by the labels of the whole step, whatever wraps them.
        self.model_accepts_loss_kwargs = True

    @property
    def launched(self) -> str:
        """How this run is spread: its checkpoints can be resumed by the same only."""
        return f"{self.accelerator.distributed_type.value} with {self.args.world_size} processes"

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return self.rows if self.rows is not None else super()._get_train_sampler(train_dataset)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        is_made = self.optimizer is not None  # DeepSpeed asks a second time
        optimizer = super().create_optimizer(model)
        if self.block_learning_rate is not None and not is_made:
            whole: Any = self.model if model is None else model
            loop = self.accelerator.unwrap_model(whole, keep_torch_compile=False).loop
            added = {id(weight) for weight in loop.parameters()}
            groups = optimizer.param_groups
            split = [
                {**group, "params": weights, **({} if is_added else {"lr": self.block_learning_rate})}
                for group in groups
                for is_added in (True, False)
                if (weights := [weight for weight in group["params"] if (id(weight) in added) == is_added])
            ]
            groups.clear()
            for group in split:
                optimizer.add_param_group(group)
        return optimizer

    # --- depth --------------------------------------------------------------------------------------------------

    def forward_index(self) -> int:
        """Number of this forward pass since the start of the run, the same in every process and after a resume."""
        step, passes = self._micro
        passes = passes + 1 if step == self.state.global_step else 0
        self._micro = (self.state.global_step, passes)
        return self.state.global_step * self.args.gradient_accumulation_steps + passes

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        names = inputs.pop("names", [])
        inputs |= self._loss_options
        depth = None
        if self.sampler is not None:
            depth = inputs["loops"] = self.sampler(self.forward_index())
            self._depths.append(depth)
        loss = super().training_step(model, inputs, num_items_in_batch)
        if not loss.isfinite():
            raise self._not_finite(f"the loss is {loss.item()}", depth, names)
        self._last_batch = (depth, names)
        return loss

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        norm = super()._clip_grad_norm(model)
        if norm is not None and not math.isfinite(float(norm)):
            raise self._not_finite(f"the gradient's norm is {float(norm)}", *self._last_batch)
        return norm

    def _not_finite(self, what: str, depth: int | None, names: list[list[str]]) -> RecurTraceError:
        examples = [name for row in names for name in row]
        listed = ", ".join(examples[:8]) + (f" and {len(examples) - 8} more" if len(examples) > 8 else "")
        at = f" at depth {depth}" if depth is not None else ""
        return RecurTraceError(
            f"{what} in step {self.state.global_step + 1}{at}, in a batch of {listed}; the last checkpoint is kept. "
            "Lower the learning rate, or look at those examples."
        )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._depths:
            logs = {**logs, "depth": round(sum(self._depths) / len(self._depths), 2)}
            self._depths = []
        super().log(logs, start_time)

    # --- evaluation ---------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def evaluate(self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> dict:
        """Loss per answer token on the held-out examples, at each depth."""
        model = (
            self.model_wrapped if self.is_in_train else self.accelerator.prepare_model(self.model, evaluation_mode=True)
        )
        was_training = model.training
        model.eval()
        totals = torch.zeros(len(self.evaluate_depths) + 1, dtype=torch.float64, device=self.args.device)
        for batch in self._heldout_batches():
            batch = self._prepare_inputs(batch)
            totals[-1] += (batch["labels"][:, 1:] != IGNORED).sum()
            for number, depth in enumerate(self.evaluate_depths):
                options = self._loss_options | ({"loops": depth} if depth else {})
                with self.compute_loss_context_manager():
                    totals[number] += model(**batch, **options, use_cache=False, num_items_in_batch=1).loss.double()
        totals = self.accelerator.reduce(totals, "sum")
        model.train(was_training)
        nll = (totals[:-1] / totals[-1]).tolist()
        metrics = {
            f"{metric_key_prefix}_nll" + (f"_{depth}" if depth else ""): value
            for depth, value in zip(self.evaluate_depths, nll, strict=True)
        }
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _heldout_batches(self) -> Iterator[dict[str, Tensor]]:
        """This process's share, as many batches as every other's: sharded models run in step. Every row counts once."""
        rows, size = self.eval_dataset, self.args.per_device_eval_batch_size
        for start in range(0, len(rows), size * self.args.world_size):
            mine = range(start + self.args.process_index * size, start + (self.args.process_index + 1) * size)
            batch = self.data_collator([rows[min(number, len(rows) - 1)] for number in mine])
            batch.pop("names")
            batch["labels"].view(size, -1)[[number >= len(rows) for number in mine]] = IGNORED
            yield batch

    # --- checkpoints --------------------------------------------------------------------------------------------

    def _get_output_dir(self, trial: Any) -> str:
        folder = super()._get_output_dir(trial)
        return os.path.join(folder, STAGING) if self._saving else folder

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Written to a staging folder first: a checkpoint appears under its name whole or not at all."""
        out = Path(self.args.output_dir)
        self._saving = True
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._saving = False
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            name = f"checkpoint-{self.state.global_step}"
            self.clock.write(out / STAGING / name, self.launched)
            publish(out / STAGING / name, out / name)
            rotate_checkpoints(output_dir=str(out), save_total_limit=self.args.save_total_limit)
        self.accelerator.wait_for_everyone()

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        folder = output_dir if output_dir is not None else self.args.output_dir
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        options = {"merge_base": self.merge_base} if isinstance(model, RecurTraceForCausalLM) else {}
        model.save_pretrained(folder, state_dict=state_dict, **options)
        self.processing_class.save_pretrained(folder)

    def restore(self, checkpoint: str) -> None:
        """A run that was trained to its end, but not evaluated and saved."""
        self._load_from_checkpoint(checkpoint)
        self.state = TrainerState.load_from_json(os.path.join(checkpoint, "trainer_state.json"))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        target = self.accelerator.unwrap_model(self.model if model is None else model, keep_torch_compile=False)
        if not isinstance(target, RecurTraceForCausalLM) or self.is_fsdp_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        elif os.path.isfile(adapter := os.path.join(resume_from_checkpoint, ADAPTER_FILE)):
            shapes = {name: tuple(tensor.shape) for name, tensor in target.loop_state_dict().items()}
            target.load_loop_modules(read_adapter(adapter, shapes))
        else:
            own = target.state_dict()
            with WeightReader(weight_files(resume_from_checkpoint)) as reader:
                tensors = {name: reader[name].reshape(own[name].shape) for name in reader.shapes()}
            target.load_state_dict(tensors, strict=False)  # a tied head is the embedding under another name
