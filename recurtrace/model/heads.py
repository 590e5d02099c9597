"""Halting heads in a model folder, read and written without the model.

A folder may hold the model's own head and others by name, one for a task. Both kinds of checkpoint work: the file
that holds the loop modules is written anew, and config.json last.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from recurtrace.errors import RecurTraceError
from recurtrace.files import writing_folder
from recurtrace.model.base import not_looped, read_config
from recurtrace.model.card import model_card
from recurtrace.model.checkpoint import ADAPTER_FILE, INDEX_FILE, WeightReader, fingerprint, weight_files
from recurtrace.model.configuration_recurtrace import HeadSettings, RecurTraceConfig
from recurtrace.model.cost import cost_of

OWN_WEIGHT = "loop.halting.weight"


def read_looped_config(folder: Path) -> RecurTraceConfig:
    if not folder.is_dir():
        raise RecurTraceError(f"there is no model folder at {str(folder)!r}.")
    config = read_config(str(folder))
    if not isinstance(config, RecurTraceConfig):
        raise not_looped(str(folder), config)
    return config


def read_head(folder: Path, name: str | None = None) -> tuple[Tensor, Tensor, HeadSettings]:
    """Weight [1, d] and bias [1] of a head, in float32, and how it is to be used."""
    settings = read_looped_config(folder).head_settings(name)
    with WeightReader(_files(folder)) as reader:
        weight, bias = (reader[tensor].float() for tensor in _tensors(name))
    return weight, bias, settings


def write_head(folder: Path, name: str | None, weight: Tensor, bias: Tensor, settings: HeadSettings) -> None:
    """Put a trained head into a model folder, beside the others or in the place of its namesake."""
    config = read_looped_config(folder)
    config.set_head(name, settings)
    homes = _homes(folder)
    changed: dict[Path, dict[str, Tensor]] = {}
    for tensor, values in zip(_tensors(name), (weight, bias), strict=True):
        home = homes.get(tensor, homes[OWN_WEIGHT])
        changed.setdefault(home, load_file(home))[tensor] = values.detach().to(_dtype(config)).contiguous()
        homes[tensor] = home
    with writing_folder(folder) as temporary:
        for file, tensors in changed.items():
            save_file(tensors, temporary / file.name, metadata={"format": "pt"})
        if (index := folder / INDEX_FILE).is_file():
            listed = json.loads(index.read_text(encoding="utf-8"))
            listed["weight_map"] = {tensor: home.name for tensor, home in homes.items()}
            (temporary / INDEX_FILE).write_text(json.dumps(listed, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        _write_config(temporary, config, homes[OWN_WEIGHT])


def change_head(folder: Path, name: str | None, settings: HeadSettings) -> None:
    """Other settings for a head that is there, such as a calibrated threshold."""
    config = read_looped_config(folder)
    config.head_settings(name)
    config.set_head(name, settings)
    with writing_folder(folder) as temporary:
        _write_config(temporary, config, _homes(folder)[OWN_WEIGHT])


def loop_fingerprint(tensors: dict[str, Tensor]) -> str:
    """A hash of what stage 1 trained: a sweep belongs to it, whatever heads come later.

    Of values rounded to bfloat16, since the same file may be loaded in float32 or in bfloat16.
    """
    named = {name: tensor for name, tensor in tensors.items() if name.startswith("loop.") and not _is_head(name)}
    return fingerprint({name: tensor.bfloat16() for name, tensor in named.items()}, named, "the loop modules")


def folder_fingerprint(folder: Path) -> str:
    with WeightReader(_files(folder)) as reader:
        return loop_fingerprint({name: reader[name] for name in reader.shapes() if name.startswith("loop.")})


def _write_config(folder: Path, config: RecurTraceConfig, file: Path) -> None:
    config.save_pretrained(folder)
    card = model_card(config, cost_of(config).parameters, merged=file.name != ADAPTER_FILE)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _files(folder: Path) -> list[str]:
    adapter = folder / ADAPTER_FILE
    return [str(adapter)] if adapter.is_file() else weight_files(str(folder))


def _homes(folder: Path) -> dict[str, Path]:
    """Which file holds which tensor."""
    homes: dict[str, Path] = {}
    for file in _files(folder):
        with WeightReader([file]) as reader:
            homes |= dict.fromkeys(reader.shapes(), Path(file))
    if OWN_WEIGHT not in homes:
        raise RecurTraceError(f"{str(folder)!r} holds no loop modules; convert a base first.")
    return homes


def _tensors(name: str | None) -> list[str]:
    prefix = "loop.halting" if name is None else f"loop.heads.{name}"
    return [f"{prefix}.weight", f"{prefix}.bias"]


def _dtype(config: RecurTraceConfig) -> torch.dtype:
    dtype = config.dtype or torch.float32
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype


def _is_head(name: str) -> bool:
    return name.startswith(("loop.halting.", "loop.heads."))
