"""Which of timm's model families `swap_pooling` takes, tried on one model of each: writes docs/swap_pooling.md.

    python tools/release/swap_families.py                    # all families, some minutes
    python tools/release/swap_families.py --families resnet vgg --output -

The models are built and run on torch's meta device: shapes are computed, numbers are not, so that size costs nothing.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch

import timm_gcp

PAGE = Path(__file__).parents[2] / "docs" / "swap_pooling.md"
CLASSES = 10
# Words of timm's names from small to large; a name without any of them stands in the middle.
_SIZES = ("atto", "femto", "pico", "zepto", "nano", "xxsmall", "xxs", "xxt", "xtiny", "xs", "tiny", "small", "mini")
_OWN = "gcp"  # the family of this package's own models


@dataclass(frozen=True)
class Tried:
    """One family: the model that stands for it, how its features are laid out, and what came of the swap."""

    family: str
    model: str
    channels: int | None
    problem: str


def small_model(family: str) -> str:
    """A model of a family that its name says to be small: by a word for size, else by the numbers in it."""

    def rank(name: str) -> tuple[int, list[int], int, str]:
        words = re.split(r"[_.]", name)
        sizes = [index for index, size in enumerate(_SIZES) if size in words]
        numbers = [int(number) for number in re.findall(r"\d+", name)]
        return (min(sizes, default=len(_SIZES)), numbers, len(name), name)

    return min(timm.list_models(module=family), key=rank)


def try_family(family: str) -> Tried:
    """Swap the pooling of one model of a family and run it on one image of its own size."""
    name, stage = small_model(family), ""
    try:
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            model: Any = timm.create_model(name, num_classes=CLASSES).eval()
            swapped = timm_gcp.swap_pooling(model)
            stage = "swaps, but fails in forward: "
            size = swapped.pretrained_cfg["input_size"]
            shape = tuple(swapped(torch.zeros(1, *size)).shape)
        if shape != (1, CLASSES):
            return Tried(family, name, None, f"swaps, but gives {shape}, not (1, {CLASSES})")
        return Tried(family, name, swapped.num_features, "")
    except Exception as error:  # whatever it is, it is this family's answer
        return Tried(family, name, None, stage + (" ".join(str(error).split()) or type(error).__name__))


def reason(problem: str) -> str:
    """The sentence of `swap_pooling` in a few words."""
    for words, short in (
        ("no global average pooling", "no average pooling of a feature map"),
        ("not a feature map", "features are no NCHW map: " + (re.findall(r"gives (.*?), not", problem) or [""])[0]),
        ("no single linear classifier", "no single linear classifier"),
    ):
        if words in problem:
            return short
    return problem[:100].replace("|", r"\|") + "…" * (len(problem) > 100)


def page(tried: Sequence[Tried]) -> str:
    """The page in Markdown."""
    taken = [entry for entry in tried if not entry.problem]
    refused = [entry for entry in tried if entry.problem]
    lines = [
        "# Which timm families `swap_pooling` takes",
        "",
        "`timm_gcp.swap_pooling(model)` replaces the pooling head of a timm CNN by global covariance pooling. It needs",
        "a feature map `(B, C, H, W)`, an average pooling of it and one linear classifier. Tried on one model of each",
        f"family of timm {timm.__version__}; made by `python tools/release/swap_families.py`.",
        "",
        f"## Taken: {len(taken)} of {len(tried)} families",
        "",
        "| family (`timm.list_models(module=…)`) | tried | channels C |",
        "| --- | --- | ---: |",
        *(f"| {entry.family} | `{entry.model}` | {entry.channels} |" for entry in taken),
        "",
        "## Not taken",
        "",
        "Most are transformers, whose features are tokens. What keeps each out:",
        "",
        "| family | tried | reason |",
        "| --- | --- | --- |",
        *(f"| {entry.family} | `{entry.model}` | {reason(entry.problem)} |" for entry in refused),
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Try the families and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--families", nargs="+", metavar="NAME", help="timm's modules; all when left out")
    parser.add_argument("--output", default=str(PAGE), metavar="FILE", help="page to write, or - to print it")
    args = parser.parse_args(argv)
    known = [family for family in timm.list_modules() if family != _OWN]
    unknown = [family for family in args.families or () if family not in known]
    if unknown:
        raise ValueError(f"timm has no family {', '.join(unknown)}; it has {', '.join(known)}.")
    tried = []
    for family in args.families or known:
        tried.append(try_family(family))
        print(f"{family}: {tried[-1].model}: {tried[-1].problem or 'taken'}", file=sys.stderr, flush=True)
    text = page(tried)
    if args.output == "-":
        print(text, end="")
    else:
        from timm_gcp.common.files import write_text

        write_text(args.output, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
