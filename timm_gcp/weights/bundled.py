"""What is known of the weights inside this package: how they were trained, and what their very files score."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bundled:
    """One set of weights that this package ships, trained by one of its recipes or studies.

    Attributes:
        arch: Model name for `timm.create_model`.
        tag: Tag after the dot: the data set, and the schedule where it is one of the paper's.
        params: Parameters of this very model.
        top1: Accuracy in % of this file on the data set's test images, by `timm-gcp validate`.
        top5: The same for the five best.
        epochs: Epochs trained; of the last stage, where there are several.
        images: Training images.
        seed: Random seed.
        sha256: Digest of `model.safetensors`.
        study: Command that trained them.
        dataset: Data set, by its name on the Hub.
        recipe: Recipe file in `recipes/`; empty where a study trained them in stages of its own.
        schedule: Name for train.py's `--sched`, with a recipe.
        keys: Keys of the recipe in which they differ from it, with their values.
        stages: The stages of the study that trained them without a recipe.
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
    epochs: int
    images: int
    seed: int
    sha256: str
    study: str
    dataset: str
    recipe: str = ""
    schedule: str = ""
    keys: str = ""
    stages: str = ""
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
        top1=90.81,
        top5=98.94,
        mean_per_class=88.9,
        stages="the head for 12 epochs, then blocks.5, blocks.6, conv_head, bn2 and the head with lr 0.01 for "
        "the stages, 0.125 for the head",
        epochs=1,
        images=3030,
        seed=0,
        study="python tools/studies/fine_tuned_ends.py "
        "tools/studies/configs/fine_tuned/caltech101_mobilenetv2.yaml --data-dir 101_ObjectCategories "
        "--weights DIR --heads DIR --record docs/frozen_heads/caltech101_mobilenetv2.json --docs "
        "docs/fine_tuned_ends --save DIR",
        dtype="float16",
        dataset="HuggingFaceM4/Caltech-101",
        start="mobilenetv2_100.quant_in1k",
        params=3221925,
        sha256="27258225642d62cd1378a088c9e49519ced75064e1d637fbe9a83550fdc4f400",
    ),
    Bundled(
        arch="mobilenetv2_100",
        tag="caltech101",
        top1=90.4,
        top5=98.94,
        mean_per_class=88.46,
        stages="the head for 12 epochs, then blocks.5, blocks.6, conv_head, bn2 and the head with lr 0.01 for "
        "the stages, 0.003 for the head",
        epochs=1,
        images=3030,
        seed=0,
        study="python tools/studies/fine_tuned_ends.py "
        "tools/studies/configs/fine_tuned/caltech101_mobilenetv2.yaml --data-dir 101_ObjectCategories "
        "--weights DIR --heads DIR --record docs/frozen_heads/caltech101_mobilenetv2.json --docs "
        "docs/fine_tuned_ends --save DIR",
        dtype="float16",
        dataset="HuggingFaceM4/Caltech-101",
        start="mobilenetv2_100.quant_in1k",
        params=2353253,
        sha256="e8722233d52b749caa2a8aaec7a62a397c7b97ae998d40b208fa9873d5c006cf",
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
        study="timm-gcp train -c fmnist_adju --data-dir FMNIST --model shufflenet_v2_x1_0_gcp --img-size 96 --lr 0.125",
        dataset="fashion_mnist",
        keys="img_size: 96, lr: 0.125",
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
        study="timm-gcp train -c fmnist_adju --data-dir FMNIST --model shufflenet_v2_x1_0 --img-size 96",
        dataset="fashion_mnist",
        keys="img_size: 96",
    ),
)

# The first is what commands take where they need a pair.
PAIRS = (
    BundledPair(
        first="mobilenetv2_100_gcp_d128.caltech101",
        second="mobilenetv2_100.caltech101",
        only_first=177,
        only_second=154,
        images=5647,
        unequal="the rates, lr 0.01 for the stages, 0.125 for the head of the first and lr 0.01 for the "
        "stages, 0.003 for the head of the second, each chosen on held-out images",
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
