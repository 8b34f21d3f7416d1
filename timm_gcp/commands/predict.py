"""`timm-gcp predict IMAGE…`: the likeliest classes of each image, as a table, JSON, CSV, a figure or on the images."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from timm_gcp.commands.options import add_shared, check_weights
from timm_gcp.common.files import write_text
from timm_gcp.common.ranges import COUNT, whole
from timm_gcp.datasets.class_map import names_of, read_class_map
from timm_gcp.inference.annotate import annotate, annotated_names
from timm_gcp.inference.classes import check_classifier, check_num_classes, check_order, own_names
from timm_gcp.inference.images import find_images
from timm_gcp.inference.model import load_model
from timm_gcp.inference.options import add_model_arguments
from timm_gcp.inference.predict import as_csv, format_table, predict
from timm_gcp.plots.classified import check_count, draw_classified
from timm_gcp.plots.style import check_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `timm-gcp predict`."""
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image file, folder or glob pattern")
    add_model_arguments(parser)
    parser.add_argument("--class-map", metavar="FILE", help="names of the classes in the model's order")
    add_shared(parser, "pretrained", help="the model's pretrained weights; taken where no checkpoint is given")
    add_shared(parser, "batch_size", default=32)
    parser.add_argument(
        "--topk", type=whole(COUNT), default=5, metavar="K", help="classes per image, if the model has as many"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the classes to this table, a line for each")
    parser.add_argument("--annotate", type=Path, metavar="DIR", help="write a copy of each image with its classes here")
    parser.add_argument(
        "--figure", type=Path, metavar="FILE", help="draw all images with their classes on one page (.png, .pdf, .svg)"
    )
    add_shared(parser, "json", help="print JSON in place of the table")


def main(args: argparse.Namespace) -> int:
    """Print the likeliest classes; status 1 if an image could not be read."""
    check_weights(args)
    check_num_classes(args.num_classes)
    class_map = read_class_map(args.class_map)
    images = find_images(args.images)
    if args.figure:
        check_output(args.figure)
        check_count(len(images))
    loaded = load_model(args, pretrained=True)
    check_classifier(loaded, args.checkpoint)
    check_order(class_map, own_names(loaded, args.checkpoint))
    if class_map is not None:
        loaded = replace(loaded, label_names=names_of(class_map, int(loaded.model.num_classes)))
    bar = tqdm(predict(loaded, images, args.batch_size, args.topk), total=len(images), leave=False, disable=None)
    results = list(bar)
    if args.csv:
        write_text(args.csv, as_csv(results))
    if args.annotate:
        targets = annotated_names(images, args.annotate)
        for path, found in results:
            if not isinstance(found, str):
                annotate(path, found, targets[path])
    read = [(path, found) for path, found in results if not isinstance(found, str)]
    if args.figure and read:
        draw_classified(read, loaded.name, args.figure)
    if args.json:
        entries = [
            {"image": str(path), "error": found} if isinstance(found, str) else {"image": str(path), "top": found}
            for path, found in results
        ]
        print(json.dumps(entries, indent=2, ensure_ascii=False))
    else:
        print(format_table(read))
    bad = [found for _, found in results if isinstance(found, str)]
    for message in bad:
        print(f"timm-gcp predict: {message}", file=sys.stderr)
    return 1 if bad else 0
