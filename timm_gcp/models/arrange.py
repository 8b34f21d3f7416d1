"""How a model lays out its features, and the layer that turns them into the map `(B, C, H, W)` that the pooling takes.

timm's features are maps `(B, C, H, W)`, maps `(B, H, W, C)` (Swin, MambaOut), or sequences `(B, N, C)`, often with
class, distillation or register tokens in front of the patches (ViT). Positions of a map are tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from timm_gcp.models.swap_check import run_on_zeros

TOKENS = ("patch", "all")


@dataclass(frozen=True)
class Arrangement:
    """Layout of a model's features.

    Attributes:
        layout: `'NCHW'`, `'NHWC'` or `'NLC'`.
        channels: C.
        prefix: Tokens in front of the patches: class, distillation and register tokens.
    """

    layout: str
    channels: int
    prefix: int = 0


class ToMap(nn.Module):
    """Features of any layout as `(B, C, H, W)`; a sequence of N tokens as `(B, C, N, 1)`.

    Args:
        layout: `'NCHW'`, `'NHWC'` or `'NLC'`.
        skip: Tokens at the start of a sequence that are left out.
    """

    def __init__(self, layout: str, skip: int = 0) -> None:
        super().__init__()
        self.layout = layout
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        """Rearrange."""
        if self.layout == "NHWC":
            return x.permute(0, 3, 1, 2)
        if self.layout == "NLC":
            return x[:, self.skip :].transpose(1, 2).unsqueeze(3)
        return x

    def extra_repr(self) -> str:
        """Settings for `print(model)`."""
        return f"layout={self.layout}, skip={self.skip}"


class FirstToken(nn.Module):
    """The first token of a sequence, `(B, N, C)` -> `(B, C)`: the class token, where there is one."""

    pool_type = "token"

    def forward(self, x: Tensor) -> Tensor:
        """Take it."""
        return x[:, 0]

    def feat_mult(self) -> int:
        """Output width over input channels."""
        return 1


def arrangement_of(model: nn.Module, channels: int | None = None) -> Arrangement:
    """The layout of what `forward_features` gives, found by one forward pass.

    Args:
        model: A timm model.
        channels: C where it is known.

    Raises:
        ValueError: Its features are neither a map nor a sequence of tokens, or hold class tokens only.
    """
    name = type(model).__name__
    forward: Any = getattr(model, "forward_features", None)
    if forward is None:
        raise ValueError(f"{name} has no forward_features; swap_pooling takes timm classifiers")
    try:
        features = run_on_zeros(model, forward)
    except RuntimeError as error:
        raise ValueError(
            f"{name}.forward_features {error}; give the channels of its last feature map as channels="
        ) from error
    if not isinstance(features, Tensor) or features.ndim not in (3, 4):
        given = tuple(features.shape) if isinstance(features, Tensor) else f"a {type(features).__name__}"
        raise ValueError(
            f"{name}.forward_features gives {given}, not one map (B, C, H, W) or (B, H, W, C) or one sequence of "
            "tokens (B, N, C); swap_pooling takes timm models that give one of these"
        )
    shape = tuple(features.shape)
    if features.ndim == 4:
        layout = _map_layout(model, shape, channels)
        return Arrangement(layout, shape[3] if layout == "NHWC" else shape[1])
    prefix = prefix_tokens(model)
    if shape[1] <= prefix:
        raise ValueError(
            f"{name}.forward_features gives {shape}, class tokens without the patches; a covariance needs a model "
            "that hands its patch tokens on"
        )
    return Arrangement("NLC", shape[2], prefix)


def _map_layout(model: nn.Module, shape: tuple[int, ...], channels: int | None) -> str:
    """`'NCHW'` or `'NHWC'`, by what the model says, else by the axis that is as wide as its features."""
    said = str(getattr(model, "output_fmt", "")).rpartition(".")[2]
    if said in ("NCHW", "NHWC"):
        return said
    widths = {channels, getattr(model, "num_features", None), getattr(model, "head_hidden_size", None)}
    return "NHWC" if shape[3] in widths and shape[1] not in widths else "NCHW"


def prefix_tokens(model: nn.Module) -> int:
    """Tokens in front of the patches of a sequence."""
    known: Any = getattr(model, "num_prefix_tokens", None)
    if known is not None:
        return int(known)
    tokens = [getattr(model, name, None) for name in ("cls_token", "cls_token1")]  # the latter: CoaT
    return next((token.shape[1] for token in tokens if isinstance(token, Tensor) and token.ndim == 3), 0)
