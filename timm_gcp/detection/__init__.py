"""Detectors on GCP backbones: models, COCO-format data, training and measuring."""

from timm_gcp.detection.models import (
    ANCHOR_SIZES,
    DETECTORS,
    build_detector,
    fasterrcnn_gcp_fpn,
    maskrcnn_gcp_fpn,
    retinanet_gcp_fpn,
)

__all__ = [
    "ANCHOR_SIZES",
    "DETECTORS",
    "build_detector",
    "fasterrcnn_gcp_fpn",
    "maskrcnn_gcp_fpn",
    "retinanet_gcp_fpn",
]
