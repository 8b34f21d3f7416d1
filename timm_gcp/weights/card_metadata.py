"""Metadata of a model card, as the Hub reads it: licence, task, data set and accuracies."""

from __future__ import annotations

from typing import Any

from timm_gcp.weights import catalog as table
from timm_gcp.weights.record import Record

DATASETS = {"imagenet-1k": "ImageNet-1k", "fashion_mnist": "Fashion-MNIST",
            "HuggingFaceM4/Caltech-101": "Caltech-101"}  # fmt: skip


def front_matter(name: str, licence: str | None = None, record: Record | None = None) -> dict[str, Any]:
    """Metadata of the card of `arch.tag`, as the Hub reads it.

    Args:
        name: `arch.tag`; need not be in the table.
        licence: SPDX id; by default the table's. Without any, the Hub's word for it: `unknown`.
        record: What the weights' own record says of data set and metrics.
    """
    entry, shipped = table.WEIGHTS.get(name), table.BUNDLED_WEIGHTS.get(name)
    known = shipped or entry
    gcp = "_gcp" in name
    data: dict[str, Any] = {
        "license": (licence or (known.licence if known else None) or "unknown").lower(),
        "library_name": "timm",
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "timm", *(["global-covariance-pooling"] if gcp else [])],
    }
    source: dict[str, Any] = {}
    if shipped is not None:
        dataset, split, top1, top5 = shipped.dataset, "test", shipped.top1, shipped.top5
    elif entry is not None:
        figure = entry.figures[0]
        dataset, split, top1, top5 = entry.dataset, "validation", figure.top1, figure.top5
        source = {"source": {"name": figure.origin, "url": entry.source_url}}
    elif record is not None and (data_name(record) or record.metrics):
        return data | _own_results(name, record)
    else:
        return data
    metrics = [
        {"type": "accuracy", "name": "Top-1 accuracy (%)", "value": top1},
        {"type": "accuracy", "name": "Top-5 accuracy (%)", "value": top5},
    ]
    if shipped is not None and shipped.mean_per_class is not None:
        metrics.append({"type": "accuracy", "name": "Mean accuracy over classes (%)", "value": shipped.mean_per_class})
    result = {
        "task": {"type": "image-classification"},
        "dataset": {"name": DATASETS[dataset], "type": dataset, "split": split},
        "metrics": metrics,
        **source,
    }
    return data | {
        "datasets": [dataset],
        "metrics": ["accuracy"],
        "model-index": [{"name": name, "results": [result]}],
    }


def data_name(record: Record) -> str:
    """Name of the data set of a record: timm's, or the image folder's."""
    return record.dataset.split("/")[-1] or record.data_folder


def _own_results(name: str, record: Record) -> dict[str, Any]:
    metrics = [
        {"type": "accuracy" if metric.startswith("top") else metric, "name": metric, "value": round(value, 4)}
        for metric, value in record.metrics.items()
    ]
    if not metrics:
        return {}
    data = {"name": data_name(record) or "not stated", "type": data_name(record) or "not stated", "split": "validation"}
    result = {"task": {"type": "image-classification"}, "dataset": data, "metrics": metrics}
    return {"model-index": [{"name": name, "results": [result]}]}
