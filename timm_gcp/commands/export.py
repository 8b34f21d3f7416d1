"""`timm-gcp export --onnx FILE`: a model or checkpoint as an ONNX file, checked against torch."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from timm_gcp.commands.options import add_shared, check_weights
from timm_gcp.common.files import write_text
from timm_gcp.common.ranges import COUNT, whole
from timm_gcp.inference.classes import check_classifier, check_num_classes
from timm_gcp.inference.export_onnx import export_onnx
from timm_gcp.inference.model import load_model
from timm_gcp.inference.options import add_model_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `timm-gcp export`."""
    add_model_arguments(parser)
    add_shared(parser, "pretrained", help="the model's pretrained weights; taken where no checkpoint is given")
    parser.add_argument("--onnx", type=Path, required=True, metavar="FILE", help="ONNX file to write")
    parser.add_argument(
        "--batch-sizes",
        type=whole(COUNT),
        nargs="+",
        default=[1, 2, 5],
        metavar="N",
        help="batches in which onnxruntime's logits are compared with torch's",
    )
    parser.add_argument(
        "--opset", type=whole(COUNT), metavar="N", help="ONNX operator set; torch's choice when left out"
    )


def main(args: argparse.Namespace) -> int:
    """Export, check, and write what feeds the file beside it."""
    if args.onnx.suffix != ".onnx":
        raise ValueError(f"--onnx names the file to write and must end in .onnx, got {str(args.onnx)!r}.")
    if args.amp or args.channels_last or args.device not in (None, "cpu"):
        raise ValueError("the export runs on the CPU in float32: drop --amp, --channels-last and --device.")
    check_weights(args)
    check_num_classes(args.num_classes)
    args.device = "cpu"
    loaded = load_model(args, pretrained=True)
    check_classifier(loaded, args.checkpoint)
    config = loaded.data_config
    checked = export_onnx(
        loaded.model, tuple(config["input_size"]), args.onnx, batch_sizes=args.batch_sizes, opset=args.opset
    )
    facts = {"model": loaded.name, **config, "label_names": list(loaded.label_names or ()) or None}
    beside = args.onnx.with_suffix(".json")
    write_text(beside, json.dumps(facts, indent=2) + "\n")
    sizes = ", ".join(map(str, checked.batch_sizes))
    print(
        f"{args.onnx}: images (N, {', '.join(map(str, config['input_size']))}) -> logits (N, "
        f"{loaded.model.num_classes}); in batches of {sizes} onnxruntime's logits are torch's to "
        f"{checked.difference:.1e} (largest {checked.scale:.3g})"
    )
    print(f"{beside}: mean, standard deviation, resizing and class names")
    return 0
