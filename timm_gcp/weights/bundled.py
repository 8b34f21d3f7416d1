"""What is known of the weights inside this package: how they were trained, and what their very files score."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bundled:
    """One set of weights that this package ships, trained with its own recipes.

    Attributes:
        arch: Model name for `timm.create_model`.
        tag: Tag after the dot, schedule and data set.
        params: Parameters of this very model.
        top1: Accuracy in % of this file on the data set's test images, by `timm-gcp validate`.
        top5: The same for the five best.
        recipe: Recipe file in `recipes/`.
        schedule: Name for train.py's `--sched`.
        epochs: Epochs trained.
        images: Training images.
        seed: Random seed.
        sha256: Digest of `model.safetensors`.
        part: Part of `tools/studies/reproduce_fmnist.py` that trained them.
        keys: Keys of the recipe in which they differ from it, with their values.
        dtype: Type that the weights are stored in.
        dataset: Data set, by its name on the Hub.
        licence: SPDX id of the weights.
    """

    arch: str
    tag: str
    params: int
    top1: float
    top5: float
    recipe: str
    schedule: str
    epochs: int
    images: int
    seed: int
    sha256: str
    part: str = "weights"
    keys: str = ""
    dtype: str = "float16"
    dataset: str = "fashion_mnist"
    licence: str = "Apache-2.0"

    @property
    def name(self) -> str:
        """`arch.tag`."""
        return f"{self.arch}.{self.tag}"


@dataclass(frozen=True)
class BundledPair:
    """Two of these on the same test images, as `timm-gcp validate --model FIRST --compare SECOND` counts them.

    Attributes:
        first: `arch.tag`.
        second: `arch.tag` of its twin.
        only_first: Test images that the first alone classifies correctly.
        only_second: Test images that the second alone classifies correctly.
        unequal: What differed in their training beside the pooling.
    """

    first: str
    second: str
    only_first: int
    only_second: int
    unequal: str


# Rows as `tools/release/bundle_fmnist.py` prints them.
ROWS = (
    Bundled(
        arch="shufflenet_v2_x1_0_gcp",
        tag="adju_fmnist",
        params=1_844_798,
        top1=93.52,
        top5=99.94,
        recipe="fmnist_adju.yaml",
        schedule="gcp_shufflenetv2_adju:stretch",
        epochs=10,
        images=60_000,
        seed=0,
        sha256="7b6c10bae46bc2a41a6c39aa506810cf29c0fb9c58cda8eea9319dac679dce12",
        part="resolution",
        keys="lr: 0.125, img_size: 96",
    ),
    Bundled(
        arch="shufflenet_v2_x1_0",
        tag="adju_fmnist",
        params=1_263_422,
        top1=93.24,
        top5=99.96,
        recipe="fmnist_adju.yaml",
        schedule="gcp_shufflenetv2_adju:stretch",
        epochs=10,
        images=60_000,
        seed=0,
        sha256="f5d67ba1cc4bca86cc4dc1fcede4a5c97cec1aad4f9cfc28d02c25ac556211b4",
        part="resolution",
        keys="img_size: 96",
    ),
    Bundled(
        arch="mobilenetv2_100_gcp",
        tag="adju_fmnist",
        params=2_880_458,
        top1=89.22,
        top5=99.82,
        recipe="fmnist_adju.yaml",
        schedule="gcp_mobilenetv2_adju:stretch",
        epochs=10,
        images=20_000,
        seed=0,
        sha256="809a0c359dcc646f44af0bea46ff8b50736f50b393138f82d9b64da80e299b4c",
        part="backbones",
        keys="sched_on_updates: False, lr: 0.06",
    ),
)

PAIR = BundledPair(
    first="shufflenet_v2_x1_0_gcp.adju_fmnist",
    second="shufflenet_v2_x1_0.adju_fmnist",
    only_first=213,
    only_second=185,
    unequal="the learning rate, 0.125 for the first and the recipe's 0.0625 for the second",
)
