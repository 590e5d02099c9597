"""What a sweep says of methods and depths, item by item from its arrays."""

import math
from fractions import Fraction
from functools import cache
from itertools import combinations_with_replacement, pairwise

import numpy as np

from tests.report.handmade import DEPTHS, ITEMS, WEIGHTS

EIGHTH = ITEMS // 8  # items of an evaluation seed


class Halting:
    """The arrays of one training seed, item by item."""

    def __init__(self, heldout, test):
        self.heldout, self.test = heldout, test
        self.right = test["correct"].tolist()

    def signal(self, sweep, name):
        if name in ("top_prob", "margin", "entropy", "kl"):
            return sweep[name].tolist()
        if name in ("state_l2", "state_angle"):
            moved = _length_of_change if name == "state_l2" else _half_turns
            paths = [[complex(*state[:2]) for state in path] for path in sweep["state_mean"].tolist()]
            return [[math.inf, *(moved(a, b) for a, b in pairwise(path))] for path in paths]
        weight, bias, _ = WEIGHTS[name]
        return [[1 / (1 + math.exp(-(weight * x + bias))) for x in row] for row in sweep["state_mean"][..., 0].tolist()]

    def stops(self, values, threshold, floor, above=False):
        depths = []
        for row in values:
            t = floor
            while t < DEPTHS and not (row[t - 1] >= threshold if above else row[t - 1] < threshold):
                t += 1
            depths.append(t)
        return depths

    @property
    def floor(self):
        means = self.heldout["loss"].mean(axis=0).tolist()
        return means.index(min(means)) + 1

    def threshold(self, name, floor, above=False, by="loss", rows=None):
        """The smallest mean depth of the candidates with the best held-out score, the first of equals."""
        sweep = self.heldout
        rows = range(ITEMS) if rows is None else rows
        values = [self.signal(sweep, name)[i] for i in rows]
        scored = []
        for candidate in self.candidates(name, values, floor):
            depths = self.stops(values, candidate, floor, above)
            at = [sweep[by][i, t - 1] for i, t in zip(rows, depths, strict=True)]
            score = float(np.mean(at)) * (-1 if by == "loss" else 1)
            scored.append((score, sum(depths), candidate))
        best = max(score for score, _, _ in scored)
        least = min(depth for score, depth, _ in scored if score >= best)
        return next(tau for score, depth, tau in scored if score >= best and depth == least)

    def candidates(self, name, values, floor):
        """Hundredths of a probability; else between 200 quantiles of what can end a loop, below and above them all."""
        if name not in ("entropy", "kl", "state_l2", "state_angle"):
            return [hundredth / 100 for hundredth in range(101)]
        seen = sorted(value for row in values for value in row[floor - 1 : DEPTHS - 1] if value < math.inf)
        levels = []
        for i in range(200):
            place, part = divmod(Fraction(i * (len(seen) - 1), 199), 1)
            after = seen[min(place + 1, len(seen) - 1)]
            levels.append(seen[place] + float(part) * (after - seen[place]))
        return [levels[0] - 1, *((a + b) / 2 for a, b in pairwise(levels)), levels[-1] + 1]

    def adaptive(self, name=None, floor=None, above=False):
        floor = floor or self.floor
        tau = self.threshold(name, floor, above)
        return tau, self.stops(self.signal(self.test, name), tau, floor, above)

    def correct(self, depths):
        return [self.right[i][t - 1] for i, t in enumerate(depths)]

    @property
    def best_fixed(self):
        counts = [sum(row[t] for row in self.right) for t in range(DEPTHS)]
        return counts.index(max(counts)) + 1

    def positive(self, i, t):
        loss = self.test["loss"][i]
        return any(loss[later] < loss[t - 1] - np.float32(0.01) for later in range(t, DEPTHS))


def _length_of_change(before, state):
    return abs(state - before) / abs(before)


def _half_turns(before, state):
    return abs(np.angle(state / before)) / math.pi


@cache
def draws():
    """Every way to draw eight of eight evaluation seeds with replacement: [6435, 8] how often each, and how likely."""
    ways = [np.bincount(way, minlength=8) for way in combinations_with_replacement(range(8), 8)]
    chances = [math.factorial(8) / math.prod(math.factorial(n) for n in way) / 8**8 for way in ways]
    return np.array(ways), np.array(chances)


def exact_bounds(differences, share):
    """Gains between which the quantile of a bootstrap over evaluation seeds lies, whatever 10,000 draws give."""
    ways, chances = draws()
    sums = np.add.reduceat(np.array(differences, dtype=float), range(0, ITEMS, EIGHTH))
    gains = ways @ sums / ITEMS
    order = np.argsort(gains)
    below = np.cumsum(chances[order])
    error = 4 * math.sqrt(share * (1 - share) / 10_000)
    return [gains[order][np.searchsorted(below, share + side * error)] for side in (-1, 1)]
