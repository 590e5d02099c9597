"""One unroll measures what the model does at each depth alone, and a killed sweep goes on."""

import copy
import json
import runpy
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from recurtrace.data.answers import first_line
from recurtrace.data.collate import Encoder, collate_aligned
from recurtrace.errors import RecurTraceError
from recurtrace.files import locked
from recurtrace.halting import measure as measuring
from recurtrace.halting import sweep as depth_sweep
from recurtrace.halting.measure import measure
from recurtrace.halting.sweep import sweep
from recurtrace.halting.sweep_files import read_sweep
from recurtrace.model.halting import pool_prompt
from tests.conftest import every_family, tiny_looped
from tests.devices import MadeUpReads, OneDevice

DEPTHS = range(1, 6)


@pytest.fixture(scope="module")
def swept(byte_model, tokenizer, examples, tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "s"
    sweep(byte_model, tokenizer, examples, out, "heldout", depths=DEPTHS, batch_size=4, part_size=6)
    return read_sweep(out)


def test_losses_are_those_of_the_model_at_each_depth_alone(byte_model, tokenizer, examples):
    """Bit for bit in the same batch."""
    encoded = Encoder(tokenizer, 256)(examples[:5])
    rows = measure(byte_model, tokenizer, encoded, list(DEPTHS))
    batch, prompt = collate_aligned(encoded, tokenizer.pad_token_id)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
    for t in DEPTHS:
        with torch.inference_mode():
            logits = byte_model(**inputs, loops=t, use_cache=False).logits.float()
        for i, item in enumerate(encoded):
            length = len(item.input_ids) - item.prompt_length
            log_probs = F.log_softmax(logits[i, prompt - 1 : prompt - 1 + length], dim=-1)
            answer = torch.tensor(item.input_ids[item.prompt_length :])
            losses = -log_probs[range(length), answer]
            assert rows[i].arrays["loss"][t - 1] == losses[:-1].mean().item()  # the end of the text is not part of it
            assert rows[i].arrays["top_prob"][t - 1] == log_probs[0].exp().max().item()
            second, first = log_probs[0].exp().sort().values[-2:]
            assert rows[i].arrays["margin"][t - 1] == (first - second).item()
            assert rows[i].arrays["entropy"][t - 1] == pytest.approx(-(log_probs[0].exp() * log_probs[0]).sum().item())
            right = (log_probs.argmax(-1) == answer)[:-1].float().mean().item()
            assert rows[i].arrays["token_accuracy"][t - 1] == pytest.approx(right)


def test_on_another_device(byte_model, tokenizer, examples):
    """Every tensor is made where the model is; only what is read on the host is made up."""
    encoded = Encoder(tokenizer, 256)(examples[:5])
    labels = sum(len(item.input_ids) - item.prompt_length for item in encoded)
    model = copy.deepcopy(byte_model).to("meta")
    with MadeUpReads(labels=labels, rows=len(encoded)), OneDevice():
        rows = measure(model, tokenizer, encoded, [1, 3])
    assert [len(row.answers) for row in rows] == [2] * 5


def test_answers_are_those_of_generate(byte_model, tokenizer, examples, swept):
    for row, example in enumerate(examples):
        prompt = torch.tensor([tokenizer(example.prompt)["input_ids"]])
        for t in DEPTHS:
            ids = byte_model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                loops=t,
                max_new_tokens=16,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=tokenizer.eos_token_id,
            )
            written = tokenizer.decode(ids[0, prompt.shape[1] :], skip_special_tokens=True)
            assert swept.items[row].answers[t - 1] == first_line(written)


def test_right_answers_are_known_without_writing_them(tokenizer, examples, monkeypatch):
    """A model that always says the reference: no token is generated, and every answer counts."""
    model = tiny_looped(vocab_size=len(tokenizer))
    encoded = Encoder(tokenizer, 256)(examples[:3])
    wanted = iter([])

    def head(states):  # the likeliest token at every position asked for is the reference's
        ids = torch.tensor([next(wanted) for _ in range(len(states))])
        return 9.0 * F.one_hot(ids, len(tokenizer)).float()

    answers = [item.input_ids[item.prompt_length :] for item in encoded]
    wanted = iter([token for answer in answers for token in answer] * len(DEPTHS))
    model.lm_head.forward = head
    monkeypatch.setattr(measuring, "_write_on", lambda *_: pytest.fail("nothing had to be written"))
    for row in measure(model, tokenizer, encoded, list(DEPTHS)):
        assert row.correct.all()
        assert (row.arrays["token_accuracy"] == 1).all()


