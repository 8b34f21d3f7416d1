"""Facts of the 14 architectures that weights are published for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """What all weights of one architecture share.

    Attributes:
        family: Prefix of its recipes and schedules: `resnet`, `mobilenetv2` or `shufflenetv2`.
        params: Parameters with 1000 classes.
        gmacs: Multiply-adds of one 224×224 image in billions, as torch's flop counter counts them.
        dimension: D of the covariance, None for global average pooling.
        pool_size: Last feature map at 224×224.
        authors: Name in the authors' code.
    """

    family: str
    params: int
    gmacs: float
    dimension: int | None
    pool_size: tuple[int, int]
    authors: str


# fmt: off
ARCHITECTURES = {
    "resnet18_gcp": Architecture("resnet", 44_205_096, 3.223, 256, (14, 14), "resnet18_mpncov"),
    "resnet34_gcp": Architecture("resnet", 54_313_256, 5.767, 256, (14, 14), "resnet34_mpncov"),
    "resnet50_gcp": Architecture("resnet", 56_929_832, 6.460, 256, (14, 14), "resnet50_mpncov"),
    "resnet101_gcp": Architecture("resnet", 75_921_960, 10.172, 256, (14, 14), "resnet101_mpncov"),
    "mobilenetv2_100_gcp": Architecture("mobilenetv2", 35_449_064, 0.353, 256, (7, 7), "mobilenet_v2_mpncov"),
    "shufflenet_v2_x1_0_gcp": Architecture("shufflenetv2", 34_413_260, 0.194, 256, (7, 7), "shufflenet_v2_mpncov_x1_0"),
    "resnet50_gcp_d128": Architecture("resnet", 32_027_432, 6.297, 128, (14, 14), "resnet50_mpncov_128"),
    "mobilenetv2_100_gcp_d128": Architecture("mobilenetv2", 10_644_968, 0.318, 128, (7, 7), "mobilenet_v2_mpncov_128"),
    "shufflenet_v2_x1_0": Architecture("shufflenetv2", 2_278_604, 0.145, None, (7, 7), "shufflenet_v2_x1_0"),
    "resnet18": Architecture("resnet", 11_689_512, 1.814, None, (7, 7), "resnet18"),
    "resnet34": Architecture("resnet", 21_797_672, 3.664, None, (7, 7), "resnet34"),
    "resnet50": Architecture("resnet", 25_557_032, 4.089, None, (7, 7), "resnet50"),
    "resnet101": Architecture("resnet", 44_549_160, 7.801, None, (7, 7), "resnet101"),
    "mobilenetv2_100": Architecture("mobilenetv2", 3_504_872, 0.301, None, (7, 7), "mobilenet_v2"),
}
# fmt: on
# Registered by timm itself: to timm their weights are folders to be named with `local-dir:`, not tags.
STOCK = ("resnet18", "resnet34", "resnet50", "resnet101", "mobilenetv2_100")
OURS = tuple(name for name in ARCHITECTURES if name not in STOCK)
