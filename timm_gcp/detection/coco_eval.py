"""Detections in COCO's results form, and COCO's average precision of them (boxes and masks).

The evaluator is faster-coco-eval, whose numbers equal pycocotools'.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from timm_gcp.detection.coco_check import is_box
from timm_gcp.detection.coco_masks import encode_mask

METRICS = ("AP", "AP50", "AP75", "APS", "APM", "APL")  # the first six of COCO's summary, in its order
IOU_TYPES = ("bbox", "segm")
MASK_THRESHOLD = 0.5  # a mask is where its probability is above this


def coco_results(
    outputs: Sequence[Mapping[str, Tensor]], image_ids: Sequence[int], category_of: Mapping[int, int]
) -> list[dict[str, Any]]:
    """Detections as COCO's results list: `image_id`, `category_id`, `bbox` (x, y, width, height), `score`.

    Args:
        outputs: What a torchvision detector returns, one entry per image; `masks` `(N, 1, H, W)` become run-length
            codes under `segmentation`.
        image_ids: The images' ids, in the same order.
        category_of: Label -> category id.
    """
    results = []
    for output, image_id in zip(outputs, image_ids, strict=True):
        boxes = output["boxes"].detach().float().cpu()
        corner, far = boxes[:, :2], boxes[:, 2:]
        rows = torch.cat([corner, far - corner], dim=1).tolist()
        masks = output["masks"][:, 0].detach().float().cpu().gt(MASK_THRESHOLD).numpy() if "masks" in output else None
        for i, (row, label, score) in enumerate(
            zip(rows, output["labels"].tolist(), output["scores"].tolist(), strict=True)
        ):
            result = {"image_id": image_id, "category_id": category_of[label], "bbox": row, "score": score}
            if masks is not None:
                result["segmentation"] = encode_mask(masks[i])
            results.append(result)
    return results


def evaluate(
    annotations: str | Path | Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
    image_ids: Sequence[int] | None = None,
    kinds: Sequence[str] | None = None,
) -> dict[str, dict[str, float]]:
    """COCO's average precision, in percent: `{"bbox": {"AP": ..., "AP50": ...}}`, and `"segm"` where masks are given.

    Args:
        annotations: The ground truth: COCO's json, as a path or parsed.
        results: Detections in COCO's results form.
        image_ids: Evaluate these images only; all of the ground truth's when left out.
        kinds: `bbox`, `segm` or both; when left out, `segm` where every result has a mask.

    Returns:
        The six `METRICS`: over IoU 0.5 to 0.95, at 0.5, at 0.75, and for small (under 32² pixels), medium (under 96²)
        and large objects; NaN where the ground truth has no such object.

    Raises:
        ValueError: A result names an image or category that the ground truth does not have, or the kind is unknown.
        ImportError: Faster-coco-eval is not installed.
    """
    try:
        from faster_coco_eval import COCO, COCOeval_faster
    except ImportError as error:
        raise ImportError("COCO evaluation needs faster-coco-eval: pip install timm-gcp[detection]") from error
    # The evaluator writes into what it is given: a copy, then.
    content = json.loads(
        json.dumps(annotations) if isinstance(annotations, Mapping) else Path(annotations).read_text("utf-8")
    )
    # Boxes that are none, which a data set may leave out, would stop the evaluator.
    content["annotations"] = [each for each in content["annotations"] if is_box(each["bbox"])]
    for annotation in content["annotations"]:
        annotation["iscrowd"] = int(bool(annotation.get("iscrowd")))
        annotation.setdefault("area", annotation["bbox"][2] * annotation["bbox"][3])
    truth = COCO(content)
    _check_ids(results, set(truth.getImgIds()), set(truth.getCatIds()))
    if kinds is None:
        kinds = IOU_TYPES if results and all("segmentation" in result for result in results) else IOU_TYPES[:1]
    unknown = [kind for kind in kinds if kind not in IOU_TYPES]
    if unknown:
        raise ValueError(f"unknown kind {unknown[0]!r}: choose from {', '.join(IOU_TYPES)}.")
    metrics = {}
    for kind in kinds:
        # Without the box, the evaluator takes an object's size from the area of its mask.
        unused = "segmentation" if kind == "bbox" else "bbox"
        found = truth.loadRes([{key: value for key, value in result.items() if key != unused} for result in results])
        evaluator = COCOeval_faster(truth, found, kind, print_function=_silent)
        if image_ids is not None:
            evaluator.params.imgIds = sorted(image_ids)
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
        values = [float(value) for value in evaluator.stats[: len(METRICS)]]
        # COCO marks "no such object" by -1.
        metrics[kind] = {
            name: 100 * value if value >= 0 else float("nan") for name, value in zip(METRICS, values, strict=True)
        }
    return metrics


def format_metrics(metrics: Mapping[str, Mapping[str, float]]) -> str:
    """The metrics as a Markdown table, one row for boxes and one for masks."""
    lines = ["| | " + " | ".join(METRICS) + " |", "|---" * (len(METRICS) + 1) + "|"]
    for kind, values in metrics.items():
        cells = ["n/a" if values[name] != values[name] else f"{values[name]:.1f}" for name in METRICS]
        lines.append(f"| {'boxes' if kind == 'bbox' else 'masks'} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _check_ids(results: Sequence[Mapping[str, Any]], images: set[int], categories: set[int]) -> None:
    for result in results:
        if result["image_id"] not in images:
            raise ValueError(f"a result is for image {result['image_id']}, which the annotations do not list.")
        if result["category_id"] not in categories:
            raise ValueError(
                f"a result is of category {result['category_id']}; the annotations have "
                f"{', '.join(map(str, sorted(categories)))}."
            )


def _silent(*_: object) -> None:
    """The evaluator's report, which `format_metrics` replaces."""
