"""Heads trained on made-up sweeps whose right answer is known."""

import numpy as np
import pytest
import torch

from recurtrace.errors import RecurTraceError
from recurtrace.halting.distill import distill
from recurtrace.halting.methods import OBJECTIVES
from recurtrace.halting.objectives import DistillRecipe
from recurtrace.halting.policies import signal_values, stop_depths
from recurtrace.halting.sweep_files import Sweep, SweepManifest
from tests.conftest import sweep_items

N, T, D = 400, 8, 12


def made(split="heldout", scale=1.0) -> Sweep:
    """Half the examples are best at one loop, half at six; feature 3 of the state says how much is left to do."""
    rng = np.random.default_rng(0)
    best = np.where(np.arange(N) % 2, 6, 1)
    t = np.arange(1, T + 1)
    loss = (0.1 + 0.2 * np.abs(t - best[:, None])).astype(np.float32)
    states = rng.normal(size=(N, T, D)).astype(np.float32)
    states[..., 3] = np.where(t < best[:, None], 2.0, -2.0)
    states = scale * (states + 5)
    arrays = {"loss": loss, "correct": t >= best[:, None], "token_accuracy": (t >= best[:, None]).astype(np.float32)}
    arrays |= {"state_mean": states, "state_last": states[:, ::-1].copy()}
    return Sweep(SweepManifest(split, t.tolist()), sweep_items(N), arrays)


def settings(**fields) -> DistillRecipe:
    return DistillRecipe.check(fields, "test")


def test_rare_labels_give_low_probabilities():
    """With the paper's settings, on states that say nothing: the mean probability is the labels' share."""
    rng = np.random.default_rng(0)
    sweep = made()
    sweep.arrays["loss"][:] = 0.1
    sweep.arrays["loss"][rng.random(N) < 0.05, :5] = 0.9  # one in twenty should go on, up to depth 5
    sweep.arrays["state_mean"] = rng.normal(size=(N, T, D)).astype(np.float32)
    values = signal_values(sweep, "head", distill(sweep, settings(probe_depths=[1, 2, 4])).head)
    assert values.mean() == pytest.approx(0.05, abs=0.03)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_learns_what_the_state_says(objective):
    """With the paper's settings."""
    sweep = made()
    made_of = settings(objective=objective, regularization=0.001)
    found = distill(sweep, made_of)
    assert found.history[-1] < found.history[0]
    assert found.head.weight.abs().argmax() == 3
    assert found.head.settings.objective == objective
    assert found.head.settings.trained_on["recipe"] == made_of.model_dump(mode="json")
    assert found.head.settings.trained_on["sweep"]["examples"] == N
    values = signal_values(sweep, "head", found.head)
    depths = stop_depths(values, "head", 0.5)
    expected = np.where(np.arange(N) % 2, 6, 1)
    assert (depths == expected).mean() > 0.85


def test_the_papers_settings_are_the_defaults():
    recipe = DistillRecipe()
    assert (recipe.steps, recipe.learning_rate, recipe.max_grad_norm) == (200, 3e-4, 1.0)
    assert (recipe.probe_depths, recipe.margin, recipe.horizon) == ([1, 2, 4, 6], 0.01, 16)
    assert (recipe.regularization, recipe.prior) == (0.01, 0.2)


def test_scaling_is_folded_into_the_head():
    """A state in other units gives another weight and the same probabilities."""
    recipe = settings(steps=20)
    one, large = made(), made(scale=300.0)
    heads = [distill(sweep, recipe).head for sweep in (one, large)]
    found = [signal_values(s, "head", head) for s, head in zip((one, large), heads, strict=True)]
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)
    assert heads[0].weight.abs().max() > 100 * heads[1].weight.abs().max()


def test_plain_adamw_as_the_paper_has_it():
    """Two steps of it by hand, from zero, on the states as they are; 3e-4 hardly moves a head at unit variance."""
    sweep, recipe = made(), settings(standardize=False, steps=2, warmup=0.0, batch_size=N)
    found = distill(sweep, recipe).head
    head = torch.nn.Linear(D, 1)
    for parameter in head.parameters():
        torch.nn.init.zeros_(parameter)
    optimizer = torch.optim.AdamW(head.parameters(), lr=3e-4, weight_decay=0.01)
    states, columns = torch.from_numpy(sweep["state_mean"]), [depth - 1 for depth in recipe.probe_depths]
    labels = torch.from_numpy(
        np.array([sweep["loss"][:, t + 1 :].min(1) < sweep["loss"][:, t] - 0.01 for t in columns])
    )
    for _ in range(2):  # the cosine begins with the second
        loss = torch.nn.functional.binary_cross_entropy_with_logits(head(states)[:, columns, 0], labels.T.float())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
    torch.testing.assert_close(found.weight, head.weight.detach(), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(found.bias, head.bias.detach(), atol=1e-6, rtol=1e-4)
    assert signal_values(sweep, "head", distill(made(), settings(standardize=False)).head).std() < 0.2


def test_a_seed_gives_the_same_head_and_another_seed_another():
    first, again, other = (distill(made(), settings(steps=5, seed=seed)).head.weight for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_pooling_chooses_the_state():
    poolings = ("prompt_mean", "prompt_last")
    mean, last = (distill(made(), settings(steps=5, pooling=pooling)).head.weight for pooling in poolings)
    assert not torch.equal(mean, last)


def test_bad_input_gets_a_sentence():
    with pytest.raises(RecurTraceError, match="test items"):
        distill(made("test"), settings())
    with pytest.raises(RecurTraceError, match="probe depth 12 is beyond"):
        distill(made(), settings(probe_depths=[1, 12]))
    without = made()
    del without.arrays["state_mean"]
    with pytest.raises(RecurTraceError, match="no pooled states"):
        distill(without, settings())
    with pytest.raises(RecurTraceError, match="no field 'stepz'"):
        settings(stepz=3)
