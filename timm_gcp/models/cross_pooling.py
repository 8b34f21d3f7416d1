"""Layers that pool a cross-covariance: of two feature maps, and of the heads of a token sequence (SoT)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from timm_gcp.common.messages import check_choice
from timm_gcp.models.initial_values import INIT_RULES
from timm_gcp.models.pooling import reduction, reduction_widths
from timm_gcp.ops.cross_covariance import check_cross, cross_cov_pool
from timm_gcp.ops.width import MAX_DIM, check_width

# torch.fx takes the pooling as one node: its code looks at shapes and types, which a proxy does not have.
torch.fx.wrap("cross_cov_pool")


class CrossCovPool2d(nn.Module):
    """Global cross-covariance pooling of two maps, `(B, C1, H, W)`, `(B, C2, H, W)` -> `(B, D1·D2)`.

    Each map has 1×1 reductions of its own, as `GlobalCovPool2d` has; given one map alone, it is taken for both.

    Args:
        in_chans: C1 and C2.
        reduce_dim: D1 = D2, or the widths of several steps, for each map; None for none.
        normalization: See `timm_gcp.functional.cross_cov_pool`, as are `exponent`, `singular_values`, `n_iter`.
        exponent: α.
        singular_values: How many `'power_iteration'` finds one by one.
        n_iter: Its rounds for each.
        act_layer: Activation after each step; takes `inplace`.
        init: How the reductions start, see `timm_gcp.models.initial_values`.
        max_dim: The largest D1 or D2 taken without asking; None for no limit.
        device: Where to create the parameters.
        dtype: Their type.

    Attributes:
        out_features: D1·D2.
        start: Learned first vector `(D2,)` of `'power_iteration'`; None for the others.

    Raises:
        ValueError: An unknown choice, a number out of range, or a matrix wider than `max_dim`.
    """

    def __init__(
        self,
        in_chans: tuple[int, int],
        reduce_dim: int | Sequence[int] | None = 128,
        normalization: str = "svd",
        *,
        exponent: float = 0.5,
        singular_values: int = 1,
        n_iter: int = 1,
        act_layer: Callable[..., nn.Module] = nn.ReLU,
        init: str = "fan_out",
        max_dim: int | None = MAX_DIM,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("init", init, INIT_RULES)
        self.settings = _settings(normalization, exponent, singular_values, n_iter)
        widths = reduction_widths(reduce_dim)
        dims = [widths[-1] if widths else chans for chans in in_chans]
        self.out_features = dims[0] * dims[1]
        check_width(max(dims), self.out_features, max_dim, f"give reduce_dim=128, or raise max_dim to {max(dims)}")
        factory = {"device": device, "dtype": dtype}
        self.reduction_x, self.reduction_y = (reduction(c, widths, act_layer, init, factory) for c in in_chans)
        self.start = _start(normalization, dims[1], factory)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Pool two maps on the same positions to `(B, D1·D2)`."""
        left, right = self.reduction_x(x), self.reduction_y(x if y is None else y)
        return cross_cov_pool(left, right, start=self.start, **self.settings)

    def extra_repr(self) -> str:
        """Settings for `print(model)`."""
        return f"{_printed(self.settings)}, out_features={self.out_features}"


