"""An independent, naive computation of Eq. 1–5, written from the paper alone, agrees with the model."""

import math

import pytest
import torch

from tests.conftest import every_family, tiny_looped, tokens


def rms(x, weight=1.0, eps=1e-6):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def memory_term(tensors, i, states, t, window, heads, width, eps, qk_norm=True):
    """LMA of layer i in loop t (1-based); `states[t' - 1]` is the layer's output of loop t', one position at a time."""
    w = {name.removeprefix(f"loop.memory.{i}."): tensor for name, tensor in tensors.items()}
    oldest = max(1, t - window)
    query_state = rms(states[t - 2], w["norm.weight"], eps)
    past = {j: rms(states[j - 1], w["norm.weight"], eps) for j in range(oldest, t)}
    out = torch.zeros_like(query_state)
    for row in range(out.shape[0]):
        for position in range(out.shape[1]):
            q_all = w["q_proj.weight"] @ query_state[row, position]
            read = []
            for head in range(heads):
                part = slice(head * width, (head + 1) * width)
                q = q_all[part]
                q = rms(q, w["q_norm.weight"], eps) if qk_norm else q
                scores, values = [], []
                for j in sorted(past):
                    k = (w["k_proj.weight"] @ past[j][row, position])[part]
                    k = rms(k, w["k_norm.weight"], eps) if qk_norm else k
                    scores.append(q @ k / math.sqrt(width) - w["slope"][head] * (t - j))
                    values.append((w["v_proj.weight"] @ past[j][row, position])[part])
                attention = torch.stack(scores).softmax(0)
                read.append(sum(a * v for a, v in zip(attention, values, strict=True)))
            mean = torch.stack([past[j][row, position] for j in past]).mean(0)
            gate_input = torch.cat([query_state[row, position], mean])
            gate = torch.sigmoid(w["gate.weight"] @ gate_input + w["gate.bias"])
            out[row, position] = w["scale"] * gate * (w["o_proj.weight"] @ torch.cat(read))
    return out


def naive_logits(model, ids, loops):
    """Algorithm 1 at a fixed depth on whole sequences."""
    config, decoder = model.config, model.model
    tensors = model.loop_state_dict()
    eps = config.get_text_config().rms_norm_eps
    h = decoder.embed_tokens(ids)
    rest = {"position_embeddings": decoder.rotary_emb(h, torch.arange(ids.shape[1])[None]), "attention_mask": None}
    for layer in decoder.layers[: config.loop_start]:
        h = layer(h, **rest)
    e = h
    states = [[] for _ in config.block]
    for t in range(1, loops + 1):
        if t > 1:
            h = h + tensors["loop.injection.alpha"] * rms(e, eps=eps)
        for i, index in enumerate(config.block):
            if t > 1 and config.loop_memory:
                shape = config.loop_memory_window, config.loop_attn_num_heads, config.loop_attn_head_dim
                h = h + memory_term(tensors, i, states[i], t, *shape, eps, config.loop_qk_norm)
            h = decoder.layers[index](h, **rest)
            states[i].append(h)
    for layer in decoder.layers[config.block.stop :]:
        h = layer(h, **rest)
    return model.lm_head(decoder.norm(h))


@every_family
@torch.no_grad()
def test_every_depth(family, looped):
    model = looped(family)
    ids = tokens(2, 5)
    for loops in (1, 2, 3, 4, 6):
        torch.testing.assert_close(
            model(ids, loops=loops).logits, naive_logits(model, ids, loops), atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize(
    "switches",
    [
        {"loop_memory": False},
        {"loop_qk_norm": False},
        {"loop_memory_window": 1},
        {"loop_memory_window": 2},
        {"loop_memory_window": 5},
        {"loop_attn_num_heads": 2},
        {"loop_num_layers": 1},
        {"loop_start": 0, "loop_num_layers": 6},
    ],
    ids=lambda switches: "-".join(map(str, switches)),
)
@torch.no_grad()
def test_ablation_switches(switches):
    model = tiny_looped(**switches)
    ids = tokens(2, 5)
    for loops in (2, 4, 7):
        torch.testing.assert_close(
            model(ids, loops=loops).logits, naive_logits(model, ids, loops), atol=1e-5, rtol=1e-4
        )


@torch.no_grad()
def test_a_deeper_loop_changes_the_answer():
    """The comparison above would also pass for a loop that does nothing."""
    model = tiny_looped()
    ids = tokens(2, 5)
    logits = [model(ids, loops=loops).logits for loops in (1, 2, 4)]
    assert (logits[0] - logits[1]).abs().max() > 1e-2
    assert (logits[1] - logits[2]).abs().max() > 1e-2
    plain = tiny_looped(loop_memory=False)
    assert (plain(ids, loops=2).logits - logits[1]).abs().max() > 1e-3
