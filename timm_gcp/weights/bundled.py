"""What is known of the weights inside this package: how they were trained, and what their very files score."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bundled:
    """One set of weights that this package ships, trained with its own recipes.

    Attributes:
        arch: Model name for `timm.create_model`.
        tag: Tag after the dot: the data set, and the schedule where it is one of the paper's.
        params: Parameters of this very model.
        top1: Accuracy in % of this file on the data set's test images, by `timm-gcp validate`.
        top5: The same for the five best.
        recipe: Recipe file in `recipes/`.
        schedule: Name for train.py's `--sched`.
        epochs: Epochs trained.
        images: Training images.
        seed: Random seed.
        sha256: Digest of `model.safetensors`.
        study: Command that trained them.
        dataset: Data set, by its name on the Hub.
        keys: Keys of the recipe in which they differ from it, or from the study's, with their values.
        dtype: Type that the weights are stored in.
        licence: SPDX id of the weights.
        mean_per_class: Mean over the classes of the accuracy, where they have unequally many test images.
        start: Weights that training started from; empty where it started from none.
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
    study: str
    dataset: str
    keys: str = ""
    dtype: str = "float16"
    licence: str = "Apache-2.0"
    mean_per_class: float | None = None
    start: str = ""

    @property
    def name(self) -> str:
        """`arch.tag`."""
        return f"{self.arch}.{self.tag}"


@dataclass(frozen=True)
class BundledPair:
    """Two of these on the same test images, as `timm-gcp validate --compare` counts them.

    Attributes:
        first: `arch.tag`.
        second: `arch.tag` of its twin.
        only_first: Test images that the first alone classifies correctly.
        only_second: Test images that the second alone classifies correctly.
        images: Test images.
        unequal: What differed in their training beside the pooling.
        counted: Command that counts them.
    """

    first: str
    second: str
    only_first: int
    only_second: int
    images: int
    unequal: str
    counted: str


# Rows as `tools/release/bundle_caltech.py` and `tools/release/bundle_fmnist.py` print them.
ROWS = (
    Bundled(
        arch="mobilenetv2_100_gcp_d128",
        tag="caltech101",
        top1=79.03,
        top5=94.9,
        mean_per_class=73.18,
        recipe="finetune.yaml",
        schedule="cosine",
        epochs=5,
        images=2727,
        seed=0,
        study="python tools/studies/compare.py tools/studies/configs/caltech101.yaml --data-dir "
        "101_ObjectCategories --weights DIR --runs gcp-d128",
        keys="lr: 0.5, layer_decay_min_scale: 0.01",
        dtype="float16",
        dataset="HuggingFaceM4/Caltech-101",
        start="mobilenetv2_100.quant_in1k",
        params=3221925,
        sha256="9f142a3397e157bff4ed59cda994729f0e9808078750b89b49e1b97ed1a8e4fb",
    ),
    Bundled(
        arch="mobilenetv2_100",
        tag="caltech101",
        top1=84.86,
        top5=96.99,
        mean_per_class=80.87,
        recipe="finetune.yaml",
        schedule="cosine",
        epochs=5,
        images=2727,
        seed=0,
        study="python tools/studies/compare.py tools/studies/configs/caltech101.yaml --data-dir "
        "101_ObjectCategories --weights DIR --runs gap",
        keys="lr: 0.006, layer_decay_min_scale: 1.0",
        dtype="float16",
        dataset="HuggingFaceM4/Caltech-101",
        start="mobilenetv2_100.quant_in1k",
        params=2353253,
        sha256="d3dc13f02920eaf6c3539b7f79d959ba0ae53386ebb60111f8fac1f42694332c",
    ),
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
        study="python tools/studies/reproduce_fmnist.py --data-dir FMNIST --parts resolution",
        dataset="fashion_mnist",
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
        study="python tools/studies/reproduce_fmnist.py --data-dir FMNIST --parts resolution",
        dataset="fashion_mnist",
        keys="img_size: 96",
    ),
)

# The first is what commands take where they need a pair.
PAIRS = (
    BundledPair(
        first="mobilenetv2_100_gcp_d128.caltech101",
        second="mobilenetv2_100.caltech101",
        only_first=279,
        only_second=608,
        images=5647,
        unequal="the rates, `lr: 0.5, layer_decay_min_scale: 0.01` for the first and `lr: 0.006, "
        "layer_decay_min_scale: 1.0` for the second, each chosen on held-out images",
        counted="python tools/release/bundle_caltech.py --data-dir 101_ObjectCategories",
    ),
    BundledPair(
        first="shufflenet_v2_x1_0_gcp.adju_fmnist",
        second="shufflenet_v2_x1_0.adju_fmnist",
        only_first=213,
        only_second=185,
        images=10_000,
        unequal="the learning rate, 0.125 for the first and the recipe's 0.0625 for the second",
        counted="timm-gcp validate --model shufflenet_v2_x1_0_gcp.adju_fmnist --pretrained "
        "--compare shufflenet_v2_x1_0.adju_fmnist --dataset torch/fashion_mnist --data-dir FMNIST",
    ),
)