class MultiheadCrossCovPool(nn.Module):
    """SoT's multi-headed global cross-covariance pooling of tokens, `(B, N, C)` -> `(B, heads·head_dim²)`.

    For each head h two projections of the tokens, X = T Wₕ and Y = T W′ₕ, `(N, head_dim)` each, give the normalised
    cross-covariance svPN(XᵀY / N); the heads' matrices are concatenated. Both projections are one linear layer `proj`,
    all X first. The tokens are the caller's choice: SoT leaves the class token out and adds its logits.

    The defaults are SoT-Small's, whose svPN divides each matrix by the root of its first singular value, found by one
    round of power iteration from a learned vector. Channels are centred over the tokens one by one; the authors' code
    subtracts one mean over tokens and channels. Works on matrices of head_dim × head_dim, or N × N where N is smaller
    and the normalisation is `'svd'`.

    Source: Xie et al., "SoT: Delving Deeper into Classification Head for Transformer", arXiv:2104.10935.

    Args:
        in_chans: Width C of the tokens.
        num_heads: Heads.
        head_dim: Width of each projection.
        normalization: See `timm_gcp.functional.cross_cov_pool`, as are `exponent`, `singular_values`, `n_iter`.
        exponent: α.
        singular_values: How many `'power_iteration'` finds one by one.
        n_iter: Its rounds for each.
        bias: Whether the projections have a bias, which centring removes again except in half precision.
        drop_rate: Dropout of the result; SoT-Small is trained with 0.5.
        max_dim: The largest `head_dim` taken without asking; None for no limit.
        device: Where to create the parameters.
        dtype: Their type.

    Attributes:
        out_features: heads·head_dim².
        start: Learned first vector `(head_dim,)` of `'power_iteration'`, shared by the heads; None for the others.

    Raises:
        ValueError: An unknown choice, a number out of range, or a matrix wider than `max_dim`.
    """

    def __init__(
        self,
        in_chans: int,
        num_heads: int = 6,
        head_dim: int = 24,
        normalization: str = "power_iteration",
        *,
        exponent: float = 0.5,
        singular_values: int = 1,
        n_iter: int = 1,
        bias: bool = False,
        drop_rate: float = 0.0,
        max_dim: int | None = MAX_DIM,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.settings = _settings(normalization, exponent, singular_values, n_iter)
        for name, value in (("in_chans", in_chans), ("num_heads", num_heads), ("head_dim", head_dim)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}; give a whole number of at least 1")
        if isinstance(drop_rate, bool) or not isinstance(drop_rate, int | float) or not 0 <= drop_rate < 1:
            raise ValueError(f"drop_rate is {drop_rate!r}; give a number of at least 0 and below 1")
        self.num_heads, self.head_dim = num_heads, head_dim
        self.out_features = num_heads * head_dim**2
        check_width(head_dim, self.out_features, max_dim, f"give head_dim=24, or raise max_dim to {head_dim}")
        factory = {"device": device, "dtype": dtype}
        self.proj = nn.Linear(in_chans, 2 * num_heads * head_dim, bias=bias, **factory)
        self.start = _start(normalization, head_dim, factory)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, tokens: Tensor) -> Tensor:
        """Pool `(B, N, C)` to `(B, heads·head_dim²)`.

        Raises:
            ValueError: Another rank.
        """
        if not isinstance(tokens, torch.fx.Proxy) and tokens.ndim != 3:
            raise ValueError(f"expected tokens of shape (B, N, C), got shape {tuple(tokens.shape)}")
        count = tokens.shape[1]
        both = self.proj(tokens).unflatten(2, (2, self.num_heads, self.head_dim)).permute(2, 0, 3, 4, 1)
        x, y = both[0].reshape(-1, self.head_dim, count), both[1].reshape(-1, self.head_dim, count)
        pooled = cross_cov_pool(x, y, start=self.start, **self.settings)
        return self.drop(pooled.reshape(-1, self.out_features))  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Settings for `print(model)`."""
        heads = f"num_heads={self.num_heads}, head_dim={self.head_dim}"
        return f"{heads}, {_printed(self.settings)}, out_features={self.out_features}"


def _settings(normalization: str, exponent: float, singular_values: int, n_iter: int) -> dict[str, Any]:
    """What `cross_cov_pool` is called with, checked."""
    check_cross(normalization, exponent, singular_values, n_iter)
    return {
        "normalization": normalization,
        "exponent": float(exponent),
        "singular_values": singular_values,
        "n_iter": n_iter,
    }


def _start(normalization: str, width: int, factory: dict[str, Any]) -> nn.Parameter | None:
    """The learned first vector of the power iteration, from N(0, 1) as SoT's."""
    if normalization != "power_iteration":
        return None
    return nn.Parameter(torch.empty(width, **factory).normal_())


def _printed(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())
