"""A trace says what direct calls of the model say."""

import math

import pytest
import torch
from torch.nn import functional as F

from recurtrace.data.collate import IGNORED, Encoder, collate_aligned
from recurtrace.data.example import Example
from recurtrace.errors import RecurTraceError
from recurtrace.evaluation.trace import trace
from recurtrace.evaluation.turning import DEPTHS, rights, turning
from recurtrace.records import LoopTrace
from tests.conftest import byte_tokenizer, every_family, tiny_looped

PROMPT, REFERENCE, LOOPS = "Ball is in Box. Where? Ball", "Box", 5
close = lambda value: pytest.approx(value, rel=2e-3, abs=1e-5)  # noqa: E731 (traces have four digits)


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny_looped(vocab_size=len(tokenizer))


@pytest.fixture(scope="module")
def found(model, tokenizer):
    return trace(model, tokenizer, PROMPT, reference=REFERENCE, max_loops=LOOPS)


def inputs(tokenizer, text=PROMPT):
    return torch.tensor([tokenizer(text)["input_ids"]])


def test_halting_is_the_heads(model, tokenizer, found):
    out = model(inputs(tokenizer), loops="adaptive", min_depth=LOOPS, max_depth=LOOPS)
    assert [loop.continue_prob for loop in found.loops] == close(out.continue_probs[0].tolist())
    settings = model.config.head_settings()
    assert (found.head.threshold, found.head.min_depth, found.head.max_depth) == (
        settings.threshold,
        settings.min_depth,
        settings.max_depth,
    )


def test_answers_probabilities_and_losses_are_those_of_each_depth(model, tokenizer, found):
    ids, whole = inputs(tokenizer), inputs(tokenizer, f"{PROMPT} {REFERENCE}")
    new = whole.shape[1] - ids.shape[1]
    for loop in found.loops:
        with torch.no_grad():
            out = model.generate(
                ids,
                loops=loop.loop,
                max_new_tokens=new,
                do_sample=False,
                output_scores=True,
                return_dict_in_generate=True,
            )
            logits = model(whole, loops=loop.loop).logits[0].float()
        written = out.sequences[0, ids.shape[1] :]
        assert loop.answer == tokenizer.decode(written, skip_special_tokens=True).strip().split("\n")[0].strip()
        likelihood = sum(F.log_softmax(scores[0], -1).max().item() for scores in out.scores)
        assert loop.answer_prob == close(math.exp(likelihood))
        wanted = F.log_softmax(logits[ids.shape[1] - 1 : -1], -1).gather(1, whole[0, ids.shape[1] :, None])
        assert loop.loss == close(-wanted.mean().item())
        assert loop.right == (loop.answer == REFERENCE)
        assert loop.confidence == close(logits[ids.shape[1] - 1].softmax(-1).max().item())


def test_without_a_reference_the_answer_is_what_generate_writes(model, tokenizer):
    found = trace(model, tokenizer, PROMPT, max_loops=2, answer_tokens=6)
    for loop in found.loops:
        ids = inputs(tokenizer)
        written = model.generate(ids, loops=loop.loop, max_new_tokens=6, do_sample=False)[0, ids.shape[1] :]
        assert loop.answer == tokenizer.decode(written, skip_special_tokens=True).strip().split("\n")[0].strip()
        assert loop.right is None
        assert loop.loss is None


def test_lenses_are_the_lm_head_on_states(model, tokenizer, found):
    for loop in found.loops:
        with torch.no_grad():
            out = model(inputs(tokenizer), loops=loop.loop, output_hidden_states=True)
        block = out.hidden_states[model.config.block.stop + (loop.loop - 1) * model.config.loop_num_layers]
        for lens, logits in ((loop.decoded, out.logits[0]), (loop.lens, model.lm_head(model.model.norm(block))[0])):
            top = logits.softmax(-1).topk(3)
            assert [[found.vocabulary[word] for word in row] for row in lens.words] == [
                [tokenizer.decode([token]) for token in row] for row in top.indices.tolist()
            ]
            assert torch.allclose(torch.tensor(lens.probs), top.values, rtol=2e-3)
            assert lens.entropy == close(torch.distributions.Categorical(logits=logits).entropy().tolist())


