"""Examples to tensors: the mask of the prompt, labels on the answer only, answers whole, packed samples apart."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recurtrace import RecurTraceError
from recurtrace.data import stories
from recurtrace.data.collate import IGNORED, MIN_PROMPT, Encoded, Encoder, collate_padded
from recurtrace.data.example import Example
from recurtrace.data.packing import PackCollator, collate_packed, open_packed, pack, share_beginnings, write_packed
from recurtrace.data.synthetic import training_items
from tests.conftest import byte_tokenizer, tiny_looped

BOS, EOS = 1, 2


def example(prompt: str, answer: str = "yes", name: str = "e") -> Example:
    return Example(name, "t", prompt, answer)


@pytest.mark.parametrize("bos", [False, True])
def test_labels_are_on_the_answer_only(bos):
    tokenizer = byte_tokenizer(bos)
    (one,) = Encoder(tokenizer, 64)([example("Question: 2+2?\nAnswer:", "4")])
    answer = [label for label in one.labels if label != IGNORED]
    assert tokenizer.decode(answer[:-1]) == " 4"
    assert answer[-1] == EOS
    assert one.input_ids[: one.prompt_length] == tokenizer("Question: 2+2?\nAnswer:")["input_ids"]
    (bare,) = Encoder(tokenizer, 64, end=None)([example("Question: 2+2?\nAnswer:", "4")])
    assert bare.input_ids == one.input_ids[:-1]


def test_a_prompt_keeps_its_own_tokens_where_one_piece_would_be_cut_otherwise():
    tokenizer = byte_tokenizer(merges=((":", "Ġ"),))  # ": " is one token
    tokenizer.backend_tokenizer.pre_tokenizer = type(tokenizer.backend_tokenizer.pre_tokenizer)(
        add_prefix_space=False, use_regex=False
    )
    (one,) = Encoder(tokenizer, 64)([example("Answer:", "4")])
    assert one.input_ids[: one.prompt_length] == tokenizer("Answer:")["input_ids"]
    assert tokenizer.decode(one.input_ids) == "Answer: 4<eos>"


@pytest.mark.parametrize("bos", [False, True])
@given(prompt=st.integers(1, 80), answer=st.integers(1, 60))
def test_an_answer_is_never_truncated(bos, prompt, answer):
    encoder = Encoder(byte_tokenizer(bos), 48)
    text = "".join(chr(97 + i % 26) for i in range(prompt))
    found = encoder([example(text, "z" * answer)])
    fits = prompt + bos + answer + 2 <= 48
    assert encoder.lengths.kept + len(encoder.lengths.dropped) == 1
    if not fits and 48 - answer - 2 < MIN_PROMPT:
        assert not found
        assert encoder.lengths.dropped == ["e"]
        return
    (one,) = found
    kept = byte_tokenizer().decode(one.input_ids[one.prompt_length :])
    assert kept == " " + "z" * answer + "<eos>"
    assert encoder.lengths.cut == (not fits)
    assert len(one.input_ids) <= 48
    if bos:
        assert one.input_ids[0] == BOS
    assert text.endswith(byte_tokenizer().decode(one.input_ids[bos : one.prompt_length]))  # cut from the left only
    assert "dropped" in str(encoder.lengths)


def test_impossible_settings():
    with pytest.raises(RecurTraceError, match="max_length must be above 16, got 16"):
        Encoder(byte_tokenizer(), 16)
    endless = byte_tokenizer()
    endless.eos_token = None
    with pytest.raises(RecurTraceError, match="no end-of-text token"):
        Encoder(endless, 64)
    with pytest.raises(RecurTraceError, match="an example of 9 tokens does not fit in 8"):
        list(pack([[Encoded([3] * 9, 4)]], 8))


@given(st.lists(st.integers(1, 32), max_size=300))
def test_packing_loses_nothing_and_wastes_little(sizes):
    items = [Encoded([number] * size, 0) for number, size in enumerate(sizes)]
    packs = list(pack(([item] for item in items), 32))
    assert sorted(item.input_ids for members in packs for item in members) == [item.input_ids for item in items]
    assert all(sum(len(item.input_ids) for item in members) <= 32 for members in packs)
    assert len(packs) <= 2 * sum(sizes) / 32 + 1


def test_packed_logits_equal_separate_logits():
    """The isolation of packed samples, through the model: logits, and the loss with its gradients' sum."""
    model = tiny_looped(vocab_size=300)
    tokenizer = byte_tokenizer(bos=True)
    examples = [item for task in ("arithmetic", "symbolic") for item in training_items(task, 4, seed=3)]
    encoded = Encoder(tokenizer, 256)(examples)
    packs = list(pack(([item] for item in encoded), 256))
    assert max(len(members) for members in packs) > 1
    batch = collate_packed(packs, 256, tokenizer.pad_token_id)
    for loops in (1, 3):
        with torch.no_grad():
            packed = model(batch["input_ids"], position_ids=batch["position_ids"], loops=loops).logits
            total = 0.0
            for row, members in enumerate(packs):
                start = 0
                for member in members:
                    ids = torch.tensor([member.input_ids])
                    alone = model(ids, labels=torch.tensor([member.labels]), loops=loops)
                    there = packed[row, start : start + len(member.input_ids)]
                    torch.testing.assert_close(there, alone.logits[0], atol=2e-5, rtol=1e-4)
                    total += alone.loss * (len(member.input_ids) - member.prompt_length)
                    start += len(member.input_ids)
            labels = sum(len(item.input_ids) - item.prompt_length for item in encoded)
            loss = model(**batch, loops=loops).loss
            torch.testing.assert_close(loss, total / labels, atol=1e-5, rtol=1e-5)


