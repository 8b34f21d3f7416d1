"""Tries `swap_pooling` on the smallest model of every family of timm, and writes the table of docs/families.md.

    OMP_NUM_THREADS=1 python tools/release/check_families.py       # all families, some ten minutes
    python tools/release/check_families.py --families resnet vgg   # these rows anew, the others as they are

Each is built, swapped, run, trained for one step, reset, cut at features and head, stripped of its classifier, copied,
and saved and loaded by timm. The first thing that fails is what the table says.
"""

from __future__ import annotations

import argparse
import copy
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import save_for_hf

import timm_gcp
from timm_gcp.common.files import write_text

PAGE = Path(__file__).parents[2] / "docs" / "families.md"
CLASSES, DIM, SIZE = 10, 16, 224
# Words of timm's names from small to large; a name without any of them stands in the middle.
_SIZES = (
    "test",
    "atto",
    "femto",
    "pico",
    "zepto",
    "nano",
    "xxsmall",
    "xxs",
    "xxt",
    "xtiny",
    "xs",
    "tiny",
    "small",
    "mini",
)
# Arguments that make a network shallow, tried one by one; those that a family does not take are left out.
_SHALLOW: tuple[dict[str, Any], ...] = (
    {"depths": (1, 1, 1, 1)},
    {"layers": (1, 1, 1, 1)},
    {"depth": 2},
    {"num_blocks": 2},
)
REFUSED = "–"
SMALL = 4_000_000  # parameters of a model that is taken as it is
AS_THEY_ARE = {"convit"}  # adds its class token after the tenth block
TRIES = 2  # models of a family, smallest first, before it counts as refused
WORKS = "works"


@dataclass(frozen=True)
class Row:
    """One family: the model that stands for it, the side of its images, its features, and what came of the swap."""

    family: str
    model: str
    side: int
    features: str
    result: str

    def line(self) -> str:
        """As a row of the table."""
        result = self.result.replace("|", r"\|")
        return f"| {self.family} | `{self.model}` | {self.side} | {self.features} | {result} |"


class Failed(Exception):
    """A step that went wrong, in words."""


def families() -> list[str]:
    """timm's families, without those of other packages and modules."""
    return sorted(name for name in timm.list_modules() if f"timm.models.{name}" in sys.modules)


def small_models(family: str) -> list[str]:
    """Models of a family, the smallest first by their names: by a word for size, else by the numbers in it."""

    def rank(name: str) -> tuple[int, list[int], int, str]:
        words = re.split(r"[_.]", name)
        sizes = [index for index, size in enumerate(_SIZES) if size in words]
        numbers = [int(number) for number in re.findall(r"\d+", name)]
        return (min(sizes, default=len(_SIZES)), numbers, len(name), name)

    names = [name for name in timm.list_models(module=family) if not name.endswith("_gcp")]
    return sorted(names, key=rank)


def shallow(name: str) -> dict[str, Any]:
    """Arguments with which a model is built shallower; empty where it takes none of them."""
    with torch.device("meta"):
        full = _numbers(timm.create_model(name, num_classes=CLASSES))
        if full < SMALL:
            return {}
        for arguments in _SHALLOW:
            try:
                if _numbers(timm.create_model(name, num_classes=CLASSES, **arguments)) < full:
                    return arguments
            except Exception:  # a family that does not take them says so in many ways
                continue
    return {}


