"""Halting heads in a model folder, read and written without the model.

A folder may hold the model's own head and others by name, one for a task. Both kinds of checkpoint work: the file
that holds the loop modules is written anew, and config.json last.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from recurtrace.errors import RecurTraceError
from recurtrace.files import LOCK, claim_new, refuse_foreign, writing_folder
from recurtrace.halting.methods import PENALISED
from recurtrace.model.base import locate_base, portable_name, read_looped_config, refuse_other_kind
from recurtrace.model.card import model_card
from recurtrace.model.checkpoint import (
    ADAPTER_FILE,
    CARD_FILE,
    INDEX_FILE,
    MODEL,
    WeightReader,
    fingerprint,
    weight_files,
)
from recurtrace.model.configuration_recurtrace import HeadSettings, RecurTraceConfig
from recurtrace.model.cost import cost_of

OWN_WEIGHT = "loop.halting.weight"


@dataclass(frozen=True)
class Head:
    """A halting head outside of its model."""

    weight: Tensor  # [1, d]
    bias: Tensor  # [1]
    settings: HeadSettings

    def continue_probs(self, states: Tensor) -> Tensor:
        """[…] p_t of pooled states […, d]."""
        return torch.sigmoid(F.linear(states, self.weight, self.bias)).squeeze(-1)

    @property
    def tasks(self) -> list[str]:
        """Tasks it was trained on; none where that was not kept."""
        return (self.settings.trained_on or {}).get("sweep", {}).get("tasks", [])

    @property
    def regularization(self) -> float | None:
        """Strength of the penalty of ACT or the prior of PonderNet; None for other objectives."""
        penalised = self.settings.objective in PENALISED
        return (self.settings.trained_on or {}).get("recipe", {}).get("regularization") if penalised else None


def copy_model(folder: Path, out: Path, overwrite: bool = False) -> None:
    """A copy of a model folder to put heads into, whole or not at all; one that is there already is kept."""
    if (out / MODEL.manifest).is_file() and not overwrite:
        if folder_fingerprint(out) != folder_fingerprint(folder):
            raise RecurTraceError(
                f"{str(out)!r} already holds another model than {str(folder)!r}; choose another folder, or pass "
                "--overwrite to replace it."
            )
        return
    refuse_other_kind(out, merge_base=not (folder / ADAPTER_FILE).is_file())
    claim_new(out, MODEL, overwrite)
    config = read_looped_config(folder)
    with writing_folder(out, replaces=MODEL.files) as temporary:
        shutil.copytree(folder, temporary, ignore=shutil.ignore_patterns(LOCK, ".*.tmp"), dirs_exist_ok=True)
        if (base := config.base_model_name_or_path) is not None:
            config.base_model_name_or_path = portable_name(locate_base(base, str(folder)))
            config.save_pretrained(temporary)
        refuse_foreign(out, temporary, MODEL)


def read_heads(folder: Path) -> dict[str | None, Head]:
    """Every head of a model folder by its name; None is the model's own."""
    config = read_looped_config(folder)
    names = [*([None] if config.loop_halting_trained else []), *(config.loop_halting_heads or {})]
    return {name: read_head(folder, name) for name in names}


def read_head(folder: Path, name: str | None = None) -> Head:
    """A head in float32, with how it is to be used."""
    settings = read_looped_config(folder).head_settings(name)
    with WeightReader(_files(folder)) as reader:
        reader.require_floats()
        if missing := [tensor for tensor in _tensors(name) if tensor not in reader]:
            raise RecurTraceError(
                f"{reader.where} lacks {missing[0]}, which config.json describes; distill the head again."
            )
        weight, bias = (reader[tensor].float() for tensor in _tensors(name))
    return Head(weight, bias, settings)


def write_head(folder: Path, name: str | None, head: Head) -> None:
    """Put a trained head into a model folder, beside the others or in the place of its namesake."""
    config = read_looped_config(folder)
    config.set_head(name, head.settings)
    homes = _homes(folder)
    changed: dict[Path, dict[str, Tensor]] = {}
    for tensor, values in zip(_tensors(name), (head.weight, head.bias), strict=True):
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
    return loop_fingerprint(_loop_tensors(folder))


def was_of_folder(found: str, folder: Path) -> bool:
    """Whether a model with this fingerprint came from the folder: on a base in float16, values were rounded twice."""
    tensors = _loop_tensors(folder)
    return found in (loop_fingerprint(tensors), loop_fingerprint({n: tensor.half() for n, tensor in tensors.items()}))


def _loop_tensors(folder: Path) -> dict[str, Tensor]:
    with WeightReader(_files(folder)) as reader:
        return {name: reader[name] for name in reader.shapes() if name.startswith("loop.")}


def _write_config(folder: Path, config: RecurTraceConfig, file: Path) -> None:
    config.save_pretrained(folder)
    card = model_card(config, cost_of(config).parameters, merged=file.name != ADAPTER_FILE)
    (folder / CARD_FILE).write_text(card, encoding="utf-8")


def _files(folder: Path) -> list[str]:
    adapter = folder / ADAPTER_FILE
    return [str(adapter)] if adapter.is_file() else weight_files(str(folder), looped=True)


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