def test_one_row_for_flash_attention():
    """Flash attention finds restarting positions in a batch of one row only."""
    model = tiny_looped(vocab_size=300)
    encoded = Encoder(byte_tokenizer(), 128)(list(training_items("arithmetic", 6, seed=3)))
    packs = list(pack(([item] for item in encoded), 128))
    rows, one = collate_packed(packs, 128, 0), collate_packed(packs, 128, 0, one_row=True)
    assert one["input_ids"].shape == (1, 128 * len(packs))
    with torch.no_grad():
        torch.testing.assert_close(model(**one, loops=3).loss, model(**rows, loops=3).loss)
    model.config.text_config._attn_implementation = "flash_attention_2"
    with pytest.raises(RecurTraceError, match="only in a batch of one row"):
        model(**rows, loops=3)


def test_a_shared_beginning_is_computed_once_with_the_loss_of_separate_examples(tmp_path):
    model = tiny_looped(vocab_size=512)
    tokenizer = stories.build_tokenizer()
    examples = list(stories.training_items("where_thing", 40, seed=3))
    encoded = Encoder(tokenizer, 256)(examples)
    write_packed(examples, None, tokenizer, 256, tmp_path / "train.arrow", share=True)
    rows = [*open_packed(tmp_path / "train.arrow")]
    batch = PackCollator(256, tokenizer.pad_token_id, share=True)(rows)
    names = batch.pop("names")
    assert sorted(name for row in names for name in row if name) == sorted(example.id for example in examples)
    assert sum(map(len, (row["input_ids"] for row in rows))) < 0.3 * sum(len(item.input_ids) for item in encoded)
    alone = collate_padded(encoded, tokenizer.pad_token_id)
    alone.pop("prompt_mask")
    for loops in (1, 3):
        with torch.no_grad():
            torch.testing.assert_close(model(**batch, loops=loops).loss, model(**alone, loops=loops).loss)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12), st.integers(1, 12)), max_size=20))
def test_pieces_put_together_are_the_examples(drawn):
    items = [Encoded([kind] * same + [9] * rest + [5], same + rest) for kind, same, rest in drawn]
    found = []
    for unit in share_beginnings(items, 64):
        beginning = unit[0].input_ids if len(unit) > 1 else []
        pieces = unit[1:] if beginning else unit
        assert sum(len(piece.input_ids) for piece in unit) <= 64
        assert all(piece.begins == len(beginning) for piece in pieces)
        found += [Encoded(beginning + piece.input_ids, piece.begins + piece.prompt_length) for piece in pieces]
    assert found == items


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_padded_form(side):
    tokenizer = byte_tokenizer()
    encoded = Encoder(tokenizer, 64)([example("Question: long one?\nAnswer:"), example("Q?\nA:")])
    batch = collate_padded(encoded, tokenizer.pad_token_id, side)
    for row, item in enumerate(encoded):
        mask = batch["attention_mask"][row].bool()
        assert batch["input_ids"][row][mask].tolist() == item.input_ids
        assert batch["prompt_mask"][row].sum() == item.prompt_length
        assert (
            batch["input_ids"][row][batch["prompt_mask"][row].bool()].tolist() == item.input_ids[: item.prompt_length]
        )
        assert batch["labels"][row][mask].tolist() == item.labels
        assert (batch["labels"][row][~mask] == IGNORED).all()
    model = tiny_looped(vocab_size=300)
    with torch.no_grad():
        depths = model(**batch, loops="adaptive").depths
        alone = [int(model(**collate_padded([item], 0), loops="adaptive").depths) for item in encoded]
    assert depths.tolist() == alone
