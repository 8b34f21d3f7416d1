"""What the benchmark scripts share: interleaved timing, memory accounting, tables and charts."""

from __future__ import annotations

import csv
import platform
import statistics
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map
from tqdm import tqdm

from timm_gcp.common.files import write_text

WARM_UP = 3


def synchronize(device: torch.device) -> None:
    """Wait for queued kernels, where there are any."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def interleaved(runs: dict[str, Callable[[], Any]], rounds: int, device: torch.device, title: str) -> dict[str, float]:
    """Median time in ms of each run; the runs take turns, so that a slow spell of the machine meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in tqdm(range(WARM_UP + rounds), desc=title, leave=False):
        for name, run in runs.items():
            synchronize(device)
            start = time.perf_counter()
            run()
            synchronize(device)
            if turn >= WARM_UP:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def product_rate(device: torch.device, dtype: torch.dtype = torch.float32, size: int = 2048) -> float:
    """Floating-point operations a second of one large matrix product, the best of 5."""
    a = torch.randn(size, size, device=device, dtype=dtype)
    best = min(seconds_of(lambda: a @ a, device) for _ in range(5))
    return 2 * size**3 / best


def copy_rate(device: torch.device, megabytes: int = 256) -> float:
    """Bytes a second read and written by one large copy, the best of 5."""
    a = torch.empty(megabytes * 2**18, device=device)
    b = torch.empty_like(a)
    best = min(seconds_of(lambda: b.copy_(a), device) for _ in range(5))
    return 2 * a.numel() * a.element_size() / best


def seconds_of(run: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one call, kernels included."""
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def forward(pool: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Callable[[], Any]:
    """A pooling's forward pass of `x`, recorded by no autograd."""

    def run() -> None:
        with torch.no_grad():
            pool(x)

    return run


def both(pool: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, grad: torch.Tensor) -> Callable[[], Any]:
    """Its forward and backward pass, from the incoming gradient `grad`."""
    return lambda: torch.autograd.grad(pool(x), x, grad)


def saved_bytes(run: Callable[[], Any]) -> int:
    """Bytes that autograd keeps for backward during `run`, each storage once."""
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(storages.values())


class PeakBytes(TorchDispatchMode):
    """Largest number of bytes that tensors made inside the context hold at one time (`peak`)."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and account for the storages it made."""
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key not in self.live:
                    self.live[key] = storage.nbytes()
                    weakref.finalize(storage, self.live.pop, key, None)
        self.peak = max(self.peak, sum(self.live.values()))
        return out


def peak_bytes(run: Callable[[], Any], device: torch.device) -> int:
    """Peak memory that `run` takes beyond what is held before it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with PeakBytes() as mode:
        run()
    return mode.peak


class _Calls(TorchDispatchMode):
    """Counts the operations of a run that compute something, by operator, shapes, other arguments and threads.

    One set of arguments is kept of each kind, as it was before the call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[tuple[Any, ...]] = Counter()
        self.first: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the call and run it."""
        kwargs = kwargs or {}
        if not func.is_view and func is not torch.ops.aten._unsafe_view.default:
            key = (func, str(tree_map(_kind, (args, kwargs))), torch.get_num_threads())
            self.count[key] += 1
            if key not in self.first:
                self.first[key] = tree_map(_copied, (args, kwargs))
        return func(*args, **kwargs)


def _kind(value: Any) -> Any:
    return (value.dtype, tuple(value.shape), value.stride()) if isinstance(value, torch.Tensor) else value


def _copied(value: Any) -> Any:
    """A tensor of its own, laid out as `value`; what shares memory between its entries is read, never written."""
    if not isinstance(value, torch.Tensor) or 0 in value.stride():
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)


_KERNELS = (
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
    torch.ops.aten.baddbmm_.default,
    torch.ops.aten._linalg_eigh.default,
    torch.ops.aten._linalg_eigh.eigenvalues,
)


class Alone(NamedTuple):
    """Milliseconds of the operations of a run, each timed alone, hot in the caches, and summed; how many they are."""

    kernels_ms: float  # matrix products and eigendecompositions
    all_ms: float
    calls: int


def alone(run: Callable[[], Any], rounds: int, device: torch.device) -> Alone:
    """What the operations of `run` take when each is timed alone with the arguments that it had there.

    What `run` takes beyond it goes to the calls themselves and to memory that is not in the caches any more. Views are
    left out. Of eigendecompositions that run side by side in several threads it counts those of the calling thread.
    """
    with _Calls() as mode:
        run()
    kernels = total = 0.0
    threads = torch.get_num_threads()
    for key, count in mode.count.items():
        func, _, used = key
        times = []
        torch.set_num_threads(used)
        for _ in range(rounds + WARM_UP):
            args, kwargs = tree_map(_copied, mode.first[key])
            times.append(seconds_of(lambda f=func, a=args, k=kwargs: f(*a, **k), device))
        torch.set_num_threads(threads)
        milliseconds = 1e3 * count * statistics.median(times[WARM_UP:])
        total += milliseconds
        if func in _KERNELS:
            kernels += milliseconds
    return Alone(kernels, total, mode.count.total())


def machine(device: torch.device) -> str:
    """One line that says what the figures were measured on."""
    if device.type == "cuda":
        chip = torch.cuda.get_device_name(device)
    else:
        chip = f"{_cpu_name()}, {torch.get_num_threads()} threads"
    return f"{chip}; torch {torch.__version__}; {time.strftime('%Y-%m-%d')}"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Rows with the same keys as a Markdown table."""
    names = list(rows[0])
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    lines += [f"| {' | '.join(_cell(row[name]) for name in names)} |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows to `path` at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    part.replace(path)


def write_table(folder: Path, name: str, about: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print what the rows are about and their table, and write both to `folder`: NAME.csv and NAME.md."""
    text = f"{about}\n\n{markdown(rows)}"
    print(text)
    write_csv(folder / f"{name}.csv", rows)
    write_text(folder / f"{name}.md", text + "\n")


def bar_chart(path: Path, rows: Sequence[dict[str, Any]], label: str, columns: Sequence[str], title: str) -> None:
    """Grouped bars of `columns` per row on a logarithmic axis, as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(1.6 * len(rows) + 3, 4.5), layout="constrained")
    width = 0.8 / len(columns)
    for k, column in enumerate(columns):
        heights = [row.get(column) or float("nan") for row in rows]
        axes.bar([i + k * width for i in range(len(rows))], heights, width, label=column)
    axes.set_yscale("log")
    axes.set_xticks([i + 0.4 - width / 2 for i in range(len(rows))], [row[label] for row in rows], fontsize=7)
    axes.set_ylabel("ms (log scale)")
    axes.set_title(title)
    axes.legend(fontsize="small", ncols=2)
    axes.grid(axis="y", alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
