"""The pooling layer: 1×1 reduction, covariance, normalisation, upper triangle."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from timm_gcp.common.messages import check_choice
from timm_gcp.functional import Normalization, check_iteration_dtype, check_normalization, global_cov_pool
from timm_gcp.models.initial_values import INIT_RULES, init_conv
from timm_gcp.ops.normalization import Held, describe_normalization, resolve_normalization, try_normalization
from timm_gcp.ops.pool_options import check_names, option_names, pool_options
from timm_gcp.ops.precision import widen
from timm_gcp.ops.products import compose
from timm_gcp.ops.triangle import triangle_size
from timm_gcp.ops.width import MAX_DIM, check_width

# torch.fx takes the pooling as one node: its code looks at shapes and types, which a proxy does not have.
torch.fx.wrap("global_cov_pool")


_OF_THE_CALL = ("training", "generator", "channel_filter")  # options of a pooling that the layer itself gives


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


def reduction(
    in_chans: int,
    widths: Sequence[int],
    act_layer: Callable[..., nn.Module],
    init: str,
    factory: Mapping[str, Any],
) -> nn.Sequential:
    """Steps of 1×1 convolution without bias (`conv`), batch normalisation (`bn`) and activation (`act`)."""
    steps = []
    for width in widths:
        conv = nn.Conv2d(in_chans, width, 1, bias=False, **factory)
        init_conv(conv, init)
        parts = OrderedDict(conv=conv, bn=nn.BatchNorm2d(width, **factory), act=act_layer(inplace=True))
        steps.append(nn.Sequential(parts))
        in_chans = width
    return nn.Sequential(*steps)


class GlobalCovPool2d(nn.Module):
    """Global covariance pooling, `(B, C, H, W)` -> `(B, D(D+1)/2)`, or `(B, C + D(D+1)/2)` with the average beside it.

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
        pool_kwargs: More options by name. For `'dropcov'`: `beta`, `kernel_size` (3; odd). For `'isice'`: `sparsity`,
            `learning_rate`, `steps`, `inverse_iter`, `ridge`. For every normalisation: `concat_average` (False) puts
            the channels' average (GAP) in front of the covariance's vector, so that one linear classifier gives the
            sum of the logits of two; `max_dim` (1024), the largest D taken without asking, None for no limit.
        device: Where to create the parameters.
        dtype: Their type.

    Attributes:
        out_features: D(D+1)/2, or C + D(D+1)/2.
        dim: D.
        channel_filter: Learned weights `(kernel_size,)` of `'dropcov'`, see `timm_gcp.ops.dropcov`; None for others.

    Raises:
        ValueError: An unknown choice, a number out of range, a covariance wider than `max_dim`, or a normalisation of
            your own that does not work.
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
        pool_kwargs: Mapping[str, Any] | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("init", init, INIT_RULES)
        check_normalization(normalization, n_iter, exponent, eps)
        check_iteration_dtype(iteration_dtype, normalization)
        widths = reduction_widths(reduce_dim)
        chans = widths[-1] if widths else in_chans
        self.pool_kwargs = self._take_own(normalization, pool_kwargs, chans)
        factory = {"device": device, "dtype": dtype}
        self.in_chans = in_chans
        self.reduction = reduction(in_chans, widths, act_layer, init, factory)
        self.channel_filter: nn.Parameter | None = None
        if self.kernel_size:
            bound = self.kernel_size**-0.5
            self.channel_filter = nn.Parameter(torch.empty(self.kernel_size, **factory).uniform_(-bound, bound))
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
        self.out_features = triangle_size(chans) + (in_chans if self.concat_average else 0)

    def _take_own(self, normalization: Normalization, pool_kwargs: Any, dim: int) -> dict[str, Any]:
        """Set the layer's own options; what is left is the pooling's, checked."""
        of_pooling = option_names(normalization, without=_OF_THE_CALL)
        own = ("kernel_size",) if normalization == "dropcov" else ()
        described = describe_normalization(resolve_normalization(normalization))
        given = check_names(described, pool_kwargs, (*of_pooling, *own, "concat_average", "max_dim"))
        self.concat_average = given.pop("concat_average", False)
        if not isinstance(self.concat_average, bool):
            raise ValueError(f"concat_average is {self.concat_average!r}; give True or False")
        remedy = f"give reduce_dim=256, or raise the limit with pool_kwargs={{'max_dim': {dim}}}"
        check_width(dim, triangle_size(dim), given.pop("max_dim", MAX_DIM), remedy)
        self.kernel_size = given.pop("kernel_size", 3) if own else 0
        if own and (type(self.kernel_size) is not int or not 1 <= self.kernel_size <= 999 or self.kernel_size % 2 == 0):
            raise ValueError(f"kernel_size is {self.kernel_size!r}; give an odd whole number (the authors': 3)")
        pool_options(normalization, given)
        return given

    def forward(self, x: Tensor) -> Tensor:
        """Pool `(B, C, H, W)` to `(B, out_features)`."""
        features = self.reduction(x)
        if torch.jit.is_scripting():
            pooled = self._forward_scripted(features)
        else:
            pooled = global_cov_pool(
                features,
                self.normalization if self.held is None else self.held,
                self.n_iter,
                exponent=self.exponent,
                eps=self.eps,
                iteration_dtype=self.iteration_dtype,
                pool_kwargs=self._call_options(),
            )
        if self.concat_average:
            pooled = torch.cat((widen(x).mean((2, 3)).to(pooled.dtype), pooled), 1)
        return pooled

    @torch.jit.unused
    def _call_options(self) -> dict[str, Any]:
        if self.kernel_size:
            return {**self.pool_kwargs, "training": self.training, "channel_filter": self.channel_filter}
        return self.pool_kwargs

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
        options = {**self.pool_kwargs, **({"concat_average": True} if self.concat_average else {})}
        more = "".join(f", {name}={value!r}" for name, value in options.items())
        return f"normalization={normalization}, n_iter={self.n_iter}{more}, out_features={self.out_features}"