def _numbers(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def try_model(family: str, name: str) -> Row:
    """Swap the pooling of one model and put it through all that a timm model does."""
    side, features, step = 0, REFUSED, "swap"
    try:
        arguments = {} if family in AS_THEY_ARE else shallow(name)
        model: Any = timm.create_model(name, num_classes=CLASSES, **arguments)
        cfg = model.pretrained_cfg
        own = max(cfg["input_size"][1:])
        side = own if cfg.get("fixed_input_size") or own <= SIZE else SIZE
        model = timm_gcp.swap_pooling(model, DIM)
        spec = model._gcp
        features = f"{spec.get('layout', 'NCHW')}, {spec['channels']}"
        if spec.get("skip"):
            features += f", {spec['skip']} before the patches"
        for step, check in STEPS.items():  # noqa: B007 (the except clauses read it)
            check(model, torch.randn(2, model.in_chans, side, side))
    except Failed as error:
        return Row(family, name, side, features, f"{step}: {error}")
    except Exception as error:  # whatever it is, it is this family's answer
        text = " ".join(str(error).split()) or type(error).__name__
        return Row(family, name, side, features, text if step == "swap" else f"{step}: {text[:200]}")
    return Row(family, name, side, features, WORKS)


def _same(found: Any, wanted: Any, what: str) -> None:
    if tuple(found.shape) != tuple(wanted.shape) or not torch.allclose(found, wanted, atol=1e-4, rtol=1e-3):
        raise Failed(f"{what} differ")


def _shape(found: Any, *wanted: int) -> None:
    shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
    if shape != wanted:
        raise Failed(f"gives {shape}, not {wanted}")


def _train(model: Any, images: torch.Tensor) -> None:
    output = model.train()(images)
    output = output[0] if isinstance(output, tuple) else output  # an auxiliary head beside the logits
    _shape(output, len(images), CLASSES)
    torch.nn.functional.cross_entropy(output, images.new_zeros(len(images), dtype=torch.int64)).backward()
    left = [name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None]
    head = [name for name in left if name.startswith(("head", "fc", "global_pool", "gcp_"))]
    if head:
        raise Failed(f"no gradient for {head[0]}")
    model.zero_grad()
    model.eval()


@torch.inference_mode()
def _forward(model: Any, images: torch.Tensor) -> None:
    features, logits = model.forward_features(images[:1]), model(images[:1])
    features = features[0] if isinstance(features, tuple) else features  # an auxiliary head's beside it
    model.seen = images[:1], logits
    spec = model._gcp
    if spec.get("layout") == "NLC":  # what is left of the tokens of a square image is a square
        left = features.shape[1] - spec["skip"]
        if round(left**0.5) ** 2 != left:
            raise Failed(f"{left} of {features.shape[1]} tokens are pooled, which fill no square map")
    _shape(logits, 1, CLASSES)
    _same(model.forward_head(features), logits, "forward_head of forward_features and forward")
    _shape(model.forward_head(features, pre_logits=True), 1, model.head_hidden_size)
    twin = copy.deepcopy(model)
    twin.reset_classifier(3)
    _shape(twin.forward_head(features), 1, 3)
    twin.reset_classifier(3, "avg")
    _shape(twin.forward_head(features), 1, 3)
    twin.reset_classifier(3, "gcp")
    _shape(twin.forward_head(features), 1, 3)
    twin.reset_classifier(0)
    _shape(twin.forward_head(features), 1, twin.head_hidden_size)
    twin.reset_classifier(0, "")
    _same(twin.forward_head(features), features, "unpooled features and forward_features")


@torch.inference_mode()
def _saved(model: Any, images: torch.Tensor) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            save_for_hf(model, folder, safe_serialization=True)
        except RuntimeError:  # CoaT's tensors share memory, which safetensors does not write
            save_for_hf(model, folder, safe_serialization=False)
        loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    seen, logits = model.seen
    _same(loaded(seen), logits, "answers of the saved and the loaded model")


STEPS = {"training": _train, "features and head": _forward, "save and load": _saved}


def try_family(family: str) -> Row:
    """The first of a family's smallest models that works, else what the smallest says."""
    rows: list[Row] = []
    for name in small_models(family)[:TRIES]:
        rows.append(try_model(family, name))
        if rows[-1].result == WORKS:
            return rows[-1]
    return rows[0]


def read(page: str) -> dict[str, Row]:
    """The rows of a page, by family."""
    found = re.findall(r"^\| (\w+) \| `(\w+)` \| (\d+) \| (.*?) \| (.*) \|$", page, re.MULTILINE)
    rows = [
        Row(family, model, int(side), features, result.replace(r"\|", "|"))
        for family, model, side, features, result in found
    ]
    return {row.family: row for row in rows}


def page(rows: Sequence[Row]) -> str:
    """The page in Markdown."""
    works = [row for row in rows if row.result == WORKS]
    refused = [row for row in rows if row not in works]
    head = ["| family | tried | px | features, channels | result |", "| --- | --- | ---: | --- | --- |"]
    lines = [
        "# timm's families and `swap_pooling`",
        "",
        f"One small model of each family of timm {timm.__version__}, on random images: forward, one training step,",
        "`reset_classifier`, `forward_features` and `forward_head`, `num_classes=0`, copy, save and load. Large ones",
        "are built shallower. Made by `python tools/release/check_families.py`; what the words mean:",
        "[swap_pooling.md](swap_pooling.md).",
        "",
        f"## Works: {len(works)} of {len(rows)} families",
        "",
        *head,
        *(row.line() for row in works),
        "",
        "## Refused",
        "",
        *head,
        *(row.line() for row in refused),
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Try the families and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--families", nargs="+", metavar="NAME", help="timm's modules; all when left out")
    parser.add_argument("--output", default=str(PAGE), metavar="FILE", help="page to write")
    args = parser.parse_args(argv)
    known, output = families(), Path(args.output)
    if unknown := [family for family in args.families or () if family not in known]:
        raise ValueError(f"timm has no family {', '.join(unknown)}; it has {', '.join(known)}.")
    rows = read(output.read_text(encoding="utf-8")) if args.families and output.is_file() else {}
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    for family in args.families or known:
        started = time.perf_counter()
        rows[family] = try_family(family)
        took = time.perf_counter() - started
        print(f"{took:5.0f} s  {rows[family].line()}", file=sys.stderr, flush=True)
        write_text(output, page([rows[name] for name in known if name in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
