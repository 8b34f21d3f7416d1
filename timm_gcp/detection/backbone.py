"""Classifier -> detector backbone: drop the covariance layer and the classifier, keep the four levels, add an FPN.

Steps S_II and S_III of the paper's Appendix IV. The parameters of a ResNet do not depend on its last stage, so one
classifier serves GCP_D (`last_stage='stride2'`), GCP_M (`'maxpool'`) and no down-sampling at all (`'stride1'`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import timm
from timm.layers import convert_sync_batchnorm, freeze_batch_norm_2d
from timm.models._features import FeatureGetterNet
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.ops.feature_pyramid_network import ExtraFPNBlock, FeaturePyramidNetwork, LastLevelMaxPool

from timm_gcp.detection.swaps import drop_head, swap_behind
from timm_gcp.detection.weights import architecture_of, load_classifier
from timm_gcp.weights.named import check_model, check_named

LAST_STAGES = ("stride2", "maxpool", "stride1")
NORMS = ("frozen_bn", "eval_bn", "bn", "sync_bn")
STRIDES = (4, 8, 16, 32)  # of a pyramid over a classifier that halves the map in every stage
STRIDES_WITHOUT_DOWNSAMPLING = (4, 8, 16, 16)  # `last_stage='stride1'`: the last two maps have one size
NUM_GROUPS = 1 + len(STRIDES)  # what `trainable_layers` counts: the stem and the four levels


class EvalBatchNorm2d(nn.BatchNorm2d):
    """Batch norm that keeps its statistics in training and learns scale and shift only (MMDetection's `norm_eval`)."""

    def train(self, mode: bool = True) -> EvalBatchNorm2d:
        """Stay in evaluation mode."""
        return super().train(False)


class PyramidBackbone(nn.Module):
    """Four feature maps of a timm network and the feature pyramid over them, as torchvision's detectors take them.

    `(B, C, H, W)` -> an ordered dict of maps `(B, fpn_channels, ceil(H / s), ceil(W / s))`, one for each stride `s` in
    `strides`, named `'0'`, `'1'`, ..., and then what `extra_blocks` adds (`'pool'`: the last map at half its size).

    Attributes:
        body: The timm network without its head; its state dict has the classifier's names.
        out_channels: Channels of every map.
        strides: Pixels of the image per pixel of each map.
    """

    def __init__(
        self,
        body: nn.Module,
        fpn_channels: int = 256,
        levels: Sequence[int] = (0, 1, 2, 3),
        extra_blocks: ExtraFPNBlock | None = None,
        keep_statistics: bool = False,
    ) -> None:
        super().__init__()
        self.keep_statistics = keep_statistics
        info: Any = body.feature_info
        channels, strides = info.channels(), info.reduction()
        self.body = body
        self.levels = tuple(levels)
        self.strides = tuple(strides[level] for level in self.levels)
        self.out_channels = fpn_channels
        self.fpn = FeaturePyramidNetwork(
            [channels[level] for level in self.levels], fpn_channels, extra_blocks or LastLevelMaxPool()
        )

    def forward(self, x: Tensor) -> OrderedDict[str, Tensor]:
        """Maps of the pyramid, finest first."""
        maps = self.body(x)
        return self.fpn(OrderedDict((str(i), maps[level]) for i, level in enumerate(self.levels)))

    def train(self, mode: bool = True) -> PyramidBackbone:
        """Switch the mode; batch norms of frozen layers stay in evaluation, else their statistics would drift."""
        super().train(mode)
        for module in self.body.modules():
            if isinstance(module, _BatchNorm) and (self.keep_statistics or not module.weight.requires_grad):
                module.eval()
        return self


def gcp_backbone(
    name: str,
    last_stage: str | None = None,
    trainable_layers: int = 3,
    norm: str = "frozen_bn",
    pretrained: bool = False,
    *,
    checkpoint: str | Path | None = None,
    in_chans: int = 3,
    fpn_channels: int = 256,
    levels: Sequence[int] = (0, 1, 2, 3),
    extra_blocks: ExtraFPNBlock | None = None,
) -> PyramidBackbone:
    """Build an FPN backbone for `FasterRCNN`, `MaskRCNN` or `RetinaNet` from a classifier, GCP or GAP.

    Source: Section 4.3 and Appendix IV, steps S_II and S_III.

    Args:
        name: Any timm model with feature maps at strides 4, 8, 16 and 32: `resnet50_gcp`, its GAP twin
            `resnet50.tv_in1k`, a swap (`gcp:convnext_tiny`), `local-dir:PATH`, ...
        last_stage: Of a GCP ResNet: `'stride2'` (GCP_D, the default here), `'maxpool'` (GCP_M, a 2×2 max-pool before
            the last stage) or `'stride1'` (none: level strides 4, 8, 16, 16, at a higher cost). Other networks have one
            form, `'stride2'`.
        trainable_layers: How many of the five groups (four levels from the coarsest, then the stem) are trained, from 0
            to 5. ShuffleNetV2's stride-4 level is the stem's max-pool, so there 4 trains no more than 3.
        norm: `'frozen_bn'` keeps statistics, scale and shift of the classifier's batch norms; `'eval_bn'` keeps the
            statistics only, as MMDetection does by default; `'bn'` trains all; `'sync_bn'` trains all with statistics
            over all processes (GPU).
        pretrained: Load the weights that `name` is registered with.
        checkpoint: Load this file instead: a checkpoint of the classifier with any `last_stage`, any head and number of
            classes, in timm's layout or another that `timm_gcp.weights.layouts` understands.
        in_chans: Channels of the images.
        fpn_channels: Channels of the pyramid.
        levels: Which of the four levels enter the pyramid.
        extra_blocks: What follows the pyramid's last map; torchvision's `LastLevelMaxPool` when left out.

    Raises:
        ValueError: An unknown model or option, a checkpoint that does not fit, a network without those strides, or
            two sources of weights.
        FileNotFoundError: `checkpoint` is not a file, or a swap has no weights.
    """
    if norm not in NORMS:
        raise ValueError(f"norm must be one of {', '.join(NORMS)}. Got {norm!r}.")
    if not 0 <= trainable_layers <= NUM_GROUPS:
        raise ValueError(f"trainable_layers must be in [0, {NUM_GROUPS}]. Got {trainable_layers}.")
    if fpn_channels < 1:
        raise ValueError(f"fpn_channels must be at least 1. Got {fpn_channels}.")
    if not levels or sorted(set(levels)) != list(levels) or not 0 <= levels[0] <= levels[-1] < len(STRIDES):
        raise ValueError(f"levels must be ascending numbers in [0, {len(STRIDES) - 1}]. Got {tuple(levels)}.")
    if pretrained and checkpoint is not None:
        raise ValueError(f"pretrained=True and checkpoint={str(checkpoint)!r} both name weights: give one of them.")
    options = last_stage_options(name, last_stage)
    swap = swap_behind(name)
    if swap is not None:  # its body is the timm model that was swapped, in that model's own names
        if pretrained:
            pretrained, checkpoint = False, swap.weights(name)
        name, options = swap.backbone, {"feature_cls": "getter"}
    body = _features(name, pretrained, in_chans, options)
    if swap is not None:
        drop_head(body)
    if checkpoint is not None:
        load_classifier(body if swap is None else body.get_submodule("model"), name, checkpoint, in_chans)
    freeze_groups(body, trainable_layers)
    if norm == "frozen_bn":
        body = freeze_batch_norm_2d(body)
    elif norm == "sync_bn":
        body = convert_sync_batchnorm(body)
    return PyramidBackbone(body, fpn_channels, levels, extra_blocks, keep_statistics=norm == "eval_bn")


def last_stage_options(name: str, last_stage: str | None) -> dict[str, Any]:
    """Model keywords that give `last_stage`: only GCP ResNets have the choice.

    Raises:
        ValueError: An unknown model or last stage, or one that the model does not have.
    """
    architecture = architecture_of(name)
    if last_stage is not None and last_stage not in LAST_STAGES:
        raise ValueError(f"last_stage must be one of {', '.join(LAST_STAGES)}. Got {last_stage!r}.")
    if architecture.startswith("resnet") and "_gcp" in architecture:
        return {"last_stage": last_stage or LAST_STAGES[0]}
    if last_stage not in (None, LAST_STAGES[0]):
        raise ValueError(
            f"{name} down-samples in its last stage and has no last_stage={last_stage!r}: only the resnet*_gcp models "
            f"have the choice. Leave last_stage out, or pass {LAST_STAGES[0]!r}."
        )
    return {}


def _features(name: str, pretrained: bool, in_chans: int, options: dict[str, Any]) -> nn.Module:
    """The four finest-to-coarsest maps of a timm network, checked for their strides.

    Weights that were trained with a dilated last stage ask for its `output_stride`; they are built with 32.
    """
    wanted = STRIDES_WITHOUT_DOWNSAMPLING if options.get("last_stage") == "stride1" else STRIDES
    body, strides = _four_maps(name, pretrained=pretrained, in_chans=in_chans, **options)
    if strides != wanted and wanted == STRIDES and strides[-1] < STRIDES[-1]:
        with suppress(TypeError):  # a network without this option
            body, strides = _four_maps(
                name, pretrained=pretrained, in_chans=in_chans, output_stride=STRIDES[-1], **options
            )
    if strides != wanted:
        raise ValueError(f"{name} gives maps at strides {strides}; a pyramid needs {wanted}.")
    return body


def _four_maps(name: str, **options: Any) -> tuple[nn.Module, tuple[int, ...]]:
    if options.get("pretrained"):
        check_named(name, True)
    try:
        body: Any = timm.create_model(name, features_only=True, out_indices=(-4, -3, -2, -1), **options)
        if options.get("pretrained"):
            check_model(body, name)
        return body, tuple(body.feature_info.reduction())
    except (AssertionError, IndexError) as error:  # timm's own words for "fewer than four maps"
        raise ValueError(f"{name} does not give four feature maps: {error or 'too few levels'}.") from error


def groups_of(body: nn.Module) -> list[list[nn.Parameter]]:
    """Parameters of a feature network in five groups, in the order of use: stem, then what leads to each level.

    A level that is a pooling layer (ShuffleNetV2's first) has an empty group.
    """
    order = [name for name, _ in body.named_modules()]
    info: Any = body.feature_info
    ends = []
    within = "model." if isinstance(body, FeatureGetterNet) else ""
    for level in (within + name for name in info.module_name()):
        inside = [i for i, name in enumerate(order) if name == level or name.startswith(f"{level}.")]
        ends.append(inside[-1])
    # The stem is the first two modules with a state: all six backbones begin convolution, norm, activation.
    stem_end = [i for i, module in enumerate(body.modules()) if module._parameters or module._buffers][1]
    groups: list[list[nn.Parameter]] = [[] for _ in range(NUM_GROUPS)]
    for name, parameter in body.named_parameters():
        position = order.index(name.rpartition(".")[0])
        if position <= stem_end:
            groups[0].append(parameter)
        else:
            groups[1 + next(i for i, end in enumerate(ends) if position <= end)].append(parameter)
    return groups


def freeze_groups(body: nn.Module, trainable_layers: int) -> None:
    """Stop the gradients of all but the last `trainable_layers` of the five groups, in place."""
    groups = groups_of(body)
    for group in groups[: len(groups) - trainable_layers]:
        for parameter in group:
            parameter.requires_grad_(False)
