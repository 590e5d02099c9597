"""Checkpoint files: what is read, what is checked before it is trusted, what is written.

An adapter folder holds `recurtrace.safetensors` (the loop modules) and a config with the base's name and fingerprint;
a merged folder holds everything in the usual `model*.safetensors`. Only safetensors are ever read.
"""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers.utils.hub import cached_file, get_checkpoint_shard_files

from recurtrace.errors import RecurTraceError, brief
from recurtrace.files import Kind, writing

ADAPTER_FILE = "recurtrace.safetensors"
WEIGHTS_FILE = "model.safetensors"
CARD_FILE = "README.md"
INDEX_FILE = "model.safetensors.index.json"
SHARDS = (WEIGHTS_FILE, INDEX_FILE, f"model-{'[0-9]' * 5}-of-{'[0-9]' * 5}.safetensors")
"""Patterns of the files that a full checkpoint's weights are in."""
FLOATS = ("F32", "BF16", "F16", "F64")
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.*",
    "chat_templates/*.jinja",
)
MODEL = Kind(
    "model",
    "config.json",
    (
        ADAPTER_FILE,
        *SHARDS,
        "generation_config.json",
        CARD_FILE,
        "calibration/*.json",
        "head-budget.json",
        *_TOKENIZER,
    ),
    ("text_config", "loop_num_layers"),
)


def find_file(name_or_path: str, file: str, **hub: Any) -> str | None:
    """Local path of a file in a folder or hub repository, or None if it is not there."""
    hub.pop("trust_remote_code", None)  # files are only read here
    return cached_file(
        name_or_path,
        file,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        **hub,
    )


def weight_files(name_or_path: str, looped: bool = False, **hub: Any) -> list[str]:
    """The safetensors files of a full checkpoint, sharded or not; a `looped` model could also be an adapter."""
    if (single := find_file(name_or_path, WEIGHTS_FILE, **hub)) is not None:
        return [single]
    if (index := find_file(name_or_path, INDEX_FILE, **hub)) is not None:
        hub.pop("trust_remote_code", None)
        try:
            return get_checkpoint_shard_files(name_or_path, index, **hub)[0]
        except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
            raise RecurTraceError(
                f"{index} does not name the weight files that are there ({brief(error, 80)}); fetch or save it again."
            ) from error
    if looped:
        raise RecurTraceError(
            f"{name_or_path!r} lacks {ADAPTER_FILE}, which its config.json belongs to; fetch or save it again."
        )
    raise RecurTraceError(
        f"no safetensors weights found at {name_or_path!r}; RecurTrace reads safetensors only, so convert an older "
        "checkpoint with save_pretrained of transformers first."
    )


class WeightReader:
    """Tensors of one or several safetensors files by name, read lazily."""

    def __init__(self, files: Iterable[str]):
        self.files = list(files)

    def __enter__(self) -> "WeightReader":
        self._stack = ExitStack()
        self._home: dict[str, Any] = {}
        for file in self.files:
            try:
                opened = self._stack.enter_context(safe_open(file, framework="pt"))
            except (SafetensorError, OSError) as error:
                self._stack.close()
                raise RecurTraceError(
                    f"{file} is not a whole safetensors file ({error}); it is truncated or of another kind; "
                    "fetch or save it again."
                ) from error
            self._home |= dict.fromkeys(opened.keys(), opened)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(file.get_slice(name).get_shape()) for name, file in self._home.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._home[name].get_tensor(name)

    def __contains__(self, name: str) -> bool:
        return name in self._home

    @property
    def where(self) -> str:
        return self.files[0] if len(self.files) == 1 else str(Path(self.files[0]).parent)

    def require_floats(self) -> None:
        for name, file in self._home.items():
            if (dtype := file.get_slice(name).get_dtype()) not in FLOATS:
                raise RecurTraceError(
                    f"{name} in {self.where} holds {dtype} values where weights are {', '.join(FLOATS)}; the file is "
                    "damaged or of another kind."
                )

    def expect(self, expected: Mapping[str, tuple[int, ...]], optional: frozenset[str] = frozenset()) -> None:
        """Refuse the files unless they hold exactly the `expected` tensors."""
        where, found = self.where, self.shapes()
        self.require_floats()
        if missing := sorted(expected.keys() - found.keys() - optional):
            raise RecurTraceError(
                f"{where} lacks {_some(missing)}; it is not the checkpoint its config.json describes."
            )
        if unknown := sorted(found.keys() - expected.keys() - optional):
            raise RecurTraceError(
                f"{where} holds {_some(unknown)}, which this model does not have; "
                "it is not the checkpoint its config.json describes."
            )
        for name, shape in found.items():
            if name in expected and shape != tuple(expected[name]):
                raise RecurTraceError(
                    f"{name} in {where} has shape {list(shape)} where the config asks for {list(expected[name])}; "
                    "use the config.json it was saved with."
                )


def refuse_non_finite(name: str, tensor: Tensor, where: str) -> None:
    # A finite sum has no NaN and no infinity in it, and is quicker to take than an element-wise look.
    if not tensor.is_floating_point() or tensor.sum(dtype=torch.float32).isfinite():
        return
    if not tensor.isfinite().all():
        raise RecurTraceError(
            f"{name} in {where} holds NaN or infinite values; the file is damaged or its training diverged."
        )


def fingerprint(tensors: Mapping[str, Tensor] | WeightReader, names: Iterable[str], where: str) -> str:
    """A hash of the named weights as stored: names, dtypes, shapes, bytes, however they are sharded."""
    total = xxhash.xxh3_128()
    for name in sorted(names):
        tensor = tensors[name].detach().cpu().contiguous()
        refuse_non_finite(name, tensor, where)
        content = xxhash.xxh3_128_hexdigest(tensor.reshape(-1).view(torch.uint8).numpy().data)
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)} {content}\n".encode())
    return total.hexdigest()


def read_adapter(file: str, expected: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    with WeightReader([file]) as reader:
        reader.expect(expected)
        tensors = {name: reader[name].clone() for name in expected}
    for name, tensor in tensors.items():
        refuse_non_finite(name, tensor, file)
    return tensors


def write_adapter(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    with writing(folder / ADAPTER_FILE) as temporary:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, temporary)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
