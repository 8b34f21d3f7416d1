"""`timm-gcp demo`: a page in the browser that classifies photos by several models and shows where each looks."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from timm_gcp.common.ranges import Range, whole
from timm_gcp.inference.classes import check_classifier
from timm_gcp.inference.demo import build_page
from timm_gcp.inference.images import find_images
from timm_gcp.inference.model import load_model
from timm_gcp.inference.options import model_arguments
from timm_gcp.weights.bundled import PAIRS

PORTS = Range(0, 65535)
TWINS = [PAIRS[0].first, PAIRS[0].second]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `timm-gcp demo`."""
    parser.add_argument(
        "models",
        nargs="*",
        default=TWINS,
        metavar="MODEL",
        help="timm names with pretrained weights, or paths of checkpoints, run folders and weight folders",
    )
    parser.add_argument("--images", nargs="+", default=[], metavar="IMAGE", help="images to offer: files or folders")
    parser.add_argument("--port", type=whole(PORTS), default=7860, metavar="N", help="port; 0 takes any free one")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to serve at; this machine only")
    parser.add_argument("--device", metavar="NAME", help="device; cuda where there is one, else cpu")


def main(args: argparse.Namespace) -> int:
    """Serve the page until it is interrupted."""
    images = find_images(args.images) if args.images else []
    loaded = []
    for name in args.models:
        checkpoint = name if os.path.exists(name) else None
        given = {"checkpoint": name} if checkpoint else {"model": name}
        loaded.append(load_model(model_arguments(**given, device=args.device), pretrained=True))
        check_classifier(loaded[-1], checkpoint)
    page = build_page(loaded, images)
    folders = sorted({str(Path(path).resolve().parent) for path in images})
    print(f"{len(loaded)} models; stop with Ctrl-C", flush=True)
    page.launch(server_name=args.host, server_port=args.port or None, allowed_paths=folders, share=False)
    return 0
