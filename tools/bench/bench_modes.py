"""How a benchmark's rows are run: precision, memory format, compiled, as CUDA graphs, within a number of seconds.

A mode is one word or several joined by +, such as `channels_last+bfloat16+graphs`:

- `float32`: full float32, also on a GPU; what a mode without another precision is
- `tf32`: float32 whose matrix products and convolutions a GPU may round to TF32
- `float16`, `bfloat16`: autocast, with scaled gradients in a model's training step in float16
- `channels_last`: features, and a model's weights, in that memory format
- `compiled`: by torch.compile
- `graphs`: recorded as a CUDA graph and replayed
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bench_common import WARM_UP, markdown, write_csv

from timm_gcp.common.files import write_text

PRECISIONS = ("float32", "tf32", "float16", "bfloat16")
WORDS = (*PRECISIONS, "channels_last", "compiled", "graphs")


@dataclass(frozen=True)
class Mode:
    """One way to run a row."""

    name: str
    precision: str = "float32"
    channels_last: bool = False
    compiled: bool = False
    graphs: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """Type of the features, and of the products under autocast."""
        return {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(self.precision, torch.float32)

    @property
    def memory_format(self) -> torch.memory_format:
        """Memory format of features and weights."""
        return torch.channels_last if self.channels_last else torch.contiguous_format

    def autocast(self, device: torch.device) -> torch.autocast:
        """Autocast to `float16` or `bfloat16`, off in another precision; for the forward pass alone."""
        dtype = self.dtype if self.dtype != torch.float32 else None
        return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)

    @contextmanager
    def products(self) -> Iterator[None]:
        """TF32 where this mode asks for it and nowhere else; for forward and backward."""
        before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        tf32 = self.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def parse_mode(text: str, device: torch.device) -> Mode:
    """The mode that `text` names.

    Raises:
        ValueError: An unknown word, two precisions, or a mode that `device` can't run.
    """
    words = text.split("+")
    if unknown := [word for word in words if word not in WORDS]:
        raise ValueError(f"mode {text!r} has {unknown[0]!r}; join words of {', '.join(WORDS)} by +")
    precisions = [word for word in words if word in PRECISIONS]
    if len(precisions) > 1:
        raise ValueError(f"mode {text!r} has {len(precisions)} precisions; give one of {', '.join(PRECISIONS)}")
    if "graphs" in words and "float16" in words:
        raise ValueError(f"mode {text!r}: float16 scales gradients by what it sees, which no graph does; use bfloat16")
    if device.type != "cuda" and (gpu := {"tf32", "graphs"} & set(words)):
        raise ValueError(f"mode {text!r} needs a CUDA GPU for {min(gpu)}; leave it out on --device {device}")
    if "tf32" in words and torch.cuda.get_device_capability(device) < (8, 0):
        name = torch.cuda.get_device_name(device)
        raise ValueError(f"mode {text!r}: {name} has no TF32, which came with compute capability 8.0; leave it out")
    return Mode(
        text,
        precision=precisions[0] if precisions else "float32",
        channels_last="channels_last" in words,
        compiled="compiled" in words,
        graphs="graphs" in words,
    )


def captured(run: Callable[[], Any]) -> Callable[[], Any]:
    """`run` recorded as a CUDA graph after a warm-up; calling it replays the graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def device_of(text: str) -> torch.device:
    """`--device`, refused in one sentence where it isn't there."""
    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no device; give cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError(f"{text!r} needs a CUDA GPU, and torch finds none; give cpu")
    return device


def add_options(parser: argparse.ArgumentParser, modes: list[str]) -> None:
    """`--device`, `--modes`, `--compile-backend`, `--rounds`, `--seconds` and `--output`."""
    parser.add_argument("--device", default="cpu", type=device_of)
    parser.add_argument("--modes", nargs="+", default=modes, metavar="MODE", help=f"{', '.join(WORDS)}, joined by +")
    parser.add_argument("--compile-backend", default="inductor", help="of torch.compile, in a mode with `compiled`")
    parser.add_argument("--rounds", default=20, type=int)
    parser.add_argument(
        "--seconds", type=float, help="start no row after so many seconds; the table names what is left"
    )
    parser.add_argument("--output", default=Path("docs/performance"), type=Path)


def modes_of(parser: argparse.ArgumentParser, args: argparse.Namespace) -> list[Mode]:
    """The parsed `--modes`; a bad one ends the program with its sentence."""
    try:
        return [parse_mode(text, args.device) for text in args.modes]
    except ValueError as error:
        parser.error(str(error))


Job = tuple[str, Callable[[], dict[str, Any]]]


def collect(jobs: Iterable[Job], name: str, about: str, args: Any) -> list[dict[str, Any]]:
    """Run the jobs in order, write `name`.csv and `name`.md after each, and print the table at the end.

    A job that the device refuses (out of memory, an operation that a CUDA graph can't hold) is left out, and so is each
    one that would start after `args.seconds`; a line below the table names them.
    """
    start, rows, left = time.monotonic(), [], []
    text = ""
    for label, job in jobs:
        if args.seconds is not None and time.monotonic() - start > args.seconds:
            left.append(f"{label} (after {args.seconds:g} s)")
        else:
            try:
                rows.append(job())
            except RuntimeError as error:
                reason = str(error).strip().partition("\n")[0][:160].rstrip(".")
                print(f"{label}: {reason}", file=sys.stderr)
                left.append(f"{label} ({type(error).__name__}: {reason})")
                if args.device.type == "cuda":
                    torch.cuda.empty_cache()
        if rows:
            note = f"\n\nLeft out: {'; '.join(left)}." if left else ""
            text = f"{about}\n\n{markdown(rows)}{note}"
            write_csv(args.output / f"{name}.csv", rows)
            write_text(args.output / f"{name}.md", text + "\n")
    if not rows:
        raise SystemExit(f"No row was measured: {'; '.join(left) or 'none was asked for'}.")
    print(text)
    return rows
