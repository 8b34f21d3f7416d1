"""`timm-gcp predict IMAGE…`: the five likeliest classes of each image, as a table or JSON."""

from __future__ import annotations

import argparse
import glob
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from timm_gcp.loading import Loaded, add_model_arguments, load_model

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")


def find_images(patterns: Sequence[str]) -> list[Path]:
    """The image files that paths, folders (searched in depth) and glob patterns name, in order, each once.

    Raises:
        FileNotFoundError: A pattern names nothing.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        path = Path(pattern)
        if path.is_dir():
            matches = sorted(item for item in path.rglob("*") if item.suffix.lower() in SUFFIXES)
        elif path.exists():
            matches = [path]
        else:
            matches = sorted(Path(item) for item in glob.glob(pattern, recursive=True) if Path(item).is_file())
        if not matches:
            what = f"has no images ({', '.join(SUFFIXES)})" if path.is_dir() else "names no file"
            raise FileNotFoundError(f"{pattern!r} {what}.")
        found.update(dict.fromkeys(matches))
    return list(found)


def open_image(path: Path, channels: int) -> Any:
    """Read an image in any mode as 8-bit grey (1 channel) or RGB (3), upright by its EXIF tag.

    16-bit grey keeps its upper 8 bits; transparency is laid over black.

    Raises:
        ValueError: Not an image that Pillow reads, or another number of channels.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if channels not in (1, 3):
        raise ValueError(f"images have 1 or 3 channels, the model takes {channels}.")
    try:
        with Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened)
            image.load()
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{str(path)!r} can't be read as an image: {error}") from error
    if image.mode.startswith("I;16") or image.mode == "I":
        image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    elif image.mode == "F":
        raise ValueError(f"{str(path)!r} holds floating-point pixels of unknown scale: convert it to 8 or 16 bits.")
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)
    return image.convert("RGB" if channels == 3 else "L")


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `timm-gcp predict`."""
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image file, folder or glob pattern")
    add_model_arguments(parser)
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="images per forward pass")
    parser.add_argument("--topk", type=int, default=5, metavar="K", help="classes per image")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")


def main(args: argparse.Namespace) -> int:
    """Print the likeliest classes; status 1 if an image could not be read."""
    for name in ("batch_size", "topk"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}.")
    images = find_images(args.images)
    loaded = load_model(args, pretrained=True)
    bar = tqdm(predict(loaded, images, args.batch_size, args.topk), total=len(images), leave=False, disable=None)
    results = list(bar)
    if args.json:
        entries = [
            {"image": str(path), "error": found} if isinstance(found, str) else {"image": str(path), "top": found}
            for path, found in results
        ]
        print(json.dumps(entries, indent=2, ensure_ascii=False))
    else:
        print(_table([(path, found) for path, found in results if not isinstance(found, str)]))
    bad = [found for _, found in results if isinstance(found, str)]
    for message in bad:
        print(f"timm-gcp predict: {message}", file=sys.stderr)
    return 1 if bad else 0


def _table(results: list[tuple[Path, list[dict[str, Any]]]]) -> str:
    """One line per image, its classes in columns."""
    rows = [[str(path), *(f"{item['name']} {item['probability']:.1%}" for item in found)] for path, found in results]
    if not rows:
        return "no image could be read"
    rows.insert(0, ["image", *(f"{rank + 1}." for rank in range(len(rows[0]) - 1))])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
