"""From a base to a looped model, to files, and back."""

import copy
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Self

import torch
from huggingface_hub import HfApi
from torch import Tensor
from transformers import PreTrainedModel

from recurtrace.config_file import check_attention
from recurtrace.errors import RecurTraceError
from recurtrace.files import finish_writing, writing_folder
from recurtrace.model.base import (
    LOADING_OPTIONS,
    announced_base,
    hub_options,
    identify,
    load_base,
    loading_told,
    not_looped,
    portable_name,
    read_base_config,
    read_config,
    refuse_other_base,
    refuse_other_kind,
)
from recurtrace.model.card import model_card
from recurtrace.model.checkpoint import (
    ADAPTER_FILE,
    CARD_FILE,
    MODEL,
    SHARDS,
    WeightReader,
    find_file,
    read_adapter,
    refuse_non_finite,
    weight_files,
    write_adapter,
)
from recurtrace.model.configuration_recurtrace import RecurTraceConfig
from recurtrace.model.families import PRESET_NUM_LAYERS, check_family, choose_block
from recurtrace.model.generation_settings import check_generation_settings, read_generation_settings
from recurtrace.model.parameters import count_parameters

_SCALAR = re.compile(r"loop\.(memory\.\d+\.scale|injection\.alpha)")
# Options of transformers' from_pretrained that change nothing for an adapter.
_WITHOUT_EFFECT = {"adapter_kwargs", "low_cpu_mem_usage", "trust_remote_code", "use_safetensors", "weights_only"}


