"""The normalisations as scalar functions of the covariance's eigenvalues.

Each function f has f(0) = 0 and is used through its quotient h(λ) = f(λ)/λ, because f(X Xᵀ) = X h(Xᵀ X) Xᵀ works on
either side, and through the divided differences of h, which give the gradient (Daleckii–Krein). `degree` is the p with
f(sλ) = sᵖ f(λ), or None where f has no such p.

At eigenvalues that vanish to rounding (λ ≤ n·ε·λmax) the exact root, the power below one and their derivatives are
unbounded; they are taken as zero there, so that null directions get neither value nor gradient from themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from timm_gcp.ops.newton_schulz import scalar_inverse_root, scalar_inverse_root_divided, scalar_root_divided


def _product_rule(lam: Tensor, h: Tensor, h_div: Tensor) -> Tensor:
    """f[λᵢ, λⱼ] = λᵢ·h[λᵢ, λⱼ] + h(λⱼ) for f = λ·h."""
    return lam.unsqueeze(-1) * h_div + h.unsqueeze(-2)


def _is_live(lam: Tensor) -> Tensor:
    eps = torch.finfo(lam.dtype).eps
    return lam > lam.shape[-1] * eps * lam.amax(-1, keepdim=True)


def _mask_pairs(lam: Tensor, values: Tensor) -> Tensor:
    live = _is_live(lam)
    return torch.where(live.unsqueeze(-1) & live.unsqueeze(-2), values, torch.zeros_like(values))


def _sorted_pairs(lam: Tensor) -> tuple[Tensor, Tensor]:
    a, b = lam.unsqueeze(-1), lam.unsqueeze(-2)
    return torch.maximum(a, b), torch.minimum(a, b)


@dataclass(frozen=True)
class NewtonSchulz:
    """λ·z(λ) after `n_iter` steps on the trace-normalised covariance."""

    n_iter: int
    degree: float | None = 0.5

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
class Power:
    """λᵖ; p = 1/2 is the exact matrix square root of Eq. (2)."""

    exponent: float = 0.5

    @property
    def degree(self) -> float | None:
        """f(sλ) = s**exponent · f(λ)."""
        return self.exponent

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
class Log1p:
    """log(1 + λ/eps): the matrix logarithm log(Σ + eps·I) less its constant log(eps)·I."""

    eps: float
    degree: float | None = None

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


ScalarFunction = NewtonSchulz | Power | Log1p
