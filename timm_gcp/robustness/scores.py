"""From result files to scores: what may be called mCE, mFR or mT5D, and what may not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from timm_gcp.robustness import metrics
from timm_gcp.robustness.corruptions import EXTRA_CORRUPTIONS, SEVERITIES, TEST_CORRUPTIONS
from timm_gcp.robustness.perturbations import EXTRA_PERTURBATIONS, TEST_PERTURBATIONS

# In the order of the tables; the last two of each benchmark stand in where a part is missing.
C_SCORES = {
    "mCE": "mCE",
    "relative_mCE": "relative mCE",
    "partial_CE": "mean CE of what was measured",
    "partial_relative_CE": "mean relative CE of what was measured",
}
P_SCORES = {
    "mFR": "mFR",
    "mT5D": "mT5D",
    "partial_FR": "mean flip rate of what was measured",
    "partial_T5D": "mean T5D ratio of what was measured",
}


def errors_of(result: dict[str, Any], name: str, severities: Sequence[int]) -> list[float] | float | None:
    """Return a corruption's errors at these severities; its published mean if that is all there is and all are asked.

    Returns None where the result doesn't hold them.
    """
    errors = result["corruption_error"].get(name)
    if not isinstance(errors, dict):
        return errors if tuple(severities) == SEVERITIES else None
    if any(str(severity) not in errors for severity in severities):
        return None
    return [errors[str(severity)] for severity in severities]


def measured(result: dict[str, Any], name: str) -> list[int]:
    """Return the severities at which a corruption was measured."""
    errors = result["corruption_error"].get(name, {})
    return list(SEVERITIES) if not isinstance(errors, dict) else [s for s in SEVERITIES if str(s) in errors]


def score_c(result: dict[str, Any], baseline: dict[str, Any] | None) -> dict[str, Any]:
    """Score one model on ImageNet-C.

    Args:
        result: content of its result file.
        baseline: content of the baseline's, or None for unnormalised values only.

    Returns:
        `mean_error` by corruption and over the test corruptions (unnormalised, shares), `ce` and `relative_ce` by
        corruption (percent), `mCE` and `relative_mCE` if all test corruptions and severities were measured, else
        `partial_CE` and `partial_relative_CE`, and `notes` on what isn't defined: pairs of a reason and a corruption.
    """
    names = [name for name in TEST_CORRUPTIONS + EXTRA_CORRUPTIONS if measured(result, name)]
    means = {name: float(np.mean(np.asarray(errors_of(result, name, measured(result, name))))) for name in names}
    test = [name for name in TEST_CORRUPTIONS if name in means]
    complete = all(tuple(measured(result, name)) == SEVERITIES for name in TEST_CORRUPTIONS)
    scores: dict[str, Any] = {
        "complete": complete,
        "clean_error": result.get("clean_error"),
        "corruption_mean_error": means,
        "mean_error": float(np.mean([means[name] for name in test])) if test else None,
        "ce": {},
        "relative_ce": {},
        "notes": [],
    }
    if baseline is None:
        return scores
    for name in names:
        _score_corruption(scores, result, baseline, name)
    relative_known = result.get("clean_error") is not None and baseline.get("clean_error") is not None
    if not relative_known:
        whose = "this model's" if result.get("clean_error") is None else "the baseline's"
        scores["notes"].append((f"relative scores need {whose} error on clean images", ""))
    for key, by_corruption in (("CE", scores["ce"]), ("relative", scores["relative_ce"])):
        values = [by_corruption[name] for name in test if name in by_corruption]
        if not values:
            continue
        whole = complete and len(values) == len(TEST_CORRUPTIONS)
        full, part = ("mCE", "partial_CE") if key == "CE" else ("relative_mCE", "partial_relative_CE")
        scores[full if whole else part] = float(np.mean(values))
    return scores


def _score_corruption(scores: dict[str, Any], result: dict[str, Any], baseline: dict[str, Any], name: str) -> None:
    severities = measured(result, name)
    base = errors_of(baseline, name, severities)
    if base is None:
        told = ", ".join(map(str, severities))
        scores["notes"].append((f"the baseline has no figures for severities {told}", name))
        return
    errors = errors_of(result, name, severities)
    own, reference = np.array([errors]), np.array([base])  # (1, severities), or (1,) of published means
    if not np.mean(base):
        scores["notes"].append(("the baseline makes no error, so there is no ratio", name))
        return
    scores["ce"][name] = float(metrics.corruption_error(own, reference)[0])
    clean, base_clean = result.get("clean_error"), baseline.get("clean_error")
    if clean is None or base_clean is None:
        return
    if np.mean(base) <= base_clean:
        reason = "nothing is added to the baseline's clean error, so the relative CE isn't defined"
        scores["notes"].append((reason, name))
        return
    scores["relative_ce"][name] = float(metrics.relative_corruption_error(own, clean, reference, base_clean)[0])


def score_p(result: dict[str, Any], baseline: dict[str, Any] | None) -> dict[str, Any]:
    """Score one model on ImageNet-P.

    Args:
        result: content of its result file.
        baseline: content of the baseline's, or None for unnormalised values only.

    Returns:
        `mean_flip_probability` and `mean_top5_distance` over the test perturbations (unnormalised), `flip_rate` and
        `t5d` by perturbation (percent of the baseline's), `mFR` and `mT5D` if all ten were measured, else
        `partial_FR` and `partial_T5D`, and `notes`, pairs of a reason and a perturbation.

    Raises:
        ValueError: The baseline was measured at another difficulty.
    """
    own, base = (r.get("settings", {}).get("difficulty") if r else None for r in (result, baseline))
    if baseline is not None and own != base:
        raise ValueError(f"the baseline was measured at difficulty {base}, this model at {own}: they must be the same")
    test = [name for name in TEST_PERTURBATIONS if name in result["flip_probability"]]
    complete = len(test) == len(TEST_PERTURBATIONS)
    scores: dict[str, Any] = {"complete": complete, "notes": []}
    for key, mean, ratio, full, part in (
        ("flip_probability", "mean_flip_probability", "flip_rate", "mFR", "partial_FR"),
        ("top5_distance", "mean_top5_distance", "t5d", "mT5D", "partial_T5D"),
    ):
        values = result[key]
        scores[mean] = float(np.mean([values[name] for name in test])) if test else None
        scores[ratio] = {}
        if baseline is None:
            continue
        for name in (n for n in TEST_PERTURBATIONS + EXTRA_PERTURBATIONS if n in values):
            reference = baseline[key].get(name)
            if not reference:
                why = "has no figures" if reference is None else "never changes, so there is no ratio"
                scores["notes"].append((f"{key.replace('_', ' ')}: the baseline {why}", name))
                continue
            scores[ratio][name] = metrics.mean_ratio([values[name]], [reference])
        known = [scores[ratio][name] for name in test if name in scores[ratio]]
        if known:
            scores[full if complete and len(known) == len(test) else part] = float(np.mean(known))
    return scores
