"""ShuffleNetV2, the one backbone of the paper that timm lacks, to timm's conventions and with torchvision's names.

Ma et al. 2018, "ShuffleNet V2: Practical Guidelines for Efficient CNN Architecture Design" (arXiv:1807.11164).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from timm.layers import create_classifier
from timm.models._features import feature_take_indices
from timm.models._manipulate import MATCH_PREV_GROUP, checkpoint_seq
from torch import Tensor, nn
from torch.nn import functional as F


def _conv_bn(in_chs: int, out_chs: int, kernel: int, act: Callable[..., nn.Module] | None, **conv: Any) -> list:
    factory: dict[str, Any] = {"device": conv.get("device"), "dtype": conv.get("dtype")}
    padding = conv.get("dilation", 1) * (kernel - 1) // 2
    layers = [
        nn.Conv2d(in_chs, out_chs, kernel, padding=padding, bias=False, **conv),
        nn.BatchNorm2d(out_chs, **factory),
    ]
    return [*layers, act(inplace=True)] if act is not None else layers


def shuffle_join(x1: Tensor, x2: Tensor) -> Tensor:
    """Concatenate two halves and shuffle channels between them: channel i of each becomes 2i and 2i + 1."""
    return torch.stack((x1, x2), dim=2).flatten(1, 2)


class ShuffleUnit(nn.Module):
    """One unit of ShuffleNetV2: half of the channels pass, half are transformed; a reducing unit transforms both."""

    def __init__(
        self, in_chs: int, out_chs: int, stride: int, dilation: int, reduces: bool, act_layer: Callable, **factory: Any
    ) -> None:
        super().__init__()
        half = out_chs // 2
        spatial = {"stride": stride, "dilation": dilation, **factory}
        self.reduces = reduces
        self.branch1 = nn.Sequential()
        if reduces:
            self.branch1 = nn.Sequential(
                *_conv_bn(in_chs, in_chs, 3, None, groups=in_chs, **spatial),
                *_conv_bn(in_chs, half, 1, act_layer, **factory),
            )
        self.branch2 = nn.Sequential(
            *_conv_bn(in_chs if reduces else half, half, 1, act_layer, **factory),
            *_conv_bn(half, half, 3, None, groups=half, **spatial),
            *_conv_bn(half, half, 1, act_layer, **factory),
        )

    def forward(self, x: Tensor) -> Tensor:
        """`(B, C, H, W)` -> `(B, C', H', W')`."""
        if self.reduces:
            return shuffle_join(self.branch1(x), self.branch2(x))
        x1, x2 = x.chunk(2, dim=1)
        return shuffle_join(x1, self.branch2(x2))


class ShuffleNetV2(nn.Module):
    """ShuffleNetV2 with global average pooling.

    Args:
        repeats: Units in stages 2 to 4.
        channels: Width of the stem, of stages 2 to 4, and of the last convolution.
        num_classes: Classes; 0 for none.
        in_chans: Image channels.
        output_stride: 32, 16 or 8, by dilation.
        global_pool: timm's pooling name.
        act_layer: Activation; takes `inplace`.
        drop_rate: Dropout before the classifier.
        device: Where to create the parameters.
        dtype: Their type.

    Raises:
        ValueError: Another `output_stride`.
    """

    def __init__(
        self,
        repeats: Sequence[int] = (4, 8, 4),
        channels: Sequence[int] = (24, 116, 232, 464, 1024),
        num_classes: int = 1000,
        in_chans: int = 3,
        output_stride: int = 32,
        global_pool: str = "avg",
        act_layer: Callable[..., nn.Module] = nn.ReLU,
        drop_rate: float = 0.0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if output_stride not in (8, 16, 32):
            raise ValueError(f"output_stride is {output_stride!r}; choose 8, 16 or 32")
        factory = {"device": device, "dtype": dtype}
        self.num_classes, self.in_chans, self.drop_rate = num_classes, in_chans, drop_rate
        self.grad_checkpointing = False

        self.conv1 = nn.Sequential(*_conv_bn(in_chans, channels[0], 3, act_layer, stride=2, **factory))
        self.maxpool: nn.Module = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        info: list[dict[str, Any]] = [
            {"num_chs": channels[0], "reduction": 2, "module": "conv1"},
            {"num_chs": channels[0], "reduction": 4, "module": "maxpool"},
        ]
        stages = []
        in_chs, reduction, dilation = channels[0], 4, 1
        for stage, (count, out_chs) in enumerate(zip(repeats, channels[1:4], strict=True), start=2):
            first_dilation, stride = dilation, 2
            if reduction >= output_stride:
                dilation, stride = dilation * 2, 1
            reduction *= stride
            units = [ShuffleUnit(in_chs, out_chs, stride, first_dilation, True, act_layer, **factory)]
            units += [ShuffleUnit(out_chs, out_chs, 1, dilation, False, act_layer, **factory) for _ in range(count - 1)]
            stages.append(nn.Sequential(*units))
            info.append({"num_chs": out_chs, "reduction": reduction, "module": f"stage{stage}"})
            in_chs = out_chs
        self.stage2, self.stage3, self.stage4 = stages
        self.feature_info = info
        self.conv5 = nn.Sequential(*_conv_bn(in_chs, channels[4], 1, act_layer, **factory))
        self.num_features: int = channels[4]
        self.global_pool, self.fc = create_classifier(self.num_features, num_classes, pool_type=global_pool, **factory)
        self.head_hidden_size = self.num_features * self.global_pool.feat_mult()

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Patterns that group parameters by depth, per stage or per unit; `conv5` belongs to the last of them."""
        blocks = r"^stage(\d+)" if coarse else r"^stage(\d+)\.(\d+)"
        return {"stem": r"^conv1", "blocks": [(blocks, None), (r"^conv5", MATCH_PREV_GROUP)]}

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Trade computation for memory in the three stages."""
        self.grad_checkpointing = enable

    @torch.jit.ignore
    def get_classifier(self) -> nn.Module:
        """The classifier, Identity if there is none."""
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """New classifier; the pooling is kept if None."""
        weight = next(self.parameters())
        pool_type = self.global_pool.pool_type if global_pool is None else global_pool
        self.num_classes = num_classes
        self.global_pool, self.fc = create_classifier(
            self.num_features, num_classes, pool_type=pool_type, device=weight.device, dtype=weight.dtype
        )
        self.head_hidden_size = self.num_features * self.global_pool.feat_mult()
        self.global_pool.train(self.training)
        self.fc.train(self.training)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Features and intermediate features.

        Args:
            x: Images `(B, C, H, W)`.
            indices: The last n of the five levels if int, all if None, else those listed.
            norm: No effect, there is no final norm.
            stop_early: Stop at the deepest level asked for.
            output_fmt: `'NCHW'`, the only one.
            intermediates_only: Return the list alone.

        Raises:
            ValueError: Another `output_fmt`.
        """
        if output_fmt != "NCHW":
            raise ValueError(f"output_fmt is {output_fmt!r}; only 'NCHW' is supported")
        take, deepest = feature_take_indices(5, indices)
        levels = ("conv1", "maxpool", "stage2", "stage3", "stage4")
        taken = []
        for level, name in enumerate(levels[: deepest + 1] if stop_early else levels):
            module = getattr(self, name)
            x = checkpoint_seq(module, x) if level > 1 and self.grad_checkpointing else module(x)
            if level in take:
                taken.append(x)
        if intermediates_only:
            return taken
        if not stop_early or deepest == len(levels) - 1:
            x = self.conv5(x)
        return x, taken

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove what lies behind the deepest of `indices`; returns the indices kept."""
        take, deepest = feature_take_indices(5, indices)
        for name in ("stage2", "stage3", "stage4")[max(deepest - 1, 0) :]:
            setattr(self, name, nn.Sequential())
        if deepest == 0:
            self.maxpool = nn.Identity()
        if prune_norm or deepest < 4:
            self.conv5 = nn.Sequential()
            self.num_features = self.head_hidden_size = self.feature_info[deepest]["num_chs"]
        if prune_head or deepest < 4:
            self.reset_classifier(0, "")
        return take

    def forward_features(self, x: Tensor) -> Tensor:
        """Images `(B, C, H, W)` -> last feature map `(B, 1024, H/32, W/32)`."""
        x = self.maxpool(self.conv1(x))
        if self.grad_checkpointing and not torch.jit.is_scripting():
            x = checkpoint_seq([self.stage2, self.stage3, self.stage4], x, flatten=True)
        else:
            x = self.stage4(self.stage3(self.stage2(x)))
        return self.conv5(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Last feature map -> logits, or pooled features."""
        x = self.global_pool(x)
        if self.drop_rate:
            x = F.dropout(x, p=self.drop_rate, training=self.training)
        return x if pre_logits else self.fc(x)

    def forward(self, x: Tensor) -> Tensor:
        """Images `(B, C, H, W)` -> logits `(B, num_classes)`."""
        return self.forward_head(self.forward_features(x))
