"""The normalisations as scalar functions of the covariance's eigenvalues, and the base class for your own.

Each function f has f(0) = 0 and is used through its quotient h(λ) = f(λ)/λ, because f(X Xᵀ) = X h(Xᵀ X) Xᵀ works on
either side, and through the divided differences of h, which give the gradient (Daleckii–Krein).

At eigenvalues that vanish to rounding (λ ≤ n·ε·λmax) the exact root, the power below one and their derivatives are
unbounded; they are taken as zero there, so that null directions get neither value nor gradient from themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from timm_gcp.ops.newton_schulz import scalar_inverse_root, scalar_inverse_root_divided, scalar_root_divided

# Gauss–Legendre on [0, 1], exact for polynomials of degree five: the mean of f′ between eigenvalues closer than
# CLOSE · the larger is f[λᵢ, λⱼ] to rounding; for those further apart the quotient loses 1/CLOSE roundings.
_NODES = ((0.5 - 0.15**0.5, 5 / 18), (0.5, 8 / 18), (0.5 + 0.15**0.5, 5 / 18))
CLOSE = 1 / 32


class ScalarFunction(ABC):
    """A normalisation of your own: Σ = U diag(λ) Uᵀ becomes U diag(f(λ)) Uᵀ, with f(0) = 0.

    Computed on the smaller side of the features, D×D or N×N, by one eigendecomposition. Its gradient is that of the
    divided differences f[λᵢ, λⱼ] = (f(λᵢ) − f(λⱼ)) / (λᵢ − λⱼ) with f[λ, λ] = f′(λ) (Daleckii–Krein), so equal
    eigenvalues need no special case. There is no second derivative and no ONNX form.

    A subclass gives `value` and `derivative`; the divided differences follow from them. One that knows a closed form
    overrides `quotient`, `divided` and `quotient_divided`. Every method takes eigenvalues `lam` `(B, n)`, float32 or
    float64, not negative, in any order, and must be a pure function of them in torch operations.

    Attributes:
        degree: p. Where it is a number, f is taken of Σ/tr Σ, whose eigenvalues add up to one, and the result is
            multiplied by (tr Σ)ᵖ; for a homogeneous f of that degree, f(sλ) = sᵖ f(λ), this is f(Σ) itself, safe from
            overflow. None takes f of Σ as it is.
    """

    degree: float | None = None

    @abstractmethod
    def value(self, lam: Tensor) -> Tensor:
        """f(λ), `(B, n)` or any shape, element by element. Asked for at eigenvalues that do not vanish only."""

    def derivative(self, lam: Tensor) -> Tensor:
        """f′(λ), any shape, element by element.

        Raises:
            NotImplementedError: The subclass gives neither this nor `divided`.
        """
        raise NotImplementedError(f"{type(self).__name__} gives no derivative; define derivative(lam), or divided(lam)")

    def quotient(self, lam: Tensor) -> Tensor:
        """h(λ) = f(λ)/λ, zero where λ vanishes."""
        live, safe = _live_and_safe(lam)
        return torch.where(live, self.value(safe) / safe, torch.zeros_like(lam))

    def divided(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """f(λ) `(B, n)` and f[λᵢ, λⱼ] `(B, n, n)`; zero between two eigenvalues that vanish."""
        live, safe = _live_and_safe(lam)
        f = torch.where(live, self.value(safe), torch.zeros_like(lam))
        lam = torch.where(live, lam, torch.zeros_like(lam))
        gap = lam.unsqueeze(-1) - lam.unsqueeze(-2)
        close = gap.abs() <= CLOSE * torch.maximum(lam.unsqueeze(-1), lam.unsqueeze(-2))
        a, b = _sorted_pairs(safe)
        quotient = (f.unsqueeze(-1) - f.unsqueeze(-2)) / torch.where(close, torch.ones_like(gap), gap)
        mean = sum(weight * self.derivative(b + node * (a - b)) for node, weight in _NODES)
        either = live.unsqueeze(-1) | live.unsqueeze(-2)
        return f, torch.where(either, torch.where(close, mean, quotient), torch.zeros_like(gap))

    def quotient_divided(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """h(λ) `(B, n)` and h[λᵢ, λⱼ] `(B, n, n)`, by f[a, b] = a·h[a, b] + h(b); zero where either vanishes."""
        h = self.quotient(lam)
        _, f_div = self.divided(lam)
        a, _ = _sorted_pairs(_live_and_safe(lam)[1])
        first = lam.unsqueeze(-1) >= lam.unsqueeze(-2)
        h_smaller = torch.where(first, h.unsqueeze(-2), h.unsqueeze(-1))
        return h, _mask_pairs(lam, (f_div - h_smaller) / a)

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({settings})"


def _product_rule(lam: Tensor, h: Tensor, h_div: Tensor) -> Tensor:
    """f[λᵢ, λⱼ] = λᵢ·h[λᵢ, λⱼ] + h(λⱼ) for f = λ·h."""
    return lam.unsqueeze(-1) * h_div + h.unsqueeze(-2)


def _is_live(lam: Tensor) -> Tensor:
    eps = torch.finfo(lam.dtype).eps
    return lam > lam.shape[-1] * eps * lam.amax(-1, keepdim=True)


def _live_and_safe(lam: Tensor) -> tuple[Tensor, Tensor]:
    """Which eigenvalues don't vanish, and the eigenvalues with the largest (or one) in place of those that do."""
    live = _is_live(lam)
    largest = lam.amax(-1, keepdim=True)
    return live, torch.where(live, lam, torch.where(largest > 0, largest, torch.ones_like(largest)))


