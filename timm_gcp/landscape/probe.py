"""The landscape probe of Section 3.2: how loss and gradient change along the gradient, at one point of training.

X is the output of a layer (the first convolution unless another is named) for one batch, L the mean loss of that batch.
For each step size η the probe evaluates, with one forward and one backward pass,

    Δl(η) = L(X + η∇L(X))                         Eq. (3), loss Lipschitzness
    Δg(η) = ‖∇L(X) − ∇L(X + η∇L(X))‖₂             Eq. (4), gradient predictiveness
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timm_gcp.landscape.point import LandscapePoint, find_layer
from timm_gcp.train.untouched import LossFunction, set_aside, unwrap

BATCH_NORM_MODES = ("train", "eval")
IMAGES_PER_PASS = 256  # default bound on step sizes x batch, chosen for memory rather than for speed


@dataclass(frozen=True)
class Landscape:
    """What one probe saw, float64 on the CPU.

    Attributes:
        step_sizes: `(E,)` values of η.
        loss: L(X).
        gradient_norm: ‖∇L(X)‖₂ over the whole batch.
        losses: `(E,)` values of Δl.
        gradient_changes: `(E,)` values of Δg.
    """

    step_sizes: Tensor
    loss: float
    gradient_norm: float
    losses: Tensor
    gradient_changes: Tensor


def equal_steps(low: float, high: float, points: int = 50) -> Tensor:
    """`points` equally spaced step sizes from `low` to `high`, both included, as a float64 tensor (Appendix I).

    Raises:
        ValueError: Not 0 < low < high, both finite, or fewer than 2 points.
    """
    if not 0 < low < high < float("inf"):
        raise ValueError(f"step sizes need 0 < low < high, both finite; got low={low}, high={high}. Lower the first.")
    if points < 2:
        raise ValueError(f"points must be at least 2 to span a range; got {points}. The paper uses 50.")
    return torch.linspace(low, high, points, dtype=torch.float64)


def _check(images: Tensor, targets: Tensor, batch_norm: str) -> None:
    if batch_norm not in BATCH_NORM_MODES:
        raise ValueError(f"batch_norm must be one of {', '.join(BATCH_NORM_MODES)}; got {batch_norm!r}.")
    if len(images) == 0 or len(images) != len(targets):
        raise ValueError(f"need as many targets as images, at least one; got {len(images)} and {len(targets)}.")


def probe(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    step_sizes: Tensor,
    *,
    layer: str | None = None,
    batch_norm: str = "train",
    chunk_size: int | None = None,
    double: bool = False,
    loss: LossFunction = F.cross_entropy,
) -> Landscape:
    """Probe the landscape of `model` at one batch. Parameters, their gradients, buffers and modes stay as they were.

    Args:
        model: any classifier; wrappers of `torch.compile` and data parallelism are looked through.
        images: `(B, C, H, W)`.
        targets: `(B,)` class indices, or what else `loss` takes.
        step_sizes: `(E,)` values of η, see `equal_steps`.
        layer: name of the module whose output is X; the first convolution by default.
        batch_norm: `"train"` normalises by the batch's own statistics, `"eval"` by the running ones. Running
            statistics are left untouched in both.
        chunk_size: step sizes per pass; a matter of memory. Results do not depend on it beyond the rounding of the
            convolution kernels, which a badly conditioned network amplifies in float32.
        double: probe a float64 copy of the model; results are then independent of `chunk_size` to 1e-6 and better.
        loss: mean loss over a batch; the gradient, and with it the meaning of η, scales with 1/B.

    Raises:
        ValueError: An unknown layer or mode, a layer that is used twice or not at all, or mismatched sizes.
    """
    _check(images, targets, batch_norm)
    chunk = chunk_size if chunk_size is not None else max(1, IMAGES_PER_PASS // len(images))
    if chunk < 1:
        raise ValueError(f"chunk_size must be at least 1; got {chunk_size}.")
    model = unwrap(model)
    if double:
        model, images = copy.deepcopy(model).double(), images.double()
    with set_aside(model, batch_norm):
        point = LandscapePoint(model, find_layer(model, layer), images, targets, loss)
        parts = [point.along_gradient(part) for part in step_sizes.split(chunk)]
    losses, changes = (torch.cat(column) for column in zip(*parts, strict=True))
    norm = point.gradient.double().norm().item()
    return Landscape(step_sizes.double().cpu(), point.loss.item(), norm, losses, changes)


def largest_stable_step(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    low: float,
    *,
    factor: float = 2.0,
    layer: str | None = None,
    batch_norm: str = "train",
    loss: LossFunction = F.cross_entropy,
) -> float:
    """The largest η, to 2%, at which a step along the gradient is still a perturbation of X and the loss stays bounded.

    The paper takes the right end of the range "as large as possible while ensuring stable training of GAP" and does
    not say how that was decided. Here stable means both that L(X + η∇L(X)) is finite and at most `factor` times the
    larger of L(X) and the loss of a uniform guess, and that ‖η∇L(X)‖₂ is at most ‖X‖₂. The second condition matters
    since batch-norm makes the loss level off where the step has replaced X altogether, so that the first never fails.
    η is doubled from `low` until one of them fails, then bisected.

    Raises:
        ValueError: `factor` is 1 or less, or `low` is already unstable.
    """
    _check(images, targets, batch_norm)
    if factor <= 1:
        raise ValueError(f"factor must be above 1, since the loss rises along its gradient; got {factor}.")
    model = unwrap(model)
    with set_aside(model, batch_norm):
        point = LandscapePoint(model, find_layer(model, layer), images, targets, loss)
        limit = factor * max(point.loss.item(), point.uniform_loss.item())

        longest = (point.x.double().norm() / point.gradient.double().norm()).item()

        def stable(step: float) -> bool:
            return step <= longest and point.along_gradient(torch.tensor([step]), backward=False)[0].item() <= limit

        if not stable(low):
            raise ValueError(
                f"step size {low} is already unstable: the loss passes {limit:.3g} or the step is longer than X "
                f"(at {longest:.3g}). Lower the step size or raise factor."
            )
        good, bad = low, 2 * low
        while stable(bad):
            good, bad = bad, 2 * bad
        while bad > 1.02 * good:
            middle = (good * bad) ** 0.5
            good, bad = (middle, bad) if stable(middle) else (good, middle)
    return good