def test_states_gates_and_attention_are_as_the_modules_compute_them(model, tokenizer, found):
    seen = []

    def spy(memory, args, out):
        h, state, window = args
        reading = memory.read(state, window)
        seen.append((reading, h, out[0]))

    handles = [memory.register_forward_hook(spy) for memory in model.loop.memory]
    with torch.no_grad():
        states = model(inputs(tokenizer), loops=LOOPS, output_hidden_states=True).hidden_states
    for handle in handles:
        handle.remove()
    k, start = model.config.loop_num_layers, model.config.block.start
    length = len(found.tokens)
    for loop in found.loops[1:]:
        for j, layer in enumerate(loop.layers):
            reading, before, after = seen[(loop.loop - 2) * k + j]
            assert layer.gate == close(reading.gate[0].mean(-1).tolist())
            assert layer.memory == close(((after - before)[0].norm(dim=-1) / before[0].norm(dim=-1)).tolist())
            rows = torch.tensor(layer.attention)
            assert rows.shape == (4, length, min(loop.loop - 1, 3))
            assert torch.allclose(rows, reading.weights[0].transpose(0, 1), atol=1e-4)
            assert torch.allclose(rows.sum(-1), torch.ones(4, length), atol=1e-3)  # rounded
            output = states[start + 1 + (loop.loop - 1) * k + j][0]
            earlier = states[start + 1 + (loop.loop - 2) * k + j][0]
            angle = F.cosine_similarity(output, earlier, dim=-1).clamp(-1, 1).arccos() / math.pi
            assert layer.norm == close(output.norm(dim=-1).tolist())
            assert layer.change == pytest.approx(angle.tolist(), abs=1e-3)
        assert loop.norm == loop.layers[-1].norm
        assert loop.change == loop.layers[-1].change
        assert min(loop.injection) > 0
    first = found.loops[0]
    assert not any(layer.attention or layer.gate or layer.memory for layer in first.layers)
    assert first.injection == [0.0] * length
    assert [layer.index for layer in found.block] == list(model.config.block)
    assert found.block[0].slopes == close(model.loop.memory[0].slope.tolist())
    assert found.block[0].scale == close(model.loop.memory[0].scale.item())


def test_memory_is_off_from_a_loop_on(model, tokenizer, found):
    off = trace(model, tokenizer, PROMPT, reference=REFERENCE, max_loops=LOOPS, memory_off_from=3)
    assert off.loops[:2] == found.loops[:2]
    assert off.loops[2] != found.loops[2]
    assert [bool(loop.layers[0].attention) for loop in off.loops] == [False, True, False, False, False]
    never = trace(model, tokenizer, PROMPT, max_loops=3, memory_off_from=2)
    plain = tiny_looped(vocab_size=len(tokenizer), loop_memory=False)
    plain.loop.injection.load_state_dict(model.loop.injection.state_dict())
    plain.loop.halting.load_state_dict(model.loop.halting.state_dict())
    same = trace(plain, tokenizer, PROMPT, max_loops=3)
    assert [loop.decoded for loop in never.loops] == [loop.decoded for loop in same.loops]
    assert same.memory_window == 0
    assert same.block[0].scale is None
    with pytest.raises(RecurTraceError, match="no memory to switch off"):
        trace(plain, tokenizer, PROMPT, memory_off_from=2)


def test_a_trace_leaves_the_model_as_it_was(model, tokenizer, found):
    for module in model.loop.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert trace(model, tokenizer, PROMPT, reference=REFERENCE, max_loops=LOOPS) == found


def test_each_layer_runs_once_for_each_loop(model, tokenizer, monkeypatch):
    """With a reference of one token nothing is written on, so every pass is one of the unroll."""
    calls = []
    handles = [
        layer.register_forward_hook(lambda *_, i=i: calls.append(i)) for i, layer in enumerate(model.model.layers)
    ]
    trace(model, tokenizer, PROMPT, max_loops=4, answer_tokens=1)
    for handle in handles:
        handle.remove()
    block = model.config.block
    assert all(calls.count(i) == (1 if i < block.start else 4) for i in range(len(model.model.layers)))


def test_progress_is_told_and_may_end_it(model, tokenizer):
    told = []
    found = trace(model, tokenizer, PROMPT, max_loops=9, progress=lambda loop: told.append(loop.loop) or loop.loop < 3)
    assert told == [1, 2, 3]
    assert len(found.loops) == 3