class PretrainedMixin(PreTrainedModel):
    """`from_base`, `from_pretrained` and `save_pretrained` of a looped model."""

    config: RecurTraceConfig

    @classmethod
    def from_base(cls, base: str | os.PathLike | PreTrainedModel, **options: Any) -> Self:
        """A looped model with fresh loop modules on a pretrained base, which stays as it is.

        Args:
            base: hub id, folder, or a loaded causal LM.
            options: fields of `RecurTraceConfig` (`loop_start`, `loop_memory_window`, …), and for a base that is
                loaded here the usual `dtype`, `device_map`, `attn_implementation`, `revision`, `token` and so on.
        """
        loading = {name: options.pop(name) for name in LOADING_OPTIONS & options.keys()}
        if isinstance(base, PreTrainedModel):
            check_family(base.config)
            base_config = base.config
        else:
            base_config = read_base_config(os.fspath(base), **hub_options(loading))
        k = options.get("loop_num_layers", PRESET_NUM_LAYERS)
        start = choose_block(base_config, options.pop("loop_start", None), k)
        config = RecurTraceConfig(text_config=base_config, loop_start=start, **options)  # checked before any loading

        base, name, config.base_fingerprint = _loaded(base, loading)
        config.base_model_name_or_path = portable_name(name) if name else None
        config.base_revision = loading.get("revision")
        return cls._on_base(config, base)

    @classmethod
    def _on_base(cls, config: RecurTraceConfig, base: PreTrainedModel) -> Self:
        config.text_config = base.config
        config._attn_implementation = base.config._attn_implementation
        config.check()
        model = cls(config, base)
        device = next(base.model.layers[config.loop_start].parameters()).device
        model.loop.to(device="cpu" if device.type == "meta" else device, dtype=base.dtype)  # meta: offloaded
        check_generation_settings(base.generation_config, base.config.name_or_path)
        model.generation_config = base.generation_config
        return model.eval()

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike,
        *model_args: Any,
        base: str | os.PathLike | PreTrainedModel | None = None,
        check_base: bool = True,
        **kwargs: Any,
    ) -> Any:
        """A saved looped model, adapter or merged.

        Args:
            base: another place of the base than the one an adapter names.
            check_base: refuse a base whose weights are not those the adapter was made on.
            kwargs: as in transformers; config fields among them override the saved ones.
        """
        name = os.fspath(pretrained_model_name_or_path)
        hub = hub_options(kwargs)
        check_attention(kwargs.get("attn_implementation"), "the attention", hub.get("trust_remote_code") is True)
        config = copy.deepcopy(kwargs.pop("config", None))
        if not isinstance(config, RecurTraceConfig):
            config = read_config(name, **hub)
            if not isinstance(config, RecurTraceConfig):
                raise not_looped(name, config)
        config.override({field: kwargs.pop(field) for field in list(kwargs) if field.startswith("loop_")})
        with_info = kwargs.pop("output_loading_info", False)
        adapter = find_file(name, ADAPTER_FILE, **hub)
        if adapter is not None:
            model = cls._from_adapter(name, adapter, config, base, check_base, **kwargs)
        elif base is None:
            model = cls._from_merged(name, config, *model_args, **kwargs)
        else:
            raise RecurTraceError(f"{name!r} is a merged checkpoint with its base inside; leave out base.")
        # What transformers would list here has been refused above.
        nothing: dict[str, Any] = {"missing_keys": set(), "unexpected_keys": set(), "mismatched_keys": set()}
        return (model, nothing | {"error_msgs": []}) if with_info else model

    @classmethod
    def _from_adapter(
        cls,
        name: str,
        adapter: str,
        config: RecurTraceConfig,
        base: str | os.PathLike | PreTrainedModel | None,
        check_base: bool,
        **kwargs: Any,
    ) -> Self:
        if (dtype := kwargs.pop("torch_dtype", None)) is not None:
            kwargs.setdefault("dtype", dtype)
        loading = {option: kwargs.pop(option) for option in LOADING_OPTIONS & kwargs.keys()}
        if unknown := [key for key in kwargs if key not in _WITHOUT_EFFECT and not key.startswith("_")]:
            raise RecurTraceError(f"from_pretrained does not know {', '.join(unknown)}; check the spelling.")
        hub = hub_options(loading)
        loading.pop("revision", None)  # it was the adapter's
        if base is None:
            if config.base_model_name_or_path is None:
                raise RecurTraceError(f"the adapter {name!r} does not name its base; pass base=, a folder or hub id.")
            base = announced_base(config.base_model_name_or_path, name)
            if not os.path.isdir(base) and os.path.isabs(base):
                raise RecurTraceError(
                    f"the base {base!r} of the adapter {name!r} is missing; pass base=, its current folder or hub id."
                )
            if config.base_revision is not None:
                loading["revision"] = config.base_revision
        if config._attn_implementation is not None and not isinstance(base, PreTrainedModel):
            loading.setdefault("attn_implementation", config._attn_implementation)
        base, base_name, found = _loaded(base, loading)
        if check_base:
            refuse_other_base(config.base_fingerprint, name, base_name, found)
        model = cls._on_base(config, base)
        model.load_loop_modules(read_adapter(adapter, _shapes(model.loop_state_dict())))
        if (settings := read_generation_settings(name, **hub)) is not None:
            model.generation_config = settings
        return model

    @classmethod
    def _from_merged(cls, name: str, config: RecurTraceConfig, *model_args: Any, **kwargs: Any) -> Self:
        with loading_told(name), torch.device("meta"):
            skeleton = cls(config)
        with WeightReader(weight_files(name, looped=True, **hub_options(kwargs))) as reader:
            tied = frozenset(skeleton.all_tied_weights_keys)
            reader.expect(_shapes(skeleton.state_dict()), optional=tied)
            for weight in reader.shapes():
                refuse_non_finite(weight, reader[weight], name)
        with loading_told(name):
            model = super().from_pretrained(name, *model_args, config=config, use_safetensors=True, **kwargs)
        check_generation_settings(model.generation_config, name)
        model.freeze_base()
        return model

    def loop_state_dict(self) -> dict[str, Tensor]:
        """The added weights under their names in the adapter file."""
        return as_in_files({f"loop.{name}": tensor for name, tensor in self.loop.state_dict().items()})

    def load_loop_modules(self, tensors: dict[str, Tensor]) -> None:
        own = self.loop.state_dict()
        named = {name.removeprefix("loop."): tensor for name, tensor in tensors.items()}
        self.loop.load_state_dict({name: tensor.reshape(own[name].shape) for name, tensor in named.items()})

    def save_pretrained(
        self,
        save_directory: str | os.PathLike,
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        merge_base: bool = False,
        **kwargs: Any,
    ) -> None:
        """Write the loop modules alone, or with `merge_base` everything, and a model card beside them."""
        if kwargs.pop("push_to_hub", False):
            raise RecurTraceError("save_pretrained does not upload; call push_to_hub, which does.")
        folder = Path(save_directory)
        if is_main_process:
            finish_writing(folder)
            refuse_other_kind(folder, merge_base)
        if merge_base:
            self._save_merged(folder, is_main_process, state_dict, **kwargs)
        elif is_main_process:
            self._save_adapter(folder, state_dict)

    def _save_merged(
        self, folder: Path, is_main_process: bool, state_dict: dict[str, Tensor] | None, **kwargs: Any
    ) -> None:
        if state_dict is None and self.loop.injection.alpha.dim():
            state_dict = self.state_dict()
        tensors = as_in_files(state_dict) if state_dict is not None else None
        with writing_folder(folder, replaces=SHARDS if MODEL.is_in(folder) else ()) as temporary:
            super().save_pretrained(temporary, is_main_process, tensors, **kwargs)
            if is_main_process:
                self._write_card(temporary, folder, merged=True)

    def _save_adapter(self, folder: Path, state_dict: dict[str, Tensor] | None) -> None:
        if self.get_input_embeddings().weight.shape[0] != self._base_vocabulary:
            raise RecurTraceError(
                "the vocabulary was resized, so an adapter would not fit its base; save with merge_base=True."
            )
        if state_dict is None:
            tensors = self.loop_state_dict()
        else:  # gathered by the caller from a sharded model, whose own tensors are parts only
            tensors = as_in_files({f"loop.{name}": state_dict[f"loop.{name}"] for name in self.loop.state_dict()})
        self.config.dtype = str(self.dtype).removeprefix("torch.")
        self.config.architectures = [type(self).__name__.removeprefix("FSDP")]
        with writing_folder(folder) as temporary:
            write_adapter(temporary, tensors)
            self.config.save_pretrained(temporary)
            self.generation_config.save_pretrained(temporary)
            self._write_card(temporary, folder, merged=False)

    def _write_card(self, temporary: Path, folder: Path, merged: bool) -> None:
        if MODEL.is_in(folder) or not (folder / CARD_FILE).exists():  # else it is about something else
            card = model_card(self.config, count_parameters(self), merged)
            (temporary / CARD_FILE).write_text(card, encoding="utf-8")

    def push_to_hub(
        self,
        repo_id: str,
        merge_base: bool = False,
        *,
        private: bool | None = None,
        token: str | None = None,
        commit_message: str = "Upload RecurTrace model",
        revision: str | None = None,
        create_pr: bool = False,
    ) -> Any:
        """Save and upload, card included."""
        api = HfApi(token=token)
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, merge_base=merge_base)
            repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
            return api.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                commit_message=commit_message,
                revision=revision,
                create_pr=create_pr,
            )


def _loaded(
    base: str | os.PathLike | PreTrainedModel, loading: dict[str, Any]
) -> tuple[PreTrainedModel, str | None, str]:
    """The base in memory, the place it came from, and its fingerprint."""
    if not isinstance(base, PreTrainedModel):
        name = os.fspath(base)
        read_base_config(name, **hub_options(loading))
        loaded, found = load_base(name, **loading)
        return loaded, name, found
    if loading:
        raise RecurTraceError(f"{', '.join(sorted(loading))} cannot be changed on a base that is loaded already.")
    check_family(base.config)
    return base, base.config.name_or_path or None, identify(base)


def as_in_files(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """γ and α without a dimension, whatever training made of them."""
    return {name: tensor.reshape(()) if _SCALAR.fullmatch(name) else tensor for name, tensor in tensors.items()}


def _shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