def test_states_are_pooled_over_the_prompt_alone(byte_model, tokenizer, examples, swept):
    for row in (0, 5):
        prompt = torch.tensor([tokenizer(examples[row].prompt)["input_ids"]])
        mask = torch.ones_like(prompt).bool()
        for t in DEPTHS:
            with torch.inference_mode():
                states = byte_model(prompt, loops=t, output_hidden_states=True).hidden_states
            h = states[byte_model.config.loop_start + 3 * t]
            for pooling, name in (("prompt_mean", "state_mean"), ("prompt_last", "state_last")):
                expected = pool_prompt(h, mask, pooling)[0].numpy()
                np.testing.assert_allclose(swept[name][row, t - 1], expected, rtol=1e-4, atol=1e-5)


@every_family
def test_every_family_can_be_swept(family, tokenizer, examples, tmp_path):
    model = tiny_looped(family, vocab_size=len(tokenizer))
    sweep(model, tokenizer, examples[:3], tmp_path / "s", "heldout", depths=[1, 3], batch_size=2)
    assert read_sweep(tmp_path / "s")["loss"].shape == (3, 2)


def test_sliding_windows_can_be_swept(tokenizer, examples):
    """Prompts longer than the window: the answers are those of generate."""
    model = tiny_looped("mistral", vocab_size=len(tokenizer), sliding_window=8, eos_token_id=tokenizer.eos_token_id)
    rows = measure(model, tokenizer, Encoder(tokenizer, 256)(examples[:3]), [1, 3])
    for example, row in zip(examples, rows, strict=False):
        prompt = torch.tensor([tokenizer(example.prompt)["input_ids"]])
        for i, t in enumerate((1, 3)):
            written = model.generate(prompt, loops=t, max_new_tokens=16, do_sample=False, pad_token_id=0)
            text = tokenizer.decode(written[0, prompt.shape[1] :], skip_special_tokens=True)
            assert row.answers[i] == first_line(text)


def test_layer_passes_are_the_stated_ones(tokenizer, examples, tmp_path):
    """Encoder once, each loop once, the decoder at every depth: counted on the layers themselves."""
    model = tiny_looped(vocab_size=len(tokenizer))
    passes = []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda _, args, out: passes.append(out.shape[1] > 1))
    sweep(model, tokenizer, examples[:4], tmp_path / "s", "heldout", depths=range(1, 17), batch_size=4)
    stated = read_sweep(tmp_path / "s").manifest.layer_passes
    assert stated == 2 + 16 * 3 + 16 * 1
    assert sum(passes) == stated  # beyond it, only single tokens of answers that were written out


def test_a_killed_sweep_goes_on_and_ends_the_same(byte_model, tokenizer, examples, swept, tmp_path, monkeypatch):
    options = {"depths": DEPTHS, "batch_size": 4, "part_size": 6}
    whole, calls = depth_sweep.measure, []

    def dies(*args, **options):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return whole(*args, **options)

    monkeypatch.setattr(depth_sweep, "measure", dies)
    with pytest.raises(KeyboardInterrupt):
        sweep(byte_model, tokenizer, examples, tmp_path / "s", "heldout", **options)
    with pytest.raises(RecurTraceError, match="not finished"):
        read_sweep(tmp_path / "s")
    monkeypatch.setattr(depth_sweep, "measure", lambda *args, **options: (calls.append(1), whole(*args, **options))[1])
    calls.clear()
    sweep(byte_model, tokenizer, examples, tmp_path / "s", "heldout", **options)
    assert len(calls) == 3  # 14 examples in parts of 6, 6 and 2: the first part was there
    again = read_sweep(tmp_path / "s")
    assert again.items == swept.items
    for name, array in swept.arrays.items():
        np.testing.assert_array_equal(again[name], array)


