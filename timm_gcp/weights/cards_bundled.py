"""Sections of the cards of bundled weights: how they were trained, what they score beside their twin, their limits."""

from __future__ import annotations

from timm_gcp.common.paired import Pair
from timm_gcp.weights.bundled import PAIRS, Bundled

# What is said of a data set: the set and its licence, and which of its images were used for what.
_DATA = {
    "fashion_mnist": "Fashion-MNIST (MIT licence), {images:,} training images; the figures above are of its 10,000 "
    "test images, on which crops, rates and sizes were compared, but no epoch chosen",
    "HuggingFaceM4/Caltech-101": "Caltech-101 (Li, Andreetto, Ranzato and Perona, 2022, CaltechDATA, "
    "https://doi.org/10.22002/D1.20086), its 101 classes without the background: of each, 30 images drawn by seed "
    "{seed}, {images:,} in all, to train on, after rates had been chosen with a tenth of them held out; the figures "
    "above are of all other images, on which nothing was chosen",
}
_LICENCE_OF_DATA = {
    "HuggingFaceM4/Caltech-101": "CC BY 4.0 by the CaltechDATA record as others quote it, and by the mirror "
    "HuggingFaceM4/Caltech-101 on the Hub, whose page says so; the record itself has not been opened for this card, "
    "and another mirror, flwrlabs/caltech101, gives the licence as unknown. The package holds none of the images",
}
_START = {
    "mobilenetv2_100.quant_in1k": "MobileNetV2 trained on ImageNet, taken from the 8-bit file "
    "`mobilenet_v2_1.0_224_quant.tflite` of https://github.com/google-coral/test_data, whose LICENSE is Apache-2.0. "
    "That file has its batch norm folded into the convolutions; the statistics were measured again on the training "
    "images of Imagenette. The classifier started afresh; the reduction, where there is one, from the principal "
    "components of the features of the training images",
}
_LIMITS = {
    "fashion_mnist": "Trained on small grey images of clothing, light on black. A photograph, or dark clothing on a "
    "light ground, is something else to it: invert such an image first, and do not trust the outcome.",
    "HuggingFaceM4/Caltech-101": "It names one of 101 classes whatever the image shows; that none of them fits, it "
    "cannot say. Its training images show one object each, large and mostly in the middle, often from one side only. "
    "The classes are as Caltech-101 has them: `Faces` and `Faces_easy` are the same few people, which makes it "
    "neither a face detector nor a means to recognise anybody. Start weights from ImageNet bring ImageNet's biases.",
}


def training(shipped: Bundled) -> str:
    """The section Training: data, start, recipe, file and licence as a list."""
    page = "docs/evidence.md" if shipped.start else "docs/fashion_mnist.md"
    lines = [f"Data: {_DATA[shipped.dataset].format(images=shipped.images, seed=shipped.seed)}"]
    if shipped.dataset in _LICENCE_OF_DATA:
        lines.append(f"Licence of the images: {_LICENCE_OF_DATA[shipped.dataset]}")
    if shipped.start:
        lines.append(f"Start: {_START[shipped.start]}")
    lines.append(f"{_how(shipped)}, seed {shipped.seed}, last epoch, as `{shipped.study}` runs it; see `{page}`")
    if not shipped.start:
        lines.append(
            "Initial values: other than the authors', which the model starts from when it is created untrained"
        )
    lines += [
        f"Stored as {shipped.dtype}, batch-norm statistics as float32; SHA-256 of `model.safetensors`: "
        f"`{shipped.sha256}`",
        f"Licence: {shipped.licence}",
    ]
    return "\n".join(f"- {line}" for line in lines)


def _how(shipped: Bundled) -> str:
    if shipped.stages:
        return f"In two stages: {shipped.stages}, {shipped.epochs} epochs"
    changes = f" with `{shipped.keys}`" if shipped.keys else ""
    return f"Recipe `{shipped.recipe}`{changes} (`--sched {shipped.schedule}`), {shipped.epochs} epochs"


def beside_twin(name: str) -> str:
    """The section on the pair that `arch.tag` is one of; empty where it is one of none."""
    found = next((pair for pair in PAIRS if name in (pair.first, pair.second)), None)
    if found is None:
        return ""
    pair = Pair(found.only_first, found.only_second)
    return (
        f"`{found.first}` and `{found.second}` differ in more than the pooling: {found.unequal}. Of {found.images:,} "
        f"test images the first alone classifies {pair.only_first} correctly, the second alone {pair.only_second} "
        f"(McNemar's exact test: p = {pair.p_value:.2g}; one training seed each). Counted by `{found.counted}`."
    )


def limits(shipped: Bundled) -> str:
    """The section Limits."""
    return _LIMITS[shipped.dataset]
