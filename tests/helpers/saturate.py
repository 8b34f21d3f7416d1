"""A scalar function of your own, as a user would write it."""

from __future__ import annotations

from timm_gcp.functional import ScalarFunction


class Saturate(ScalarFunction):
    """λ/(λ + c), of the covariance itself."""

    def __init__(self, c: float = 0.5) -> None:
        self.c = c

    def value(self, lam):
        return lam / (lam + self.c)

    def derivative(self, lam):
        return self.c / (lam + self.c).square()
