"""The pooling layer: 1×1 reduction, covariance, normalisation, upper triangle."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from timm_gcp.common.messages import check_choice
from timm_gcp.functional import Normalization, check_iteration_dtype, check_normalization, global_cov_pool
from timm_gcp.models.initial_values import INIT_RULES, init_conv
from timm_gcp.ops.normalization import Held, describe_normalization, try_normalization
from timm_gcp.ops.precision import widen
from timm_gcp.ops.products import compose
from timm_gcp.ops.triangle import triangle_size

# torch.fx takes the pooling as one node: its code looks at shapes and types, which a proxy does not have.
torch.fx.wrap("global_cov_pool")


def reduction_widths(reduce_dim: int | Sequence[int] | None) -> tuple[int, ...]:
    """`reduce_dim` as a tuple of output widths, one per 1×1 step; empty for None.

    Raises:
        ValueError: A width that is not a whole number of at least 1.
    """
    if reduce_dim is None:
        return ()
    widths = tuple(reduce_dim) if isinstance(reduce_dim, Sequence) else (reduce_dim,)
    if not widths or any(isinstance(w, bool) or not isinstance(w, int) or w < 1 for w in widths):
        raise ValueError(
            f"reduce_dim is {reduce_dim!r}; give a width of at least 1 (256), several for steps ((256, 128)), or None"
        )
    return widths


class GlobalCovPool2d(nn.Module):
    """Global covariance pooling, `(B, C, H, W)` -> `(B, D(D+1)/2)`.

    Each reduction step is a 1×1 convolution without bias, batch normalisation and an activation, named
    `reduction.{i}.conv`, `reduction.{i}.bn`, `reduction.{i}.act`. One step to 256 is the paper's (Section 3.2); the
    two steps C → 256 → 128 reproduce the parameter counts of Appendix V.

    Args:
        in_chans: Channels C of the feature map.
        reduce_dim: D, or the widths of several steps (D is the last), or None for no reduction (D = C).
        normalization: See `timm_gcp.functional.global_cov_pool`. Your own is tried out here; a module is moved to
            `device` and `dtype`, and trained and saved with the layer.
        n_iter: Newton–Schulz steps; the paper's networks are trained with 5.
        act_layer: Activation after each step; takes `inplace`. ReLU in the paper's ResNets, ReLU6 in its
            MobileNetV2 and ShuffleNetV2.
        exponent: Exponent of `'power'`.
        eps: Regulariser of `'log'`.
        iteration_dtype: See `timm_gcp.functional.global_cov_pool`.
        init: How the reduction starts: `'fan_out'`, `'fan_out_normal'` or `'torch'`, see
            `timm_gcp.models.initial_values`.
        device: Where to create the parameters.
        dtype: Their type.

    Attributes:
        out_features: D(D+1)/2.
        dim: D.

    Raises:
        ValueError: An unknown choice, a number out of range, or a normalisation of your own that does not work.
        TypeError: One that returns no floating-point tensor.
    """

    pool_type = "gcp"

    def __init__(
        self,
        in_chans: int,
        reduce_dim: int | Sequence[int] | None = 256,
        normalization: Normalization = "newton_schulz",
        n_iter: int = 5,
        act_layer: Callable[..., nn.Module] = nn.ReLU,
        *,
        exponent: float = 0.5,
        eps: float = 1e-3,
        iteration_dtype: str | None = None,
        init: str = "fan_out",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("init", init, INIT_RULES)
        check_normalization(normalization, n_iter, exponent, eps)
        check_iteration_dtype(iteration_dtype, normalization)
        widths = reduction_widths(reduce_dim)
        factory = {"device": device, "dtype": dtype}
        steps = []
        chans = in_chans
        for width in widths:
            conv = nn.Conv2d(chans, width, 1, bias=False, **factory)
            init_conv(conv, init)
            parts = OrderedDict(conv=conv, bn=nn.BatchNorm2d(width, **factory), act=act_layer(inplace=True))
            steps.append(nn.Sequential(parts))
            chans = width
        self.in_chans = in_chans
        self.reduction = nn.Sequential(*steps)
        if isinstance(normalization, nn.Module):
            normalization.to(device=device, dtype=dtype)
        try_normalization(normalization, chans, torch.float64 if dtype == torch.float64 else torch.float32)
        self.normalization = normalization
        self.held = None if isinstance(normalization, (str, nn.Module)) else Held(normalization)
        self.n_iter = n_iter
        self.exponent = float(exponent)
        self.eps = float(eps)
        self.iteration_dtype = iteration_dtype
        self.dim = chans
        self.out_features = triangle_size(chans)

    def forward(self, x: Tensor) -> Tensor:
        """Pool `(B, C, H, W)` to `(B, D(D+1)/2)`."""
        x = self.reduction(x)
        if torch.jit.is_scripting():
            return self._forward_scripted(x)
        else:
            return global_cov_pool(
                x,
                self.normalization if self.held is None else self.held,
                self.n_iter,
                exponent=self.exponent,
                eps=self.eps,
                iteration_dtype=self.iteration_dtype,
            )

    def _forward_scripted(self, x: Tensor) -> Tensor:
        """TorchScript has no custom gradients; it runs Newton–Schulz as plain products."""
        wide = widen(x.flatten(2))
        return compose(wide, self.n_iter, wide.shape[2] < wide.shape[1]).to(x.dtype)

    def __prepare_scriptable__(self) -> GlobalCovPool2d:
        """What torch.jit.script asks each module before it compiles it.

        Raises:
            RuntimeError: A normalisation other than Newton–Schulz.
        """
        if self.normalization != "newton_schulz":
            raise RuntimeError(
                "torch.jit.script supports normalization 'newton_schulz' only, not "
                f"{describe_normalization(self.normalization)}; use torch.compile or torch.export"
            )
        return self

    def feat_mult(self) -> float:
        """Output width over input channels (as timm's pooling layers tell it)."""
        return self.out_features / self.in_chans

    def is_identity(self) -> bool:
        """Whether the feature map passes unpooled (timm's pooling layers tell it): never."""
        return False

    def extra_repr(self) -> str:
        """Settings for `print(model)`."""
        normalization = describe_normalization(self.normalization)
        return f"normalization={normalization}, n_iter={self.n_iter}, out_features={self.out_features}"
