"""`timm-gcp predict IMAGE…`: the five likeliest classes of each image, as a table or JSON."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace

from tqdm import tqdm

from timm_gcp.datasets.class_map import names_of, read_class_map
from timm_gcp.inference.classes import check_classifier, check_num_classes
from timm_gcp.inference.images import find_images
from timm_gcp.inference.model import add_model_arguments, load_model
from timm_gcp.inference.predict import format_table, predict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `timm-gcp predict`."""
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image file, folder or glob pattern")
    add_model_arguments(parser)
    parser.add_argument("--class-map", metavar="FILE", help="names of the classes in the model's order")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="images per forward pass")
    parser.add_argument("--topk", type=int, default=5, metavar="K", help="classes per image")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")


def main(args: argparse.Namespace) -> int:
    """Print the likeliest classes; status 1 if an image could not be read."""
    for name in ("batch_size", "topk"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}.")
    check_num_classes(args.num_classes)
    class_map = read_class_map(args.class_map)
    images = find_images(args.images)
    loaded = load_model(args, pretrained=True)
    check_classifier(loaded, args.checkpoint)
    if class_map is not None:
        loaded = replace(loaded, label_names=names_of(class_map, int(loaded.model.num_classes)))
    bar = tqdm(predict(loaded, images, args.batch_size, args.topk), total=len(images), leave=False, disable=None)
    results = list(bar)
    if args.json:
        entries = [
            {"image": str(path), "error": found} if isinstance(found, str) else {"image": str(path), "top": found}
            for path, found in results
        ]
        print(json.dumps(entries, indent=2, ensure_ascii=False))
    else:
        print(format_table([(path, found) for path, found in results if not isinstance(found, str)]))
    bad = [found for _, found in results if isinstance(found, str)]
    for message in bad:
        print(f"timm-gcp predict: {message}", file=sys.stderr)
    return 1 if bad else 0
