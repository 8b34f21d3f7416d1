"""Table 1: the gradients of GAP, GCP and GAP with K-FAC, measured on networks at the end of their training.

The table compares formulas. Here each is computed on one batch: does it point where the network's own gradient points,
and how far is the factor in front of ∂L/∂Z from a multiple of an orthogonal matrix (condition number, flatness)?
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timm_gcp.common.files import write_text
from timm_gcp.landscape.point import GroupedBatchNorm
from timm_gcp.reproduce import paper
from timm_gcp.reproduce.classification import hours
from timm_gcp.reproduce.item import Column, Item, Row, Value
from timm_gcp.reproduce.jobs import Job, checkpoint, data_settings, measure_job, shown, train_job
from timm_gcp.reproduce.runs import Run, classifier
from timm_gcp.reproduce.setup import Setup
from timm_gcp.second_order.gradient import agreement
from timm_gcp.second_order.kfac import condition, conv_factors, flatness, kronecker_spectrum
from timm_gcp.second_order.study import DAMPING, capture, compare
from timm_gcp.train.untouched import set_aside

RESULT = "gradients.json"
IMAGES = 32  # of the batch, drawn from the training images with this seed:
SEED = 0
NETWORKS = ("resnet18", "resnet50")  # that of Section 3.2, and that of the comparison with K-FAC in Table 2
# Rows of the table: method, and how its formula is read (see docs/optimization.md).
READINGS = {
    "GAP": ("GAP", ""),
    "GCP, exact": ("GCP", "Eq. (6), not trimmed"),
    "GCP, printed": ("GCP", "Eq. (7), (8) as printed"),
    "GCP, eigenbasis": ("GCP", "Eq. (7), (8) in the eigenbasis"),
    "GAP + K-FAC": ("GAP + K-FAC", ""),
}


def runs_of(backbone: str) -> tuple[Run, Run]:
    """The networks that are measured: GAP under LR_norm, GCP under LR_fast, which Table 2 sets against K-FAC."""
    return classifier(backbone, "GAP", "norm"), classifier(backbone, "GCP", "fast")


def last_convolution(model: nn.Module) -> nn.Conv2d:
    """The last convolution in registration order, which feeds the pooling of a network with GAP."""
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)][-1]


def average_pooling_rows(model: Any, images: Tensor, targets: Tensor) -> dict[str, dict[str, float]]:
    """The rows of GAP and of GAP with K-FAC.

    Args:
        model: A network with average pooling.
        images: `(B, C, H, W)`.
        targets: `(B,)`.
    """
    convolution, seen = last_convolution(model), {}

    def at_convolution(_module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        seen["inputs"], seen["outputs"] = inputs[0].detach(), output.detach().requires_grad_()
        return seen["outputs"].clone()

    def before_pooling(_module: nn.Module, inputs: Any) -> tuple[Tensor]:
        seen["features"] = inputs[0]
        return (seen["features"],)

    hooks = [
        convolution.register_forward_hook(at_convolution),
        model.global_pool.register_forward_pre_hook(before_pooling),
        model.global_pool.register_forward_hook(lambda _m, _i, output: seen.update(pooled=output)),
    ]
    try:
        with set_aside(model, "train"), torch.enable_grad(), GroupedBatchNorm(1):
            loss = F.cross_entropy(model(images), targets)
            wanted = [seen["outputs"], seen["features"], seen["pooled"]]
            at_outputs, at_features, at_pooled = (part.double() for part in torch.autograd.grad(loss, wanted))
    finally:
        for hook in hooks:
            hook.remove()
    own = at_features.flatten(2).mT  # (B, N, D)
    positions = own.shape[1]
    constant = own.new_full((positions, 1), 1 / positions)  # Cᵀ
    cosine, _ = agreement(constant @ at_pooled.unsqueeze(1), own)
    singular = torch.linalg.svdvals(constant)
    factors = conv_factors(convolution, seen["inputs"].double(), at_outputs)
    inverse = kronecker_spectrum(factors, 1.0, DAMPING)
    return {
        "GAP": _figures(cosine.mean().item(), condition(singular), flatness(singular)),
        "GAP + K-FAC": _figures(None, condition(inverse), flatness(inverse)),
    }


def covariance_pooling_rows(model: nn.Module, images: Tensor, targets: Tensor) -> dict[str, dict[str, float]]:
    """The rows of GCP: Eq. (6) against the layer's own gradient, two readings of Eq. (7) against Eq. (6)."""
    found = compare(capture(model, images, targets))
    return {
        "GCP, exact": _figures(found["cosine_layer"], None, None),
        "GCP, printed": _of_reading(found, "literal_printed"),
        "GCP, eigenbasis": _of_reading(found, "literal_eigen"),
    }


