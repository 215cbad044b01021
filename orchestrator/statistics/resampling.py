"""How far a run's median could have fallen otherwise, judged by the samples of that run alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

STRETCHES = 8
SHORTEST_STRETCH = 2
FEWEST_STRETCHES = 3
_SEED = 20250102


@dataclass(frozen=True)
class Draws:
    """Deviations of the logarithm of a run's median, around 0. They come from few stretches, and the spread of few
    is not well known: as of a variance with `df` degrees of freedom."""

    deviations: NDArray[np.float64]
    df: int


def median_draws(samples: Sequence[float], draws: int, stream: int = 0) -> Draws | None:
    """Deviations of the logarithm of the median, `draws` of them; None for fewer than 6 positive samples.

    A block bootstrap (Künsch 1989): samples that follow one another are alike, for a round has its clock and its
    neighbours, so `samples`, in the order they were taken, are cut into up to 8 stretches, and whole stretches are drawn
    with replacement. Drawing single samples would take one slow second for thousands of independent witnesses.

    The random numbers are the same in every call with the same `stream`: equal samples give equal draws, and two sides
    of a comparison must take different streams.
    """
    times = np.asarray([s for s in samples if s > 0], dtype=np.float64)
    count = min(STRETCHES, len(times) // SHORTEST_STRETCH)
    if count < FEWEST_STRETCHES:
        return None
    length = len(times) // count
    stretches = np.median(np.log(times[: count * length]).reshape(count, length), axis=1)
    # The mean of the middle half: one stretch that a neighbour spoilt moves it as little as it moves the median.
    drawn = np.sort(stretches[_chosen(count, draws, stream)], axis=1)
    medians = drawn[:, count // 4 : count - count // 4].mean(axis=1)
    # A few stretches drawn from themselves vary too little, by (count - 1) / count in variance.
    widened = (medians - medians.mean()) * np.sqrt(count / (count - 1))
    return Draws(np.asarray(widened, dtype=np.float64), count - 1)


@lru_cache(maxsize=32)
def _chosen(count: int, draws: int, stream: int) -> NDArray[np.int64]:
    """Which stretches are drawn: (draws, count)."""
    return np.random.default_rng([_SEED, count, stream]).integers(count, size=(draws, count))
