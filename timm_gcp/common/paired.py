"""Two classifiers on the same images: how many each alone gets right, and McNemar's exact test of the difference.

Accuracies of two models on one test set are not independent, so their difference is judged by the images on which the
models disagree: if neither were better, either would be the right one equally often (McNemar, Psychometrika 12, 1947).
The test says nothing of other training seeds: it takes both models as they are.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pair:
    """Images that exactly one of two classifiers gets right.

    Attributes:
        only_first: Images that the first alone classifies correctly.
        only_second: Images that the second alone classifies correctly.
    """

    only_first: int
    only_second: int

    @property
    def p_value(self) -> float:
        """Two-sided p of the exact test: at least so uneven a split by fair coins, one for each discordant image."""
        images, smaller = self.only_first + self.only_second, min(self.only_first, self.only_second)
        ways, tail = 1, 0
        for k in range(smaller + 1):
            tail += ways
            ways = ways * (images - k) // (k + 1)
        return min(1.0, 2 * (tail / (1 << images)))