def _mask_pairs(lam: Tensor, values: Tensor) -> Tensor:
    live = _is_live(lam)
    return torch.where(live.unsqueeze(-1) & live.unsqueeze(-2), values, torch.zeros_like(values))


def _sorted_pairs(lam: Tensor) -> tuple[Tensor, Tensor]:
    a, b = lam.unsqueeze(-1), lam.unsqueeze(-2)
    return torch.maximum(a, b), torch.minimum(a, b)


@dataclass(frozen=True)
class NewtonSchulz(ScalarFunction):
    """λ·z(λ) after `n_iter` steps on the trace-normalised covariance."""

    n_iter: int
    degree: float | None = 0.5

    def value(self, lam: Tensor) -> Tensor:
        """f(λ) = λ·z(λ)."""
        return lam * scalar_inverse_root(lam, self.n_iter)

    def quotient(self, lam: Tensor) -> Tensor:
        """h(λ) = z(λ)."""
        return scalar_inverse_root(lam, self.n_iter)

    def quotient_divided(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """h(λ) and h[λᵢ, λⱼ]."""
        return scalar_inverse_root_divided(lam, self.n_iter)

    def divided(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """f(λ) and f[λᵢ, λⱼ]."""
        return scalar_root_divided(lam, self.n_iter)


@dataclass(frozen=True)
class Power(ScalarFunction):
    """λᵖ; p = 1/2 is the exact matrix square root of Eq. (2)."""

    exponent: float = 0.5

    @property
    def degree(self) -> float | None:  # type: ignore[override]
        """f(sλ) = s**exponent · f(λ)."""
        return self.exponent

    def value(self, lam: Tensor) -> Tensor:
        """f(λ) = λᵖ."""
        return lam.pow(self.exponent)

    def quotient(self, lam: Tensor) -> Tensor:
        """h(λ) = λᵖ⁻¹, zero where λ vanishes."""
        live = _is_live(lam)
        safe = torch.where(live, lam, torch.ones_like(lam))
        return torch.where(live, safe.pow(self.exponent - 1), torch.zeros_like(lam))

    def quotient_divided(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """h(λ), and h[a, b] = aᵖ⁻²·expm1((p−1)L)/expm1(L) with L = log(b/a), a ≥ b: accurate for close eigenvalues."""
        safe = torch.where(_is_live(lam), lam, torch.ones_like(lam))
        a, b = _sorted_pairs(safe)
        log_ratio = torch.log1p((b - a) / a)
        q = self.exponent - 1
        ratio = torch.where(log_ratio == 0, torch.full_like(a, q), torch.expm1(q * log_ratio) / torch.expm1(log_ratio))
        return self.quotient(lam), _mask_pairs(lam, a.pow(q - 1) * ratio)

    def divided(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """f(λ) and f[λᵢ, λⱼ]; with one eigenvalue zero that is f(λ)/λ of the other, with both it is taken as zero."""
        live = _is_live(lam)
        both = live.unsqueeze(-1) & live.unsqueeze(-2)
        h, h_div = self.quotient_divided(lam)
        return h * lam, torch.where(both, _product_rule(lam, h, h_div), h.unsqueeze(-1) + h.unsqueeze(-2))


@dataclass(frozen=True)
class Log1p(ScalarFunction):
    """log(1 + λ/eps): the matrix logarithm log(Σ + eps·I) less its constant log(eps)·I."""

    eps: float
    degree: float | None = None

    def value(self, lam: Tensor) -> Tensor:
        """f(λ) = log(1 + λ/eps)."""
        return torch.log1p(lam / self.eps)

    def quotient(self, lam: Tensor) -> Tensor:
        """h(λ) = log(1 + λ/eps)/λ, 1/eps at zero."""
        tiny = torch.finfo(lam.dtype).tiny
        safe = lam.clamp_min(tiny)
        return torch.where(lam > tiny, torch.log1p(safe / self.eps) / safe, torch.full_like(lam, 1 / self.eps))

    def quotient_divided(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """h(λ), and h[a, b] = (f[a, b] − h(b))/a with a ≥ b."""
        tiny = torch.finfo(lam.dtype).tiny
        a, b = _sorted_pairs(lam.clamp_min(tiny))
        step = (a - b) / (self.eps + b)
        unit = torch.where(step == 0, torch.ones_like(step), torch.log1p(step) / torch.where(step == 0, 1.0, step))
        divided = (unit / (self.eps + b) - self.quotient(b)) / a
        return self.quotient(lam), torch.where(a > tiny, divided, torch.full_like(a, -0.5 / self.eps**2))

    def divided(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """f(λ) and f[λᵢ, λⱼ]."""
        h, h_div = self.quotient_divided(lam)
        return h * lam, _product_rule(lam, h, h_div)
