"""Runs broken off, and what they leave compared."""

import torch
from safetensors.torch import load_file

from recurtrace.training.trainer import LoopTrainer


def weights(folder):
    name = "recurtrace.safetensors" if (folder / "recurtrace.safetensors").is_file() else "model.safetensors"
    return load_file(folder / name)


def same(one, other) -> bool:
    one, other = weights(one), weights(other)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def interrupt_at(monkeypatch, step: int) -> None:
    original = LoopTrainer.training_step

    def training_step(self, *arguments, **options):
        if self.state.global_step == step:
            raise KeyboardInterrupt
        return original(self, *arguments, **options)

    monkeypatch.setattr(LoopTrainer, "training_step", training_step)
