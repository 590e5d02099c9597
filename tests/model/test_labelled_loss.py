"""The loss at labelled positions only: that of all logits, and its gradients, whatever the batch looks like.

Rows of a matrix product may be summed in another order when there are fewer of them, so equality is up to rounding:
1e-6 of the loss, and of a tensor's largest gradient 1e-5 in float32 and 1 % in bfloat16 (a bit or two of its eight).
"""

import weakref

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from recurtrace.data.collate import Encoded, collate_padded
from recurtrace.data.packing import collate_packed
from recurtrace.model import labelled_loss as module
from recurtrace.model.labelled_loss import accept_return_logits, labelled_loss
from tests.conftest import VOCABULARY, every_family, tiny_base, tiny_looped, tokens

LENGTHS = ((9, 6), (5, 2), (12, 9), (4, 1))  # of examples, and of their prompts
LOSS = 1e-6
GRADIENT = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def batch_of(kind: str) -> dict[str, torch.Tensor]:
    examples = [Encoded(tokens(size, seed=size).tolist(), prompt) for size, prompt in LENGTHS]
    if kind == "packed":
        return collate_packed([examples[:2], examples[2:]], 18, pad_id=0)
    batch = collate_padded(examples, pad_id=0, side=kind)
    del batch["prompt_mask"]
    return batch


def results(model: nn.Module, **inputs) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = model(**inputs, use_cache=False).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(model: nn.Module, dtype: torch.dtype = torch.float32, **inputs) -> None:
    loss, gradients = results(model, **inputs)
    own_loss, own_gradients = results(model, **inputs, return_logits=False)
    torch.testing.assert_close(own_loss, loss, rtol=LOSS, atol=0)
    assert own_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert own_gradients[name].dtype == gradient.dtype
        difference = (own_gradients[name] - gradient).abs().max()
        assert difference <= GRADIENT[dtype] * gradient.abs().max() + 1e-12, name


@pytest.fixture(autouse=True)
def chunks_of_five(monkeypatch):
    """So that the 12 labels of a batch are in three chunks."""
    monkeypatch.setattr(module, "CHUNK_LOGITS", 5 * VOCABULARY + 7)


@every_family
@every_dtype
@pytest.mark.parametrize("kind", ["packed", "right", "left"])
@pytest.mark.parametrize("items", [None, 23])
def test_loss_and_gradients_are_those_of_all_logits(family, dtype, kind, items):
    batch = batch_of(kind) | ({"num_items_in_batch": torch.tensor(items)} if items else {})
    assert_same(tiny_looped(family).to(dtype).train(), dtype, **batch, loops=3)
    base = tiny_base(family).to(dtype).train()
    accept_return_logits(base)
    assert_same(base, dtype, **batch)


@pytest.mark.parametrize("tied", [False, True])
def test_mixed_precision(tied):
    """Weights in float32, products in bfloat16: what a full fine-tune runs in."""
    base = tiny_base(tie_word_embeddings=tied).train()
    accept_return_logits(base)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(base, torch.bfloat16, **batch_of("packed"))
    assert base.lm_head.weight.grad.dtype == torch.float32


@every_family
def test_a_head_tied_to_the_embedding(family):
    """Its weight has two gradients: as the head, and through all that was computed of the embedding."""
    base = tiny_base(family, tie_word_embeddings=True).train()
    accept_return_logits(base)
    assert_same(base, **batch_of("packed"))


def test_gradient_checkpointing():
    looped, base = tiny_looped().train(), tiny_base().train()
    accept_return_logits(base)
    for model, depth in ((looped, {"loops": 4}), (base, {})):
        model.gradient_checkpointing_enable()
        assert_same(model, **batch_of("packed"), **depth)


@pytest.mark.parametrize("chunk", [1, 4 * VOCABULARY, 2**25])
def test_the_size_of_a_chunk_changes_nothing(monkeypatch, chunk):
    base = tiny_base().train()
    accept_return_logits(base)
    monkeypatch.setattr(module, "CHUNK_LOGITS", chunk)
    assert_same(base, **batch_of("left"))


def test_the_head_sees_labelled_positions_in_bounded_chunks():
    model, seen = tiny_looped().train(), []
    model.lm_head.register_forward_hook(lambda _, __, logits: seen.append(tuple(logits.shape)))
    batch = batch_of("packed")
    labelled = int((batch["labels"] != -100).sum())
    out = model(**batch, loops=2, return_logits=False)
    assert out.logits is None
    assert [rows for rows, _ in seen] == [5, 5, labelled - 10]
    seen.clear()
    out.loss.backward()
    assert not seen  # nothing is computed twice
    with torch.no_grad():
        assert model(**batch, loops=2, return_logits=False).loss == out.loss


