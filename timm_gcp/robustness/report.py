"""Tables of robustness results: Markdown to read, CSV to work with."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from timm_gcp.robustness.corruptions import EXTRA_CORRUPTIONS, TEST_CORRUPTIONS
from timm_gcp.robustness.perturbations import EXTRA_PERTURBATIONS, TEST_PERTURBATIONS
from timm_gcp.robustness.scores import C_SCORES, P_SCORES

ABSENT = "–"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, first column left, the others right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def percent(share: float | None) -> str:
    """Format a share as percent."""
    return ABSENT if share is None else f"{100 * share:.2f}"


def number(value: float | None, digits: int = 1) -> str:
    """Format a score."""
    return ABSENT if value is None else f"{value:.{digits}f}"


def _paragraphs(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _notes(results: Sequence[dict[str, Any]], scores: Sequence[dict[str, Any]]) -> str:
    """Return one line per model and reason; models with the same notes share their lines."""
    told: dict[str, list[str]] = {}
    for result, score in zip(results, scores, strict=True):
        subjects: dict[str, list[str]] = {}
        for reason, subject in score["notes"]:
            subjects.setdefault(reason, []).append(subject)
        for reason, names in subjects.items():
            told.setdefault(f"{reason}: {', '.join(names)}".rstrip(": "), []).append(result["model"])
    return "\n".join(f"- {', '.join(models)}: {line}" for line, models in told.items())


def _against(baseline: dict[str, Any] | None) -> str:
    if baseline is None:
        return "No baseline: values are unnormalised."
    return f"Normalised scores: percent of the baseline's, {baseline['model']}. Lower is better throughout."


def _used(names: dict[str, str], scores: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {key: title for key, title in names.items() if any(key in score for score in scores)}


def markdown_c(
    results: Sequence[dict[str, Any]], scores: Sequence[dict[str, Any]], baseline: dict[str, Any] | None
) -> str:
    """Return the ImageNet-C report of several models as Markdown."""
    models = [result["model"] for result in results]
    used = _used(C_SCORES, scores)
    summary = table(
        ["model", "clean error %", "mean corruption error %, unnormalised", *used.values()],
        [
            [model, percent(s["clean_error"]), percent(s["mean_error"]), *(number(s.get(key)) for key in used)]
            for model, s in zip(models, scores, strict=True)
        ],
    )

    def by_corruption(names: Sequence[str]) -> str:
        present = [name for name in names if any(name in s["corruption_mean_error"] for s in scores)]
        if not present:
            return ""
        header = ["corruption"] + [f"{model}: error %" for model in models]
        header += [f"{model}: CE" for model in models if baseline is not None]
        rows = []
        for name in present:
            row = [name] + [percent(s["corruption_mean_error"].get(name)) for s in scores]
            rows.append(row + [number(s["ce"].get(name)) for s in scores if baseline is not None])
        return table(header, rows)

    extra = by_corruption(EXTRA_CORRUPTIONS)
    return _paragraphs(
        "## ImageNet-C" if all(s["complete"] for s in scores) else "## ImageNet-C, in part",
        _against(baseline),
        summary,
        "Mean over the severities measured, by test corruption:",
        by_corruption(TEST_CORRUPTIONS),
        extra and "Extra corruptions, in no score:",
        extra,
        _notes(results, scores),
    )


def markdown_p(
    results: Sequence[dict[str, Any]], scores: Sequence[dict[str, Any]], baseline: dict[str, Any] | None
) -> str:
    """Return the ImageNet-P report of several models as Markdown."""
    models = [result["model"] for result in results]
    used = _used(P_SCORES, scores)
    summary = table(
        ["model", "mean flip probability %, unnormalised", "mean top-5 distance, unnormalised", *used.values()],
        [
            [
                model,
                percent(s["mean_flip_probability"]),
                number(s["mean_top5_distance"], 3),
                *(number(s.get(key)) for key in used),
            ]
            for model, s in zip(models, scores, strict=True)
        ],
    )

    def by_perturbation(names: Sequence[str]) -> str:
        present = [name for name in names if any(name in r["flip_probability"] for r in results)]
        if not present:
            return ""
        header = ["perturbation"] + [f"{model}: flips %" for model in models]
        header += [f"{model}: top-5 distance" for model in models]
        rows = [
            [name]
            + [percent(r["flip_probability"].get(name)) for r in results]
            + [number(r["top5_distance"].get(name), 3) for r in results]
            for name in present
        ]
        return table(header, rows)

    extra = by_perturbation(EXTRA_PERTURBATIONS)
    difficulty = results[0].get("settings", {}).get("difficulty", 1)
    return _paragraphs(
        "## ImageNet-P" if all(s["complete"] for s in scores) else "## ImageNet-P, in part",
        f"Difficulty {difficulty}. {_against(baseline)}",
        summary,
        "By test perturbation, unnormalised:",
        by_perturbation(TEST_PERTURBATIONS),
        extra and "Extra perturbations, in no score:",
        extra,
        _notes(results, scores),
    )


def csv_c(results: Sequence[dict[str, Any]]) -> str:
    """Return one CSV row per model, corruption and severity; errors are shares."""
    rows: list[list[Any]] = []
    for result in results:
        if result.get("clean_error") is not None:
            rows.append([result["model"], "clean", "clean", 0, result["clean_error"], _images(result, "clean/0")])
        for group, names in (("test", TEST_CORRUPTIONS), ("extra", EXTRA_CORRUPTIONS)):
            for name in names:
                for severity, error in sorted(result["corruption_error"].get(name, {}).items()):
                    count = _images(result, f"{name}/{severity}")
                    rows.append([result["model"], group, name, severity, error, count])
    return _csv(["model", "group", "corruption", "severity", "error", "images"], rows)


def csv_p(results: Sequence[dict[str, Any]]) -> str:
    """Return one CSV row per model and perturbation; flip probabilities are shares."""
    rows: list[list[Any]] = []
    for result in results:
        for group, names in (("test", TEST_PERTURBATIONS), ("extra", EXTRA_PERTURBATIONS)):
            for name in (n for n in names if n in result["flip_probability"]):
                values = result["flip_probability"][name], result["top5_distance"][name]
                rows.append([result["model"], group, name, *values, _images(result, name)])
    return _csv(["model", "group", "perturbation", "flip_probability", "top5_distance", "clips"], rows)


def _images(result: dict[str, Any], key: str) -> Any:
    return result.get("images", {}).get(key, "")


def _csv(header: list[str], rows: list[list[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