def test_what_is_measured_of_a_part_is_saved_by_time(byte_model, tokenizer, examples, swept, tmp_path, monkeypatch):
    """Killed inside a part: batches that were saved are not measured again, and the files end the same."""
    options = {"depths": DEPTHS, "batch_size": 4, "part_size": 6}
    sweep(byte_model, tokenizer, examples, tmp_path / "whole", "heldout", **options)
    whole, calls = depth_sweep.measure, []

    def dies(*args, **options):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return whole(*args, **options)

    monkeypatch.setattr(depth_sweep, "SAVE_EVERY", -1)
    monkeypatch.setattr(depth_sweep, "measure", dies)
    with pytest.raises(KeyboardInterrupt):
        sweep(byte_model, tokenizer, examples, tmp_path / "s", "heldout", **options)
    assert (tmp_path / "s" / "part-00001.partial").is_file()
    sweep(byte_model, tokenizer, examples, tmp_path / "s", "heldout", **options)
    assert len(calls) == 3 + 1 + 2  # of 2 + 2 + 1 batches, the fourth twice
    files = [{file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("whole", "s")]
    assert files[0] == files[1]


def test_a_folder_of_another_sweep_is_refused(byte_model, tokenizer, examples, tmp_path):
    sweep(byte_model, tokenizer, examples[:2], tmp_path / "s", "heldout", depths=[1, 2])
    with pytest.raises(RecurTraceError, match="different depths"):
        sweep(byte_model, tokenizer, examples[:2], tmp_path / "s", "heldout", depths=[1, 2, 3])
    with pytest.raises(RecurTraceError, match="different split"):
        sweep(byte_model, tokenizer, examples[:2], tmp_path / "s", "test", depths=[1, 2])
    with pytest.raises(RecurTraceError, match="different"):
        sweep(
            tiny_looped(vocab_size=len(tokenizer), loop_memory=False),
            tokenizer,
            examples[:2],
            tmp_path / "s",
            "heldout",
        )
    with locked(tmp_path / "s"), pytest.raises(RecurTraceError, match="is being written by another process"):
        sweep(byte_model, tokenizer, examples[:2], tmp_path / "s", "heldout", depths=[1, 2])
    made = sweep(byte_model, tokenizer, examples[:2], tmp_path / "s", "heldout", depths=[1], overwrite=True)
    assert made.depths == read_sweep(tmp_path / "s").depths == [1]
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "file").touch()
    with pytest.raises(RecurTraceError, match="not empty"):
        sweep(byte_model, tokenizer, examples[:2], tmp_path / "x", "heldout", depths=[1, 2])


def test_damaged_files_get_a_sentence(byte_model, tokenizer, examples, tmp_path):
    out = tmp_path / "s"
    with pytest.raises(RecurTraceError, match="holds no sweep"):
        read_sweep(out)
    sweep(byte_model, tokenizer, examples[:2], out, "heldout", depths=[1, 2])
    part = out / "part-00000.safetensors"
    part.write_bytes(part.read_bytes()[:50])
    with pytest.raises(RecurTraceError, match="damaged"):
        read_sweep(out)
    (out / "manifest.json").write_text("{")
    with pytest.raises(RecurTraceError, match="damaged"):
        read_sweep(out)
    (out / "manifest.json").write_text(json.dumps({"complete": True}))
    with pytest.raises(RecurTraceError, match="is not the manifest of a sweep"):
        read_sweep(out)


def test_policies_need_every_depth(byte_model, tokenizer, examples, tmp_path):
    sweep(byte_model, tokenizer, examples[:2], tmp_path / "s", "heldout", depths=[1, 2, 4])
    with pytest.raises(RecurTraceError, match="every depth of 1..4"):
        read_sweep(tmp_path / "s").require_every_depth()


def test_examples_can_be_chosen_by_task(swept):
    assert {item.task for item in swept.of_tasks(["p_hop"]).items} == {"p_hop"}
    assert len(swept.of_tasks(["p_hop"])["loss"]) == 7
    with pytest.raises(RecurTraceError, match="has no gsm8k"):
        swept.of_tasks(["gsm8k"])


SHARED = """
import sys
from pathlib import Path
from recurtrace.data.synthetic import Sizes, item
from recurtrace.halting.sweep import sweep
from recurtrace.model.loading import load_looped

model, tokenizer = load_looped(sys.argv[1], device="cpu")
sizes = Sizes(symbols=24, test_symbols=8, mapping=3, registers=2, largest_start=9)
examples = [item("arithmetic", "test", i, 0, k, sizes) for i in range(5) for k in (2, 4)]
sweep(model, tokenizer, examples, Path(sys.argv[2]), "test", depths=[1, 2], batch_size=2, part_size=3)
"""


def test_two_processes_write_the_files_of_one(byte_model, tokenizer, tmp_path, monkeypatch):
    """Shared out by parts, which are measured as they are by one process: the same bytes."""
    from tests.training.test_processes import free_port

    byte_model.save_pretrained(tmp_path / "model", merge_base=True)
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "shared.py").write_text(SHARED)
    arguments = [str(tmp_path / name) for name in ("shared.py", "model", "one")]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(arguments[0])
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    done = subprocess.run([*launcher, *arguments[:2], str(tmp_path / "two")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    files = sorted(file.name for file in (tmp_path / "one").iterdir())
    assert len(files) == 1 + 2 * 4
    assert files == sorted(file.name for file in (tmp_path / "two").iterdir())
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