def test_nothing_as_large_as_the_logits_is_kept_for_backward():
    model, kept = tiny_looped().train(), []
    for return_logits, expected in ((True, True), (False, False)):
        kept.clear()
        with saved_tensors_hooks(lambda x: kept.append(weakref.ref(x)) or x, lambda x: x):
            loss = model(**batch_of("packed"), loops=2, return_logits=return_logits).loss
        alive = [tensor for reference in kept if (tensor := reference()) is not None]
        assert loss.requires_grad
        assert any(tensor.shape[-1] == VOCABULARY for tensor in alive if tensor.dim()) == expected


def test_without_labels_no_logit_is_made():
    model = tiny_looped()
    model.lm_head.register_forward_hook(lambda *_: pytest.fail("no logit was asked for"))
    out = model(tokens(2, 6), loops="adaptive", return_logits=False)
    assert (out.logits, out.loss) == (None, None)
    assert len(out.depths) == 2


def test_labels_make_logits_as_before():
    """Only who says so goes without them."""
    ids = tokens(2, 6)
    base = tiny_base()
    before = base(ids, labels=ids)
    accept_return_logits(base)
    after = base(ids, labels=ids)
    assert torch.equal(after.logits, before.logits)
    assert torch.equal(after.loss, before.loss)
    assert tiny_looped()(ids, labels=ids, loops=2).logits.shape == (2, 6, VOCABULARY)


def test_a_batch_without_labels_has_gradients_of_zero():
    """Another process of the same step may have some."""
    base = tiny_base().train()
    accept_return_logits(base)
    batch = batch_of("packed")
    batch["labels"].fill_(-100)
    loss, gradients = results(base, **batch, num_items_in_batch=7, return_logits=False)
    assert loss == 0
    assert gradients.keys() == {name for name, _ in base.named_parameters()}
    assert all((gradient == 0).all() for gradient in gradients.values())
    assert results(base, **batch, return_logits=False)[0].isnan()  # as in transformers


def test_one_loop_gives_every_trained_parameter_a_gradient():
    model = tiny_looped().train()
    _, gradients = results(model, **batch_of("packed"), loops=1, return_logits=False)
    assert gradients.keys() == {name for name, p in model.named_parameters() if p.requires_grad}
    assert all((gradient == 0).all() for gradient in gradients.values())


def test_labels_that_are_shifted_already():
    head, states = nn.Linear(8, VOCABULARY, bias=False), torch.randn(2, 6, 8)
    labels = tokens(2, 6)
    shifted = torch.cat([labels[:, 1:], torch.full((2, 1), -100)], dim=1)
    assert labelled_loss(head, states, labels) == labelled_loss(head, states, labels, shift_labels=shifted)


def test_gradients_follow_what_is_done_to_the_loss():
    """Data parallelism multiplies it, and several losses may be summed."""
    head, states = nn.Linear(8, VOCABULARY), torch.randn(2, 6, 8, requires_grad=True)
    loss = labelled_loss(head, states, tokens(2, 6))
    (3 * loss).backward(retain_graph=True)
    three = [states.grad.clone(), head.weight.grad.clone(), head.bias.grad.clone()]
    states.grad, head.weight.grad, head.bias.grad = None, None, None
    loss.backward()
    for gradient, whole in zip((states.grad, head.weight.grad, head.bias.grad), three, strict=True):
        torch.testing.assert_close(3 * gradient, whole)


def test_it_can_be_compiled():
    """In two graphs: how many positions have a label is known at run time only."""
    model = tiny_looped().train()
    batch = batch_of("packed")
    compiled = torch.compile(model, backend="aot_eager")
    expected, gradients = results(model, **batch, loops=2, return_logits=False)
    loss, own = results(compiled, **batch, loops=2, return_logits=False)
    torch.testing.assert_close(loss, expected)
    for name, gradient in gradients.items():
        torch.testing.assert_close(own[f"_orig_mod.{name}"], gradient)


def test_a_peft_model():
    from peft import LoraConfig, get_peft_model

    base = tiny_base()
    accept_return_logits(base)
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)).train()
    assert_same(model, **batch_of("packed"), num_items_in_batch=9)
