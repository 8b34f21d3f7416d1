"""Parameters, multiply-adds and time per image of GCP models and their GAP twins (Appendix V).

Multiply-adds are those of torch's own flop counter: convolutions and matrix products, two flops each.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from timm_gcp.weights.named import create
from timm_gcp.weights.swap_names import PREFIX, pooled_name

PAPER_MODELS = ("resnet18_gcp", "resnet34_gcp", "resnet50_gcp", "resnet101_gcp")
# Appendix V: parameters in millions, "GFLOPs" (multiply-adds), for GAP and GCP ("8k" features: D = 128).
PAPER = {
    "resnet18": (11.69, 1.81),
    "resnet18_gcp": (19.60, 3.11),
    "resnet34": (21.80, 3.66),
    "resnet34_gcp": (29.71, 5.56),
    "resnet50": (25.56, 3.86),
    "resnet50_gcp": (32.32, 6.19),
    "resnet101": (44.55, 7.57),
    "resnet101_gcp": (51.31, 9.90),
}
PAPER_KWARGS = {"reduce_dim": (256, 128)}
_COUNTED = 128  # images whose multiply-adds are counted


@dataclass(frozen=True)
class Timing:
    """Seconds per image of a step, over the steps timed.

    Attributes:
        median: Median.
        fastest: Least.
        slowest: Most.
        steps: How many steps were timed.
    """

    median: float
    fastest: float
    slowest: float
    steps: int

    def __str__(self) -> str:
        """Median and range in ms per image."""
        return f"{1000 * self.median:.2f} ({1000 * self.fastest:.2f} to {1000 * self.slowest:.2f})"


@dataclass(frozen=True)
class Cost:
    """Cost of one model: parameters, multiply-adds per image, time per image (None where not timed)."""

    model: str
    parameters: int
    macs: int
    inference: Timing | None
    training: Timing | None


def twin(name: str) -> str:
    """The GAP twin of a GCP model: its name without `_gcp…` or `gcp:`."""
    return pooled_name(name)


def count_macs(model: nn.Module, size: tuple[int, int, int]) -> int:
    """Multiply-adds of one image in inference, by torch's flop counter.

    Counted on the meta device: nothing is computed, and Newton–Schulz runs as matrix products, as on a GPU (a CPU may
    run it by an eigendecomposition, which the counter would miss). Counted as a share of a batch: for a few images the
    pooling does products whole of which it skips blocks in a batch, since fewer calls then save more than less work.
    """
    from torch.utils.flop_counter import FlopCounterMode

    shadow = copy.deepcopy(model).to("meta").eval()
    images = torch.zeros(_COUNTED, *size, device="meta", dtype=next(shadow.parameters()).dtype)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        shadow(images)
    return counter.get_total_flops() // (2 * _COUNTED)


def time_steps(
    step: Callable[[], Any], batch_size: int, repeats: int, device: torch.device, seconds: float = math.inf
) -> Timing:
    """Time `repeats` runs of `step` after two of warm-up, or fewer once `seconds` have passed: one at least, after one.

    Args:
        step: What to time.
        batch_size: Images that it takes.
        repeats: Runs timed at most.
        device: Where it runs.
        seconds: No run is started after so many seconds, warm-up included.
    """
    times: list[float] = []
    begun = time.perf_counter()
    for index in range(repeats + 2):
        started = time.perf_counter()
        late = started - begun > seconds
        if times and late:
            break
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if index >= 2 or (index == 1 and late):
            times.append((time.perf_counter() - started) / batch_size)
    return Timing(statistics.median(times), min(times), max(times), len(times))


def measure(
    name: str,
    device: torch.device,
    img_size: int = 224,
    batch_size: int = 8,
    repeats: int = 5,
    timed: bool = True,
    model_args: Mapping[str, Any] | None = None,
    seconds: float = math.inf,
    **kwargs: Any,
) -> Cost:
    """Cost of a model.

    Args:
        name: Model.
        device: Where to time it.
        img_size: Height and width of the images in pixels.
        batch_size: Images per step.
        repeats: Steps timed, of inference and of training.
        timed: Time it at all.
        seconds: Time for each of the two, see `time_steps`.
        model_args: Arguments of the model, whatever their names.
        **kwargs: Further ones; 3 image channels unless `in_chans` says otherwise.
    """
    kwargs = {**(model_args or {}), **kwargs}
    with device if timed else torch.device("meta"):  # counting needs no numbers
        model = create(name, False, kwargs)
    size = (int(kwargs.get("in_chans", 3)), img_size, img_size)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    macs = count_macs(model, size)
    if not timed:
        return Cost(name, parameters, macs, None, None)
    images = torch.randn(batch_size, *size, device=device)
    targets = torch.zeros(batch_size, dtype=torch.int64, device=device)

    def infer() -> None:
        with torch.inference_mode():
            model(images)

    def update() -> None:
        nn.functional.cross_entropy(model(images), targets).backward()
        model.zero_grad(set_to_none=True)

    model.eval()
    inference = time_steps(infer, batch_size, repeats, device, seconds)
    model.train()
    return Cost(name, parameters, macs, inference, time_steps(update, batch_size, repeats, device, seconds))


def check_pair(name: str) -> None:
    """Raise ValueError unless `name` is a GCP model with a GAP twin."""
    import timm

    if name.startswith(PREFIX) and timm.is_model(twin(name).split(".")[0]):
        return
    if "_gcp" not in name or not timm.is_model(name):
        known = [model for model in timm.list_models("*_gcp*") if timm.is_model(twin(model))]
        raise ValueError(f"{name!r} is not a GCP model; choose from {', '.join(known)}.")


def table(costs: Sequence[Cost], paper: bool = False) -> str:
    """Markdown table of costs, with Appendix V's figures if `paper`."""
    head = ["model", "parameters (M)", "GMACs", "inference (ms/image)", "training (ms/image)"]
    head += ["paper: parameters (M)", "paper: GFLOPs"] if paper else []
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for cost in costs:
        times = ["-" if timing is None else str(timing) for timing in (cost.inference, cost.training)]
        row = [cost.model, f"{cost.parameters / 1e6:.2f}", f"{cost.macs / 1e9:.2f}", *times]
        if paper:
            row += [f"{value:.2f}" for value in PAPER[cost.model]]
        lines.append(row)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


WHY = """The table's GFLOPs are multiply-adds; its parameters are those of the two-step reduction C -> 256 -> 128.
Our GMACs differ from the table's
- for resnet50 and resnet101: timm's networks, and the released weights, have the stride of a stage in its 3x3
  convolution. The table counts the older form, with the stride in the 1x1 convolution in front of it.
- for resnet34_gcp: the count that gives the table's figure for resnet18_gcp gives 0.1 more than the table here, and the
  table's parameters agree. It looks like a misprint."""