def test_a_file_gives_the_trace_back(found, tmp_path):
    found.write(tmp_path / "trace.json")
    assert LoopTrace.read(tmp_path / "trace.json") == found
    (tmp_path / "trace.json").write_text('{"model": 3}')
    with pytest.raises(RecurTraceError, match="is not a trace .*; make it again with `recurtrace trace --out`"):
        LoopTrace.read(tmp_path / "trace.json")


def test_two_hundred_tokens_at_sixteen_loops_are_a_few_megabytes(model, tokenizer, tmp_path):
    trace(model, tokenizer, "x" * 200, max_loops=16, answer_tokens=1).write(tmp_path / "trace.json")
    assert (tmp_path / "trace.json").stat().st_size < 3e6


@every_family
def test_every_family_is_traced(family, tokenizer):
    model = tiny_looped(family, vocab_size=len(tokenizer))
    found = trace(model, tokenizer, PROMPT, reference="abcdef", max_loops=3)
    ids = inputs(tokenizer)
    for loop in found.loops:
        written = model.generate(ids, loops=loop.loop, max_new_tokens=7, do_sample=False)[0, ids.shape[1] :]
        assert loop.answer == tokenizer.decode(written, skip_special_tokens=True).strip().split("\n")[0].strip()


def test_a_model_without_a_head_is_traced_too(tokenizer):
    model = tiny_looped(vocab_size=len(tokenizer))
    model.config.loop_halting_trained = False
    found = trace(model, tokenizer, PROMPT, max_loops=2)
    assert found.head is None
    assert found.loops[0].continue_prob is None


@pytest.mark.parametrize(
    ("prompt", "options", "why"),
    [
        (" ", {}, "the prompt is empty"),
        ("a", {"reference": " "}, "the reference is empty"),
        ("a" * 30, {"max_tokens": 20}, "30 tokens, more than 20"),
        ("a", {"head": "act"}, "no head 'act'"),
        ("a", {"memory_off_from": 5, "max_loops": 4}, "no loop 5 to switch the memory off from, max_loops is 4"),
    ],
)
def test_what_cannot_be_traced_is_said(model, tokenizer, prompt, options, why):
    with pytest.raises(RecurTraceError, match=why):
        trace(model, tokenizer, prompt, **options)


def test_turning_examples_turn_once(monkeypatch):
    """Answers that are right at these depths only."""
    right_at = {"a": (2, 4, 8, 16), "b": (2, 4), "c": (8, 16), "d": (2, 16), "e": (), "f": (16,)}
    table = iter([[depth in depths for depth in DEPTHS] for depths in right_at.values()])

    def made_up(model, batch):
        return torch.tensor([next(table) for _ in batch["input_ids"]])

    monkeypatch.setattr("recurtrace.evaluation.turning.rights", made_up)
    examples = [Example(answer, "", f"{'x' * i}?", answer) for i, answer in enumerate(right_at)]
    found = [[(item.answer, right) for item, right in batch] for batch in turning(None, byte_tokenizer(), examples)]
    assert found == [[("b", False), ("c", True)], [("f", True)]]


def test_answers_at_each_depth_need_logits_of_the_answers_only(model, tokenizer):
    """The label of each row is what the model says at one of the depths."""
    prompts = ["Ball is in Box", "Who?", "Jar is in Sack. Where?"]
    said = []
    for prompt, depth in zip(prompts, (2, 4, 16), strict=True):
        ids = inputs(tokenizer, f"{prompt} ")
        said.append(model(ids, loops=depth).logits[0, -1].argmax().item())
    encoded = Encoder(tokenizer, max_length=64, end=None)([Example(p, "", p, "x") for p in prompts])
    batch, _ = collate_aligned(encoded, 0)
    batch["labels"][:] = IGNORED  # the answer is one byte, after the space
    batch["labels"][:, -1] = torch.tensor(said)
    wanted = [
        [model(inputs(tokenizer, f"{p} "), loops=depth).logits[0, -1].argmax().item() == word for depth in DEPTHS]
        for p, word in zip(prompts, said, strict=True)
    ]
    seen = []
    handle = model.lm_head.register_forward_hook(lambda _, given, out: seen.append(out.shape[:-1].numel()))
    found = rights(model, batch)
    handle.remove()
    assert found.tolist() == wanted
    assert [row[DEPTHS.index(depth)] for row, depth in zip(wanted, (2, 4, 16), strict=True)] == [True] * 3
    assert seen == [len(prompts)] * len(DEPTHS)
