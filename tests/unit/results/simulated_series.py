"""Timings of launches as they might be, with everything that disturbs them stated. Seeded."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.results.statistics import Contrast, LaunchRepeats, compare

STEP = 0.0165
ORDER = "ABBA"


@dataclass(frozen=True)
class Series:
    """How two sides come about; shares of the value, standard deviations where they are of something random.

    Attributes:
        launches, repeats: a side, a launch.
        spread: between launches.
        slowdown: of the second side.
        noise: of one repeat.
        warming: how much slower a launch gets from its first repeat to its last; by launch between half and one and a half times that.
        wander: what a repeat adds to all later ones of its launch.
        session: how much slower the machine gets from the first launch to the last. A B B A keeps it out of the difference.
        outliers: how many repeats take 5 % to 50 % longer.
    """

    launches: int
    repeats: int
    spread: float
    slowdown: float = 0.0
    noise: float = 0.003
    warming: float = 0.01
    wander: float = 0.001
    session: float = 0.005
    outliers: float = 0.05

    def draw(self, rng: random.Random) -> tuple[list[LaunchRepeats], list[LaunchRepeats]]:
        """Both sides, launched in the order A B B A; of one launch each, as if at once."""
        sides: dict[str, list[LaunchRepeats]] = {"A": [], "B": []}
        total = 2 * self.launches
        for position in range(total):
            side = ORDER[position % len(ORDER)]
            effect = rng.gauss(0, self.spread) + (self.session * position / (total - 1) if self.launches > 1 else 0.0)
            effect += math.log1p(self.slowdown) if side == "B" else 0.0
            sides[side].append(LaunchRepeats(tuple(self._values(rng, effect)), float(position)))
        return sides["A"], sides["B"]

    def _values(self, rng: random.Random, effect: float) -> Iterator[float]:
        warming = self.warming * rng.uniform(0.5, 1.5)
        wandered = 0.0
        for repeat in range(self.repeats):
            wandered += rng.gauss(0, self.wander)
            drift = warming * repeat / max(1, self.repeats - 1) + wandered
            outlier = 1 + rng.uniform(0.05, 0.5) if rng.random() < self.outliers else 1.0
            yield STEP * math.exp(effect + drift + rng.gauss(0, self.noise)) * outlier


def comparisons(series: Series, count: int, seed: int, replicates: int = 400) -> list[Contrast]:
    """What is found in `count` draws; fewer replicates than an operator's comparison has, for time."""
    rng = random.Random(seed)
    return [compare(*series.draw(rng), seed=number, replicates=replicates) for number in range(count)]
