"""Heads in a model folder: written without the model, several by name, in both kinds of checkpoint."""

import json

import pytest
import torch

from recurtrace import RecurTraceForCausalLM
from recurtrace.errors import RecurTraceError
from recurtrace.model.configuration_recurtrace import HeadSettings
from recurtrace.model.heads import (
    Head,
    change_head,
    folder_fingerprint,
    loop_fingerprint,
    read_head,
    was_of_folder,
    write_head,
)
from tests.conftest import LOOP, tiny_base, tokens


@pytest.fixture(params=["adapter", "merged", "sharded"])
def folder(request, tmp_path):
    base = tiny_base()
    base.save_pretrained(tmp_path / "base")
    model = RecurTraceForCausalLM.from_base(tmp_path / "base", **LOOP)
    out = tmp_path / "model"
    if request.param == "adapter":
        model.save_pretrained(out)
    else:
        size = "40KB" if request.param == "sharded" else "5GB"
        model.save_pretrained(out, merge_base=True, max_shard_size=size)
        assert (out / "model.safetensors.index.json").exists() == (request.param == "sharded")
    return out


def some_head(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, 32, generator=generator), torch.randn(1, generator=generator)


def head_of(seed, settings):
    return Head(*some_head(seed), settings)


def test_the_models_own_head_works_at_once(folder):
    with pytest.raises(RecurTraceError, match="none of its own"):
        RecurTraceForCausalLM.from_pretrained(folder)(tokens(2, 5), loops="adaptive")
    weight, bias = some_head(0)
    write_head(folder, None, Head(weight, bias, HeadSettings("oracle", "prompt_last", 0.4, 1, 5)))
    model = RecurTraceForCausalLM.from_pretrained(folder)
    assert torch.equal(model.loop.halting.weight, weight)
    assert model.config.default_loops == "adaptive"
    assert model.config.loop_halting_threshold == 0.4
    out = model(tokens(4, 5))
    assert out.depths.max() <= 5
    ids = model.generate(tokens(2, 5), max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert ids.shape[1] <= 8
    assert "threshold 0.4" in (folder / "README.md").read_text()


def test_heads_by_name(folder):
    for seed, name in enumerate(("mathqa", "gsm8k")):
        write_head(folder, name, head_of(seed, HeadSettings("tah" if seed else "oracle", threshold=0.5, max_depth=6)))
    model = RecurTraceForCausalLM.from_pretrained(folder)
    assert model.config.default_loops == 2  # a named head is asked for by name
    ids = tokens(6, 5)
    found = [model(ids, loops="adaptive", head=name).continue_probs for name in ("mathqa", "gsm8k")]
    assert not torch.equal(found[0][:, 0], found[1][:, 0])
    head = read_head(folder, "gsm8k")
    assert head.settings == HeadSettings("tah", threshold=0.5, max_depth=6)
    model.loop.halting.load_state_dict({"weight": head.weight, "bias": head.bias})
    model.config.set_head(None, head.settings)
    own = model(ids, loops="adaptive")
    assert torch.equal(own.depths, model(ids, head="gsm8k").depths)  # a head's name asks for adaptive depth
    kept = model.generate(ids, head="gsm8k", max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert torch.equal(kept, model.generate(ids, loops="adaptive", max_new_tokens=4, do_sample=False, pad_token_id=0))
    with pytest.raises(RecurTraceError, match="no head 'arc'; it has gsm8k, mathqa"):
        model(ids, loops="adaptive", head="arc")
    with pytest.raises(RecurTraceError, match="belong to"):
        model(ids, loops=2, head="gsm8k")


def test_other_heads_and_everything_else_stay(folder):
    before = RecurTraceForCausalLM.from_pretrained(folder).state_dict()
    print_before = folder_fingerprint(folder)
    write_head(folder, "one", head_of(0, HeadSettings()))
    write_head(folder, "two", head_of(1, HeadSettings()))
    write_head(folder, "one", head_of(2, HeadSettings("act")))
    after = RecurTraceForCausalLM.from_pretrained(folder)
    for name, tensor in before.items():
        assert torch.equal(after.state_dict()[name], tensor)
    assert torch.equal(after.loop.head("two").weight, some_head(1)[0])
    assert torch.equal(after.loop.head("one").weight, some_head(2)[0])
    assert folder_fingerprint(folder) == print_before == loop_fingerprint(after.loop_state_dict())
    assert not list(folder.glob(".saving*"))


def test_a_sweep_belongs_to_its_modules_in_any_dtype(folder):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model = RecurTraceForCausalLM.from_pretrained(folder, dtype=dtype)
        found = loop_fingerprint(model.loop_state_dict())
        assert was_of_folder(found, folder)
        assert (found == folder_fingerprint(folder)) == (dtype != torch.float16)  # there, values are rounded twice
    assert not was_of_folder("another", folder)


def test_a_saved_model_keeps_its_heads(folder, tmp_path):
    write_head(folder, "one", head_of(0, HeadSettings("act")))
    model = RecurTraceForCausalLM.from_pretrained(folder)
    model.save_pretrained(tmp_path / "again", merge_base=True)
    again = RecurTraceForCausalLM.from_pretrained(tmp_path / "again")
    assert torch.equal(again.loop.head("one").weight, some_head(0)[0])
    assert again.config.head_settings("one").objective == "act"


def test_settings_can_be_changed_alone(folder):
    write_head(folder, "one", head_of(0, HeadSettings()))
    change_head(folder, "one", HeadSettings("oracle", "prompt_mean", 0.25, 3, 9))
    assert read_head(folder, "one").settings == HeadSettings("oracle", "prompt_mean", 0.25, 3, 9)
    assert torch.equal(read_head(folder, "one").weight, some_head(0)[0])
    with pytest.raises(RecurTraceError, match="no head 'two'"):
        change_head(folder, "two", HeadSettings())


def test_impossible_settings_change_nothing(folder):
    before = (folder / "config.json").read_text()
    for settings, match in (
        (HeadSettings(threshold=1.5), "probability"),
        (HeadSettings(min_depth=5, max_depth=3), "above its max_depth"),
        (HeadSettings(objective="guess"), "must be one of"),
    ):
        with pytest.raises(RecurTraceError, match=match):
            write_head(folder, "one", head_of(0, settings))
    with pytest.raises(RecurTraceError, match="a head's name"):
        write_head(folder, "a/b", head_of(0, HeadSettings()))
    assert (folder / "config.json").read_text() == before


def test_a_config_with_an_unknown_head_field_is_refused(folder):
    write_head(folder, "one", head_of(0, HeadSettings()))
    config = json.loads((folder / "config.json").read_text())
    config["loop_halting_heads"]["one"]["treshold"] = 0.1
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(RecurTraceError, match="treshold"):
        RecurTraceForCausalLM.from_pretrained(folder)
