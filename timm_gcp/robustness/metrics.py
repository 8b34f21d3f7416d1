"""The scores of ImageNet-C and ImageNet-P as pure functions on arrays.

Definitions: Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
ICLR 2019, sections 4.1 to 4.3; errors are shares (0 to 1), scores are percent, lower is better.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

TOP = 5  # the top-5 distance looks at the first five classes of a ranking


def _per_corruption(errors: ArrayLike, name: str) -> np.ndarray:
    """Return the mean error of each corruption from `(K,)` means or `(K, S)` errors by severity."""
    array = np.asarray(errors, dtype=np.float64)
    if array.ndim not in (1, 2) or array.size == 0:
        raise ValueError(f"{name} must be (corruptions,) means or (corruptions, severities); got shape {array.shape}")
    if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
        raise ValueError(f"{name} must be shares between 0 and 1; got values from {array.min()} to {array.max()}")
    return array if array.ndim == 1 else array.mean(axis=1)


def _same_length(errors: np.ndarray, baseline: np.ndarray) -> None:
    if errors.shape != baseline.shape:
        raise ValueError(f"errors cover {len(errors)} corruptions, the baseline {len(baseline)}: they must be the same")


def corruption_error(errors: ArrayLike, baseline: ArrayLike) -> np.ndarray:
    """Return CE in percent: a corruption's error summed over severities, over the baseline's sum.

    Args:
        errors: `(K, S)` top-1 errors by corruption and severity, or `(K,)` means over the severities.
        baseline: the baseline's, in either form, over the same corruptions and severities.

    Returns:
        `(K,)`.

    Raises:
        ValueError: Shapes that don't fit, values outside 0 to 1, or a baseline without any error.
    """
    own, base = _per_corruption(errors, "errors"), _per_corruption(baseline, "baseline")
    _same_length(own, base)
    if (base == 0).any():
        raise ValueError(f"the baseline makes no error on corruptions {np.flatnonzero(base == 0).tolist()}: no ratio")
    return 100 * (own / base)  # sums over the same number of severities: their ratio is that of the means


def relative_corruption_error(
    errors: ArrayLike, clean_error: float, baseline: ArrayLike, baseline_clean_error: float
) -> np.ndarray:
    """Return relative CE in percent: what a corruption adds to the clean error, over what it adds to the baseline's.

    Args:
        errors: as for `corruption_error`.
        clean_error: top-1 error on the clean images.
        baseline: as for `corruption_error`.
        baseline_clean_error: the baseline's error on the clean images.

    Returns:
        `(K,)`; negative where a corruption lowers the error.

    Raises:
        ValueError: As `corruption_error`, or a corruption adds nothing to the baseline's error.
    """
    own, base = _per_corruption(errors, "errors"), _per_corruption(baseline, "baseline")
    _same_length(own, base)
    for name, value in (("clean_error", clean_error), ("baseline_clean_error", baseline_clean_error)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be a share between 0 and 1; got {value}")
    added = base - baseline_clean_error
    if (added <= 0).any():
        raise ValueError(
            f"corruptions {np.flatnonzero(added <= 0).tolist()} add nothing to the baseline's clean error "
            f"{baseline_clean_error}: relative errors aren't defined"
        )
    return 100 * ((own - clean_error) / added)


def ranking(logits: ArrayLike) -> np.ndarray:
    """Return the classes from best to worst; of equal logits the lower class number comes first.

    Args:
        logits: `(..., C)`.

    Returns:
        `(..., C)` class numbers; `[..., 0]` is the prediction.

    Raises:
        ValueError: A logit isn't a number, since then there is no order.
    """
    array = np.asarray(logits)
    if np.isnan(array).any():
        raise ValueError("logits hold NaN: they can't be ranked")
    return np.argsort(-array.astype(np.float64), axis=-1, kind="stable")


def frame_pairs(frames: int, noise: bool, step: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return which frames are compared: positions of the references and of the frames held against them.

    Args:
        frames: number of frames of the clip.
        noise: every frame against the first (noise clips); otherwise against the one `step` frames before.
        step: the difficulty, for clips without noise; noise clips always use all frames.

    Raises:
        ValueError: A step under 1 or a clip without a pair.
    """
    if step < 1:
        raise ValueError(f"step must be 1 or more; got {step}")
    apart = 1 if noise else step
    if frames <= apart:
        raise ValueError(f"a clip of {frames} frames has no two frames {apart} apart")
    later = np.arange(apart, frames)
    return (np.zeros_like(later) if noise else later - apart), later


def flip_probability(predictions: ArrayLike, noise: bool, step: int = 1) -> float:
    """Return the share of compared frames whose predicted class differs, mean over clips.

    Args:
        predictions: `(..., T)` class numbers, T frames.
        noise: see `frame_pairs`.
        step: see `frame_pairs`.
    """
    classes = np.asarray(predictions)
    reference, other = frame_pairs(classes.shape[-1], noise, step)
    return float((classes[..., reference] != classes[..., other]).mean())


def top5_distance(rankings: ArrayLike, noise: bool, step: int = 1) -> float:
    """Return the top-5 distance between the rankings of compared frames, mean over pairs and clips.

    The class that is i-th in the reference (i = 1 to 5) and r-th in the other frame contributes
    |(i - 1) - min(r - 1, 5)|, which is the sum over ranks in the definition of section 4.3, carried out. With fewer
    than five classes, all of them are looked at.

    Args:
        rankings: `(..., T, C)` class numbers from best to worst, see `ranking`.
        noise: see `frame_pairs`.
        step: see `frame_pairs`.
    """
    order = np.asarray(rankings)
    reference, other = frame_pairs(order.shape[-2], noise, step)
    places = np.empty_like(order)  # the place of each class: the inverse permutation
    np.put_along_axis(places, order, np.broadcast_to(np.arange(order.shape[-1], dtype=order.dtype), order.shape), -1)
    first = order[..., reference, :TOP]
    moved = np.minimum(np.take_along_axis(places[..., other, :], first, axis=-1), TOP).astype(np.int64)
    return float(np.abs(moved - np.arange(first.shape[-1])).sum(axis=-1).mean())


def mean_ratio(values: ArrayLike, baseline: ArrayLike) -> float:
    """Return the mean over perturbations of value / baseline, in percent: mFR of flip probabilities, mT5D of distances.

    Args:
        values: `(P,)` flip probabilities or top-5 distances.
        baseline: `(P,)` the baseline's.

    Raises:
        ValueError: The lengths differ or the baseline holds a zero.
    """
    own, base = np.asarray(values, dtype=np.float64), np.asarray(baseline, dtype=np.float64)
    if own.ndim != 1 or own.size == 0 or own.shape != base.shape:
        raise ValueError(f"values and baseline must be 1-D and equally long; got shapes {own.shape} and {base.shape}")
    if (base <= 0).any():
        raise ValueError(f"the baseline never changes on perturbations {np.flatnonzero(base <= 0).tolist()}: no ratio")
    return float(100 * (own / base).mean())
