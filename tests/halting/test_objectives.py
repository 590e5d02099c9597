"""Each objective against a case worked out by hand, and its gradient against differences."""

import math

import pytest
import torch

from recurtrace.halting.objectives import act, confidence, halting_distribution, pondernet, supervised

LOGITS = torch.tensor([[0.0, math.log(3), -1.0], [math.log(2), 0.0, 2.0]], dtype=torch.float64)
# continue: 1/2, 3/4 · 2/3, 1/2; so stop at 1, 2, 3: 1/2, 1/8, 3/8 · 1/3, 1/3, 1/3
STOPS = torch.tensor([[1 / 2, 1 / 8, 3 / 8], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
TARGET = torch.tensor([3, 1])
DISTANCE = (2 * 1 / 2 + 1 * 1 / 8 + (0 + 1 + 2) / 3) / 2


def test_halting_distribution():
    torch.testing.assert_close(halting_distribution(LOGITS).exp(), STOPS)
    torch.testing.assert_close(halting_distribution(torch.randn(5, 16)).exp().sum(1), torch.ones(5))


def test_supervised():
    labels = torch.tensor([[1, 0, 1], [0, 0, 1]])
    expected = -(math.log(1 / 2) + math.log(1 / 3)) / 2  # depth 1 alone: σ(0), and 1 - σ(log 2)
    assert supervised(LOGITS, labels, [1]).item() == pytest.approx(expected)
    both = -(math.log(1 / 2) + math.log(1 / 3) + math.log(1 / 4) + math.log(1 / 2)) / 4
    assert supervised(LOGITS, labels, [1, 2]).item() == pytest.approx(both)


def test_supervised_weighs_rare_labels():
    labels = torch.tensor([[1], [0], [0], [0]])
    logits = torch.zeros(4, 1)
    assert supervised(logits, labels, [1], positive_weight=True).item() == pytest.approx(6 / 4 * math.log(2))
    none = torch.zeros(4, 1)
    assert supervised(logits, none, [1], positive_weight=True).isfinite()


def test_confidence():
    accuracy = torch.tensor([[0.0, 0.5, 1.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    p = LOGITS.sigmoid()
    fit = -((1 - accuracy) * p.log() + accuracy * (1 - p).log()).mean()
    rises = (3 / 4 - 1 / 2) + (p[1, 2] - 1 / 2)  # first row from 1 to 2, second from 2 to 3
    expected = fit + 0.5 * rises / 4
    assert confidence(LOGITS, accuracy, monotonicity=0.5).item() == pytest.approx(expected.item())


def test_act():
    expected_depth = ((1 / 2 + 2 / 8 + 9 / 8) + 2) / 2
    assert act(LOGITS, TARGET, ponder_cost=0.3).item() == pytest.approx(DISTANCE + 0.3 * expected_depth)


def test_pondernet():
    prior = torch.tensor([0.2, 0.16, 0.128], dtype=torch.float64)
    prior = prior / prior.sum()
    divergence = (STOPS * (STOPS / prior).log()).sum(1).mean().item()
    found = pondernet(LOGITS, TARGET, weight=0.5, prior=0.2).item()
    assert found == pytest.approx(DISTANCE + 0.5 * divergence)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: supervised(x, torch.tensor([[1, 0, 1], [0, 1, 1]]), [1, 3], positive_weight=True),
        lambda x: confidence(x, torch.tensor([[0.0, 0.5, 1.0], [1.0, 0.0, 1.0]], dtype=torch.float64), 0.7),
        lambda x: act(x, TARGET, 0.1),
        lambda x: pondernet(x, TARGET, 0.1),
    ],
    ids=["supervised", "confidence", "act", "pondernet"],
)
def test_gradients_are_those_of_differences(loss):
    logits = (LOGITS + torch.tensor([[0.1, 0.2, 0.3], [-0.1, 0.4, 0.2]])).requires_grad_()
    assert torch.autograd.gradcheck(loss, logits)


def test_extreme_logits_stay_finite():
    for value in (-80.0, 80.0):
        logits = torch.full((2, 16), value, requires_grad=True)
        for loss in (act(logits, TARGET), pondernet(logits, TARGET)):
            loss.backward()
            assert loss.isfinite()
        assert logits.grad.isfinite().all()