def _of_reading(found: dict[str, float], name: str) -> dict[str, float]:
    return _figures(*(found[f"{part}_{name}"] for part in ("cosine", "condition", "flatness")))


def _figures(cosine: float | None, conditioned: float | None, flat: float | None) -> dict[str, Any]:
    return {"cosine": cosine, "condition": conditioned, "flatness": flat}


def batch_of(loaded: Any, folder: Path, images: int) -> tuple[Tensor, Tensor]:
    """Training images, drawn by `SEED`, as validation makes them."""
    from timm.data import create_dataset, create_transform

    dataset = create_dataset("", root=str(folder), split="train")
    dataset.transform = create_transform(**loaded.data_config, is_training=False)
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(SEED))[:images]
    samples = [dataset[index] for index in order.tolist()]
    targets = torch.tensor([int(target) for _, target in samples], device=loaded.device)
    return torch.stack([image for image, _ in samples]).to(loaded.device), targets


def _folder(backbone: str, setup: Setup) -> Path:
    return setup.output / "gradients" / backbone


def _measurement(backbone: str, setup: Setup) -> Callable[[], None]:
    def measure() -> None:
        from timm_gcp.inference.model import load_model
        from timm_gcp.inference.options import add_model_arguments

        parser = argparse.ArgumentParser()
        add_model_arguments(parser)
        found: dict[str, Any] = {}
        for run, rows in zip(runs_of(backbone), (average_pooling_rows, covariance_pooling_rows), strict=True):
            words = ["--checkpoint", str(checkpoint(run, setup)), *(("--device", setup.device) if setup.device else ())]
            loaded = load_model(parser.parse_args(words), pretrained=False)
            found |= rows(loaded.model, *batch_of(loaded, setup.imagenet, _images(setup)))
        write_text(_folder(backbone, setup) / RESULT, json.dumps(found, indent=1) + "\n")

    return measure


def _images(setup: Setup) -> int:
    return min(IMAGES, setup.limit or IMAGES)


def _plan(rows: Sequence[Row], setup: Setup) -> list[Job]:
    jobs = []
    for backbone in dict.fromkeys(row.backbone for row in rows):
        jobs += [train_job(run, setup) for run in runs_of(backbone)]
        command = ["timm-gcp", "reproduce", "table1", "--models", backbone, "--data-dir", shown(setup.imagenet_source)]
        command += ["--output", shown(setup.output)]
        settings = {**data_settings(setup, setup.imagenet_source), "images": _images(setup)}
        action = _measurement(backbone, setup)
        jobs.append(measure_job(_folder(backbone, setup), tuple(command), settings, RESULT, action))
    return jobs


def _measure(row: Row, setup: Setup) -> Sequence[Value]:
    path = _folder(row.backbone, setup) / RESULT
    if not path.is_file():
        return (None, None, None)
    return tuple(json.loads(path.read_text(encoding="utf-8"))[row.source].values())


ROWS = tuple(
    Row((paper.TITLES[net], method, paper.TABLE_1[method], reading), net, net, (), key)
    for net in NETWORKS
    for key, (method, reading) in READINGS.items()
)

ITEMS = (
    Item(
        name="table1",
        title="Table 1",
        what="the gradients of GAP, GCP and GAP with K-FAC",
        data=("imagenet",),
        labels=("backbone", "method", "gradient, paper", "reading"),
        columns=(
            Column("cosine with the gradient", ".3f", printed=False),
            Column("condition number", ".3g", printed=False),
            Column("flatness", ".3f", printed=False),
        ),
        rows=ROWS,
        plan=_plan,
        measure=_measure,
        cost=lambda: hours(run for net in NETWORKS for run in runs_of(net)),
        claim="formulas: F⁻¹ of GCP takes the place of K-FAC's H⁻¹",
        here=lambda: "not run on ImageNet; a small ShuffleNet V2 on Tiny-ImageNet at 32 px: [study](optimization.md)",
        notes=(
            "The paper prints formulas and no figures. They are computed on 32 training images at the end of training: "
            "GAP under LR_norm, GCP under LR_fast, which Table 2 sets against K-FAC.",
            "Cosine: of GAP's formula and of Eq. (6) with autograd's gradient, of Eq. (7) with Eq. (6). Condition "
            "number and flatness (1 for equal singular values) are of Cᵀ, F⁻¹ and H⁻¹, the last damped by 1e-3.",
        ),
    ),
)
