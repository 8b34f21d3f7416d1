"""Eqs. (6) to (8) on the real features of a GCP network: one row of numbers per probe, and a callback for training.

The layer runs a few Newton–Schulz steps, Eq. (6) is for the exact root, and Eq. (7) trims Eq. (6). So the rows tell
both distances apart: Eq. (6) from the layer's own gradient, and each reading of Eq. (7) from Eq. (6).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timm_gcp.common.files import replacing
from timm_gcp.models.pooling import GlobalCovPool2d
from timm_gcp.second_order.gradient import (
    BASES,
    MASKS,
    agreement,
    exact_gradient,
    from_triangle,
    preconditioner,
    spectrum,
    trimmed_gradient,
)
from timm_gcp.second_order.kfac import Factors, condition, conv_factors, flatness, inverse_spectrum, overlap
from timm_gcp.train.callback import Callback
from timm_gcp.train.untouched import GroupedBatchNorm, LossFunction, set_aside, unwrap

DAMPING = 1e-3  # of K-FAC, relative to a factor's mean eigenvalue: its factors are singular or nearly so
LEADING = 16  # eigenvectors compared between the covariance and K-FAC's output factor


@dataclass(frozen=True)
class Captured:
    """What one pass over a batch left behind, float64.

    Attributes:
        features: `(B, N, D)`, X: what the covariance is taken of.
        grad_x: `(B, N, D)`, gradient of each sample's loss, as the layer computes it.
        grad_z: `(B, D, D)`, gradient with respect to the pooled matrix.
        factors: K-FAC's, of the last convolution.
    """

    features: Tensor
    grad_x: Tensor
    grad_z: Tensor
    factors: Factors


def find_pooling(model: nn.Module) -> GlobalCovPool2d:
    """The covariance pooling layer of a model.

    Raises:
        ValueError: There is none, or it has no reduction, whose convolution is the last one.
    """
    for module in model.modules():
        if isinstance(module, GlobalCovPool2d):
            if not len(module.reduction):
                raise ValueError("the pooling layer has no reduction (reduce_dim=None), hence no last convolution.")
            return module
    raise ValueError(f"{type(model).__name__} has no GlobalCovPool2d: choose a *_gcp model, or swap_pooling(model).")


def capture(model: nn.Module, images: Tensor, targets: Tensor, loss: LossFunction = F.cross_entropy) -> Captured:
    """Run a batch through the model, in training-mode batch-norm, and leave the model as it was.

    Args:
        model: a classifier with `GlobalCovPool2d`.
        images: `(B, C, H, W)`.
        targets: `(B,)`, or what `loss` takes.
        loss: mean loss of a batch.

    Raises:
        ValueError: A model without covariance pooling.
    """
    model = unwrap(model)
    pooling = find_pooling(model)
    convolution: Any = pooling.reduction[-1].conv
    seen: dict[str, Tensor] = {}

    def at_convolution(_module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        seen["inputs"] = inputs[0].detach()
        seen["outputs"] = output.detach().requires_grad_()  # the backward pass need not go further than this
        return seen["outputs"].clone()

    hooks = [
        convolution.register_forward_hook(at_convolution),
        pooling.reduction.register_forward_hook(lambda _m, _i, output: seen.update(features=output)),
        pooling.register_forward_hook(lambda _m, _i, output: seen.update(pooled=output)),
    ]
    try:
        with set_aside(model, "train"), torch.enable_grad(), GroupedBatchNorm(1):
            value = loss(model(images), targets)
            gradients = torch.autograd.grad(value, [seen["outputs"], seen["features"], seen["pooled"]])
    finally:
        for hook in hooks:
            hook.remove()
    count = len(images)
    outputs, grad_x, pooled = (gradient.double() * count for gradient in gradients)  # of each sample's own loss
    return Captured(
        seen["features"].detach().double().flatten(2).mT,
        grad_x.flatten(2).mT,
        from_triangle(pooled, pooling.dim),
        conv_factors(convolution, seen["inputs"].double(), outputs / count),
    )


def compare(captured: Captured, damping: float = DAMPING) -> dict[str, float]:
    """One row: mean cosine and norm ratio of the gradients, and how flat the pre-conditioners' spectra are.

    Keys: `cosine_layer` and `ratio_layer` for Eq. (6) against the layer's gradient; `cosine_MASK_BASIS` and
    `ratio_MASK_BASIS` for Eq. (7) against Eq. (6); `condition_*` and `flatness_*` for the singular values of F⁻¹ in
    each reading and for K-FAC's inverse factors; `rank` of the covariance; `overlap` of the leading eigenspaces of the
    output's covariance and of K-FAC's G, with `overlap_chance` for unrelated ones.
    """
    features, grad_z = captured.features, captured.grad_z
    truth = exact_gradient(features, grad_z)
    row: dict[str, float] = {}

    def add(name: str, estimate: Tensor, reference: Tensor) -> None:
        cosine, ratio = agreement(estimate, reference)
        row[f"cosine_{name}"], row[f"ratio_{name}"] = cosine.mean().item(), ratio.mean().item()

    add("layer", truth, captured.grad_x)
    for mask in MASKS:
        for basis in BASES:
            name = f"{mask}_{basis}"
            add(name, trimmed_gradient(features, grad_z, mask, basis), truth)
            singular = torch.linalg.svdvals(preconditioner(features, 1.0, mask, basis))
            row[f"condition_{name}"] = sum(condition(values) for values in singular) / len(singular)
            row[f"flatness_{name}"] = sum(flatness(values) for values in singular) / len(singular)
    for name, factor in (("inputs", captured.factors.inputs), ("outputs", captured.factors.outputs)):
        values = inverse_spectrum(factor, damping)
        row[f"condition_kfac_{name}"], row[f"flatness_kfac_{name}"] = condition(values), flatness(values)
    row["rank"] = (spectrum(features).values > 0).sum(-1).double().mean().item()
    centred = features - features.mean(dim=1, keepdim=True)
    covariance = (centred.mT @ centred).mean(dim=0) / features.shape[1]
    count = min(LEADING, len(covariance))
    row["overlap"] = overlap(covariance, captured.factors.outputs, count)
    row["overlap_chance"] = count / len(covariance)
    return row


def spectra(captured: Captured, damping: float = DAMPING) -> dict[str, Tensor]:
    """Descending spectra for a figure: F⁻¹'s singular values (mean over samples) and K-FAC's inverse factors."""
    curves = {}
    for mask in MASKS:
        for basis in BASES:
            factor = preconditioner(captured.features, 1.0, mask, basis)
            curves[f"{mask}_{basis}"] = torch.linalg.svdvals(factor).mean(dim=0)
    curves["kfac_inputs"] = inverse_spectrum(captured.factors.inputs, damping)
    curves["kfac_outputs"] = inverse_spectrum(captured.factors.outputs, damping)
    return curves


class SecondOrderCallback(Callback):
    """Writes a row of `compare` per probed training batch to a CSV; the training run is not changed by it.

    Args:
        path: the CSV; one that an interrupted run left is continued.
        every: training steps from probe to probe.
        images: probe only so many images of the batch.
        damping: K-FAC's.
        spectra_path: a CSV of the last probe's `spectra`, a column each, shorter ones filled up with NaN.

    Raises:
        ValueError: Numbers below 1.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        every: int = 500,
        images: int = 16,
        damping: float = DAMPING,
        spectra_path: str | Path | None = None,
    ) -> None:
        if every < 1 or images < 1:
            raise ValueError(f"every and images must be at least 1; got {every} and {images}.")
        self.path, self.every, self.images, self.damping = Path(path), every, images, damping
        self.spectra_path = spectra_path
        self.rows: list[dict[str, float]] = list(read_rows(self.path)) if self.path.is_file() else []

    def on_update(self, step: int, model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
        """Measure once and rewrite the CSV files."""
        images, targets = (part[: self.images] for part in batch)
        captured = capture(model, images, targets)
        row = {"step": float(step), **compare(captured, self.damping)}
        self.rows = [old for old in self.rows if old["step"] < step] + [row]
        write_rows(self.path, self.rows)
        if self.spectra_path is not None:
            columns = {name: values.tolist() for name, values in spectra(captured, self.damping).items()}
            places = zip_longest(*columns.values(), fillvalue=float("nan"))
            write_rows(self.spectra_path, [dict(zip(columns, place, strict=True)) for place in places])


def write_rows(path: str | Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Write rows of equal keys as a CSV, in one move."""
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: str | Path) -> list[dict[str, float]]:
    """Read a CSV of numbers.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A cell is not a number.
    """
    with Path(path).open(newline="", encoding="utf-8") as file:
        try:
            return [{key: float(cell) for key, cell in row.items()} for row in csv.DictReader(file)]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a CSV of numbers: {error}. Delete it and measure again.") from error
