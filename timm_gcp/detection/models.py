"""torchvision's detectors on GCP backbones: Faster R-CNN, Mask R-CNN and RetinaNet with a feature pyramid.

    model = fasterrcnn_gcp_fpn("resnet50_gcp", num_classes=91, last_stage="maxpool", pretrained=True)

A GAP twin is the same call with a stock timm model (`resnet50.tv_in1k`). As in torchvision, `num_classes` counts the
background, images are `(C, H, W)` tensors in [0, 1], and the detector resizes and normalises them itself, here with the
mean and deviation that the classifier was trained with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torchvision.models.detection import FasterRCNN, MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelP6P7
from torchvision.ops.poolers import LevelMapper

from timm_gcp.detection.backbone import STRIDES, PyramidBackbone, gcp_backbone

__all__ = [
    "DETECTORS",
    "PyramidBackbone",
    "build_detector",
    "fasterrcnn_gcp_fpn",
    "gcp_backbone",
    "maskrcnn_gcp_fpn",
    "retinanet_gcp_fpn",
]

ANCHOR_SIZES = (32, 64, 128, 256, 512)  # pixels, one per map; torchvision's and MMDetection's default
ASPECT_RATIOS = (0.5, 1.0, 2.0)
BOX_MAP, MASK_MAP = 7, 14  # side of the region map that the box and the mask branch see
SAMPLING_RATIO = 2


def fasterrcnn_gcp_fpn(
    name: str,
    num_classes: int,
    *,
    last_stage: str | None = None,
    trainable_layers: int = 3,
    norm: str = "frozen_bn",
    pretrained: bool = False,
    checkpoint: str | Path | None = None,
    in_chans: int = 3,
    fpn_channels: int = 256,
    head_channels: int = 1024,
    anchor_sizes: Sequence[int] = ANCHOR_SIZES,
    **options: Any,
) -> FasterRCNN:
    """Faster R-CNN with FPN on a GCP (or GAP) backbone; the backbone's keywords are those of `gcp_backbone`.

    Args:
        name: timm model, e.g. `resnet50_gcp`.
        num_classes: Classes, background included.
        last_stage: See `gcp_backbone`.
        trainable_layers: See `gcp_backbone`.
        norm: See `gcp_backbone`.
        pretrained: See `gcp_backbone`.
        checkpoint: See `gcp_backbone`.
        in_chans: Channels of the images.
        fpn_channels: Channels of the pyramid.
        head_channels: Width of the two fully connected layers of the box branch.
        anchor_sizes: Side of the anchors in pixels of the resized image, one per map.
        **options: Any other keyword of torchvision's `FasterRCNN` (`min_size`, `box_score_thresh`, ...).

    Raises:
        ValueError: As `gcp_backbone`, or a wrong number of classes or of anchor sizes.
    """
    _check_classes(num_classes)
    _check_sizes(anchor_sizes)
    backbone = gcp_backbone(
        name, last_stage, trainable_layers, norm, pretrained,
        checkpoint=checkpoint, in_chans=in_chans, fpn_channels=fpn_channels,
    )  # fmt: skip
    return FasterRCNN(
        backbone,
        **_two_stage(backbone, num_classes, head_channels, anchor_sizes),
        **_pixels(backbone, in_chans, options),
    )


def maskrcnn_gcp_fpn(
    name: str,
    num_classes: int,
    *,
    last_stage: str | None = None,
    trainable_layers: int = 3,
    norm: str = "frozen_bn",
    pretrained: bool = False,
    checkpoint: str | Path | None = None,
    in_chans: int = 3,
    fpn_channels: int = 256,
    head_channels: int = 1024,
    mask_channels: int = 256,
    anchor_sizes: Sequence[int] = ANCHOR_SIZES,
    **options: Any,
) -> MaskRCNN:
    """Mask R-CNN with FPN on a GCP (or GAP) backbone.

    Args and Raises as `fasterrcnn_gcp_fpn`; `mask_channels` is the width of the mask branch.
    """
    _check_classes(num_classes)
    _check_sizes(anchor_sizes)
    backbone = gcp_backbone(
        name, last_stage, trainable_layers, norm, pretrained,
        checkpoint=checkpoint, in_chans=in_chans, fpn_channels=fpn_channels,
    )  # fmt: skip
    return MaskRCNN(
        backbone,
        mask_roi_pool=_roi_pool(backbone, MASK_MAP),
        mask_head=MaskRCNNHeads(fpn_channels, (mask_channels,) * 4, dilation=1),
        mask_predictor=MaskRCNNPredictor(mask_channels, mask_channels, num_classes),
        **_two_stage(backbone, num_classes, head_channels, anchor_sizes),
        **_pixels(backbone, in_chans, options),
    )


def retinanet_gcp_fpn(
    name: str,
    num_classes: int,
    *,
    last_stage: str | None = None,
    trainable_layers: int = 3,
    norm: str = "frozen_bn",
    pretrained: bool = False,
    checkpoint: str | Path | None = None,
    in_chans: int = 3,
    fpn_channels: int = 256,
    anchor_sizes: Sequence[int] = ANCHOR_SIZES,
    **options: Any,
) -> RetinaNet:
    """RetinaNet on levels 8, 16, 32 of a GCP (or GAP) backbone and two more maps made from the last.

    Args and Raises as `fasterrcnn_gcp_fpn`. Three anchors per size: `s`, `s * 2**(1/3)`, `s * 2**(2/3)`.
    """
    _check_classes(num_classes)
    _check_sizes(anchor_sizes)
    backbone = gcp_backbone(
        name, last_stage, trainable_layers, norm, pretrained,
        checkpoint=checkpoint, in_chans=in_chans, fpn_channels=fpn_channels,
        levels=(1, 2, 3), extra_blocks=LastLevelP6P7(fpn_channels, fpn_channels),
    )  # fmt: skip
    octaves = tuple(tuple(int(size * 2 ** (k / 3)) for k in range(3)) for size in anchor_sizes)
    anchors = AnchorGenerator(octaves, (ASPECT_RATIOS,) * len(octaves))
    return RetinaNet(backbone, num_classes, anchor_generator=anchors, **_pixels(backbone, in_chans, options))


DETECTORS: dict[str, Callable[..., nn.Module]] = {
    "fasterrcnn": fasterrcnn_gcp_fpn,
    "maskrcnn": maskrcnn_gcp_fpn,
    "retinanet": retinanet_gcp_fpn,
}


def build_detector(detector: str, name: str, num_classes: int, **options: Any) -> nn.Module:
    """Build one of `DETECTORS` by name.

    Raises:
        ValueError: An unknown detector, or as its own function.
    """
    if detector not in DETECTORS:
        raise ValueError(f"unknown detector {detector!r}. Choose one of {', '.join(DETECTORS)}.")
    return DETECTORS[detector](name, num_classes, **options)


def _check_classes(num_classes: int) -> None:
    if num_classes < 2:
        raise ValueError(f"num_classes counts the background and must be at least 2. Got {num_classes}.")


def _check_sizes(anchor_sizes: Sequence[int]) -> None:
    if len(anchor_sizes) != len(ANCHOR_SIZES) or min(anchor_sizes) <= 0:
        raise ValueError(
            f"anchor_sizes must be {len(ANCHOR_SIZES)} positive numbers, one per map. Got {tuple(anchor_sizes)}."
        )


def _two_stage(
    backbone: PyramidBackbone, num_classes: int, head_channels: int, anchor_sizes: Sequence[int]
) -> dict[str, Any]:
    """Anchors, region pooling and box branch."""
    return {
        "rpn_anchor_generator": AnchorGenerator(
            tuple((size,) for size in anchor_sizes), (ASPECT_RATIOS,) * len(anchor_sizes)
        ),
        "box_roi_pool": _roi_pool(backbone, BOX_MAP),
        "box_head": TwoMLPHead(backbone.out_channels * BOX_MAP**2, head_channels),
        "box_predictor": FastRCNNPredictor(head_channels, num_classes),
    }


def _roi_pool(backbone: PyramidBackbone, size: int) -> MultiScaleRoIAlign:
    """Pool regions from the four maps.

    torchvision chooses a region's map from the maps' scales and so would never use the last of two equal ones: with
    strides 4, 8, 16, 16 the region sizes are divided among the four maps as with 4, 8, 16, 32.
    """
    names = [str(i) for i in range(len(backbone.strides))]
    pool = MultiScaleRoIAlign(names, size, SAMPLING_RATIO)
    pool.scales = [1 / stride for stride in backbone.strides]
    low, high = (stride.bit_length() - 1 for stride in (STRIDES[0], STRIDES[-1]))
    pool.map_levels = LevelMapper(low, high)
    return pool


def _pixels(backbone: PyramidBackbone, in_chans: int, options: dict[str, Any]) -> dict[str, Any]:
    """`options` with the pixel statistics of the classifier, unless given."""
    cfg = getattr(backbone.body, "pretrained_cfg", None) or {}
    given = dict(options)
    for key, source, default in (("image_mean", "mean", (0.5,)), ("image_std", "std", (0.5,))):
        values = [float(value) for value in cfg.get(source) or default]
        if len(values) != in_chans:  # as timm does for grey images: the mean over the channels
            values = [sum(values) / len(values)] * in_chans
        given.setdefault(key, values)
    return given
