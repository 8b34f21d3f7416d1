"""The likeliest classes of images."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from timm_gcp.common.messages import printable
from timm_gcp.inference.images import open_image
from timm_gcp.inference.model import Loaded


def predict(
    loaded: Loaded, images: Iterable[Path], batch_size: int = 32, topk: int = 5
) -> Iterator[tuple[Path, list[dict[str, Any]] | str]]:
    """Classify images.

    Args:
        loaded: Model and its data configuration.
        images: Files.
        batch_size: Images per forward pass.
        topk: Classes per image.

    Yields:
        Each file with its classes by falling probability (`class`, `name`, `probability`), or with a sentence that
        says why it could not be read.
    """
    from timm.data import create_transform

    transform = create_transform(**loaded.data_config, is_training=False)
    batch: list[tuple[Path, torch.Tensor]] = []
    for path in images:
        try:
            batch.append((path, transform(open_image(path, loaded.data_config["input_size"][0]))))
        except ValueError as error:
            yield path, str(error)
        if len(batch) == batch_size:
            yield from _classify(loaded, batch, topk)
            batch = []
    if batch:
        yield from _classify(loaded, batch, topk)


@torch.inference_mode()
def _classify(
    loaded: Loaded, batch: list[tuple[Path, torch.Tensor]], topk: int
) -> list[tuple[Path, list[dict[str, Any]] | str]]:
    tensors = torch.stack([tensor for _, tensor in batch]).to(loaded.device)
    with loaded.autocast:
        logits = loaded.model(tensors)
    probabilities, classes = logits.float().softmax(dim=1).topk(min(topk, logits.shape[1]), dim=1)
    names = loaded.label_names
    return [
        (
            path,
            [
                {"class": index, "name": names[index] if names else f"class {index}", "probability": probability}
                for index, probability in zip(row, row_probabilities, strict=True)
            ],
        )
        for (path, _), row, row_probabilities in zip(batch, classes.tolist(), probabilities.tolist(), strict=True)
    ]


def format_table(results: list[tuple[Path, list[dict[str, Any]]]]) -> str:
    """One line per image, its classes in columns."""
    rows = [
        [printable(path), *(f"{item['name']} {item['probability']:.1%}" for item in found)] for path, found in results
    ]
    if not rows:
        return "no image could be read"
    rows.insert(0, ["image", *(f"{rank + 1}." for rank in range(len(rows[0]) - 1))])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def as_csv(results: Sequence[tuple[Path, list[dict[str, Any]] | str]]) -> str:
    """A line per image and class, likeliest first; a line with the error for an image that can't be read."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(("image", "rank", "class", "name", "probability", "error"))
    for path, found in results:
        if isinstance(found, str):
            writer.writerow((path, "", "", "", "", found))
            continue
        for rank, entry in enumerate(found, start=1):
            writer.writerow((path, rank, entry["class"], entry["name"], f"{entry['probability']:.6f}", ""))
    return table.getvalue()
