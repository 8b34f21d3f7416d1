"""The command `timm-gcp weights list|import|fetch|export|push|release`."""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timm_gcp.commands import release
from timm_gcp.common.messages import one_line
from timm_gcp.inference.options import add_data_arguments, data_options
from timm_gcp.weights import catalog as table
from timm_gcp.weights import store
from timm_gcp.weights.listing import rows

# Whatever imports torch is imported where it is used, so that `list` answers at once.
if TYPE_CHECKING:
    from timm_gcp.weights.importing import Imported
    from timm_gcp.weights.record import Record

DTYPES = ("float32", "float16", "bfloat16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    commands = parser.add_subparsers(dest="weights_command", required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="known weights and where each can be had")
    listing.add_argument("pattern", nargs="?", default="*", help="part of a name, or a pattern such as '*_in1k'")
    listing.add_argument("--json", action="store_true", help="print JSON")

    importing = commands.add_parser("import", help="checkpoint file -> verified weight folder in the local store")
    importing.add_argument("path", nargs="?", metavar="PATH", help="the authors' .pth.tar, or any other checkpoint")
    importing.add_argument("--as", dest="name", metavar="ARCH.TAG", help="name; told by the file name if it is theirs")
    _conversion(importing)

    fetching = commands.add_parser("fetch", help="download the authors' file and import it")
    fetching.add_argument("name", metavar="NAME", help="such as resnet50_gcp.norm_in1k; see `timm-gcp weights list`")
    fetching.add_argument("--url", help="download from here, not from $TIMM_GCP_MIRROR or Google Drive")
    fetching.add_argument("--force", action="store_true", help="replace weights of that name")

    exporting = commands.add_parser("export", help="training checkpoint -> weight folder anywhere")
    exporting.add_argument(
        "model", nargs="?", metavar="MODEL", help="model name, with a tag if you like; told by the checkpoint"
    )
    exporting.add_argument("path", nargs="?", metavar="CHECKPOINT", help="such as model_best.pth.tar")
    exporting.add_argument("--to", required=True, metavar="DIR", help="folder to write")
    exporting.add_argument("--label-names", metavar="FILE", help="text file with one class name per line")
    exporting.add_argument("--dtype", choices=DTYPES, help="type to store the weights in; by default the file's own")
    _conversion(exporting)

    pushing = commands.add_parser("push", help="upload a weight folder to the Hugging Face Hub")
    pushing.add_argument("name", metavar="NAME", help="weights in the local store or the package, or name of new ones")
    pushing.add_argument("--checkpoint", metavar="PATH", help="push this checkpoint, or run's best, under that name")
    add_data_arguments(pushing.add_argument_group("preprocessing, where the weights don't state it"))
    pushing.add_argument(
        "--repo-org", metavar="ORG", help=f"Hub user or organisation (default: ${table.HUB_ORG_VARIABLE})"
    )
    pushing.add_argument("--private", action="store_true", help="create the repository private")
    pushing.add_argument("--licence", "--license", metavar="SPDX-ID", help="licence, where the source states none")
    pushing.add_argument("--dry-run", action="store_true", help="print what would be sent, and send nothing")

    release.add_arguments(commands.add_parser("release", help="fetch, convert, verify and upload the authors' weights"))


def _conversion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", metavar="PATH", help="checkpoint file, or folder of a run (best, else last)")
    add_data_arguments(parser.add_argument_group("preprocessing, where the checkpoint doesn't state it"))
    parser.add_argument("--data-dir", metavar="DIR", help="compare the accuracy on this image folder, too")
    parser.add_argument("--val-split", default="validation", metavar="NAME", help="its split (validation)")
    parser.add_argument("--ema", action="store_true", help="take the averaged weights of a training checkpoint")
    parser.add_argument(
        "--triangle-order", choices=table.ORDERS, default="auto", help="order of the upper triangle in the file"
    )
    parser.add_argument("--model-kwargs", nargs="*", default=[], metavar="KEY=VALUE", help="such as reduce_dim=64")
    parser.add_argument("--force", action="store_true", help="replace what is there")


def main(args: argparse.Namespace) -> int:
    """Run the subcommand; the exit status."""
    run = {"list": _list, "import": _import, "fetch": _fetch, "export": _export, "push": _push, "release": release.main}
    return run[args.weights_command](args)


def needs_models(args: argparse.Namespace) -> bool:
    """Whether the subcommand makes models, for which they must be registered: all but `list`."""
    return bool(args.weights_command != "list")


def _list(args: argparse.Namespace) -> int:
    found = rows(args.pattern)
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    header = ("weights", "state", "D", "params", "GMACs", "top-1", "top-5", "licence")
    lines = [header]
    for row in found:
        figure = row["figures"][0] if row["figures"] else None
        lines.append(
            (
                row["name"],
                row["state"],
                str(row["dimension"] or "-"),
                f"{row['params'] / 1e6:.2f}M" if row["params"] else "-",
                f"{row['gmacs']:.2f}" if row["gmacs"] else "-",
                f"{figure['top1']:.2f}" if figure else "-",
                f"{figure['top5']:.2f}" if figure else "-",
                row["licence"] or ("none stated" if row["licence_note"] else "-"),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if any(row["licence_note"] and not row["licence"] for row in found):
        print(f"\n{table.NO_LICENCE} Figures: the authors' release; --json has the paper's too.")
    return 0


def _import(args: argparse.Namespace) -> int:
    path = args.checkpoint or args.path
    if path is None:
        raise ValueError("which checkpoint? Name its file, or its run's folder.")
    from timm_gcp.weights.importing import import_file

    result = import_file(path, args.name, **_options(args))
    _report(result)
    return 0


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """What import and export have in common."""
    return {
        "use_ema": args.ema,
        "triangle_order": args.triangle_order,
        "replace": args.force,
        "model_args": _model_args(args.model_kwargs),
        "data_config": data_options(args),
        "check": _accuracy_check(args) if args.data_dir else None,
    }


def _accuracy_check(args: argparse.Namespace) -> Any:
    """A comparison of two models on an image folder, that prints the accuracy of both."""
    from contextlib import nullcontext

    import torch
    from timm.data import resolve_data_config

    from timm_gcp.inference.evaluate import validate
    from timm_gcp.inference.model import Loaded

    def check(source: Any, reloaded: Any, record: Record) -> None:
        scores = []
        class_map = record.class_map if not record.dataset else None  # the folders of its training
        for model in (source, reloaded):
            config = resolve_data_config({}, model=model)
            loaded = Loaded(model, "", config, None, torch.device("cpu"), nullcontext(), class_map=class_map)
            scores.append(validate(loaded, args.data_dir, "", args.val_split, 64, 0).accuracy(1))
        if scores[0] != scores[1]:
            raise ValueError(
                f"the checkpoint has top-1 {scores[0]:.2f}% in {args.data_dir}, reloaded {scores[1]:.2f}%."
            )
        print(f"top-1 {scores[0]:.2f}% in {args.data_dir}, by the checkpoint and by the folder made of it")

    return check


def _fetch(args: argparse.Namespace) -> int:
    if store.find(args.name) is not None and not args.force:
        print(f"{args.name} is on this machine already: {store.find(args.name)}. --force downloads it again.")
        return 0
    from timm_gcp.weights import download
    from timm_gcp.weights.fetch import fetch

    result = fetch(args.name, args.url, replace=args.force, keep=True)
    if result is None:
        print(f"{args.name} is on this machine already: {store.find(args.name)}.")  # from another process
        return 0
    _report(result)
    path = store.home() / "downloads" / download.file_name(table.WEIGHTS[args.name])
    print(f"The download can be removed: {path}")
    return 0


def _export(args: argparse.Namespace) -> int:
    import torch

    from timm_gcp.weights.importing import import_file
    from timm_gcp.weights.source import read_source

    model, path = args.model, args.checkpoint or args.path
    if path is None and model is not None and Path(model).exists():
        model, path = None, model
    if path is None:
        raise ValueError("which checkpoint? Name its file, or its run's folder, with --checkpoint PATH.")
    if model is None:
        store.check_target(Path(args.to), args.force)
        model = read_source(path, args.ema).record.architecture.split(".")[0]
        if not model:
            raise ValueError(f"which model? {path} names none: timm-gcp weights export MODEL {path} --to DIR.")
    name = model if "." in model else f"{model}.export"
    labels = _lines(args.label_names) if args.label_names else None
    result = import_file(
        path,
        name,
        target=Path(args.to),
        label_names=[label.strip() for label in labels if label.strip()] if labels else None,
        dtype=getattr(torch, args.dtype) if args.dtype else None,
        assume_preprocessing=False,
        **_options(args),
    )
    _say(result)
    print(f'{result.folder}\ntimm.create_model("local-dir:{result.folder}", pretrained=True)')
    return 0


def _lines(path: str) -> list[str]:
    """Lines of a text file."""
    try:
        return Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--label-names {path}: {one_line(error)}. Name a text file with a class a line.") from error


def _push(args: argparse.Namespace) -> int:
    from timm_gcp.weights import hub
    from timm_gcp.weights.importing import import_file

    with tempfile.TemporaryDirectory() as scratch:
        folder, data = None, data_options(args)
        if args.checkpoint:
            folder = Path(scratch) / args.name
            result = import_file(
                args.checkpoint, args.name, target=folder, data_config=data, assume_preprocessing=False
            )
            _say(result)
        unlicensed = args.licence is None and args.name not in {**table.WEIGHTS, **table.BUNDLED_WEIGHTS}
        if unlicensed and (folder is not None or store.find(args.name) is not None):
            raise ValueError(
                f"under which licence is {args.name} to be published? Give --licence SPDX-ID, such as mit."
            )
        upload = hub.prepare(args.name, args.repo_org, args.private, args.licence, folder, data)
        if args.dry_run:
            print(upload.describe())
            return 0
        print(hub.push(upload))
    print(f'timm.create_model("hf-hub:{upload.repo}", pretrained=True)')
    return 0


def _say(result: Imported) -> None:
    """What had to be overridden or assumed."""
    for note in result.notes:
        print(note, file=sys.stderr)


def _report(result: Imported) -> None:
    _say(result)
    order = f", triangle order {result.triangle_order}" if result.triangle_order else ""
    print(f"{result.folder}  (naming: {result.layout}{order})")
    if result.name.split(".")[0] in table.OURS:
        print(f'timm.create_model("{result.name}", pretrained=True)')
    else:
        print(f'timm.create_model("local-dir:{result.folder}", pretrained=True)')
    if result.layout in table.THIRD_PARTY_LAYOUTS or result.name in table.WEIGHTS:
        print(table.NO_LICENCE, file=sys.stderr)


def _model_args(pairs: list[str]) -> dict[str, Any]:
    """`key=value` words as keywords; values are Python literals where they can be, else strings."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key.isidentifier():
            raise ValueError(f"--model-kwargs takes KEY=VALUE, such as reduce_dim=64. Got {pair!r}.")
        try:
            found[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[key] = value
    return found
