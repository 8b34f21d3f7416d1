"""Checks of docs/scale.md: two nodes, WebDataset shards, Hugging Face datasets; two processes each, on the CPU."""

from __future__ import annotations

import io
import json
import re
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

from train_py_bench import ROOT, Bench, CheckFailed, same, summary
from train_py_checks import SCALE, TORCHRUN, TWO_CPUS, check, expected_rates


@check("two nodes of one process")
def two_nodes(bench: Bench) -> str:
    """Two torchrun, as on two machines, meet at one address; the rates and the summary are those of one node."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = bench.scratch / "output" / "two_nodes"
    training = bench.arguments("resnet_adju", *SCALE, *TWO_CPUS, batch=2)
    training += ["--output", str(folder.parent), "--experiment", folder.name]
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={rank}", "--nproc-per-node=1",
             "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=check", "train.py", *training],
            cwd=bench.scratch, env=bench.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    told = [node.communicate(timeout=600)[0] for node in nodes]
    if any(node.returncode for node in nodes):
        raise CheckFailed(f"exit statuses {[node.returncode for node in nodes]}: {told[0].strip().splitlines()[-1]}")
    rows = summary(folder)
    same([row["lr"] for row in rows], expected_rates("resnet_adju", 2, 3), "rates")
    return f"{len(rows)} epochs, rates of the closed form"


def _shards(bench: Bench) -> Path:
    """The bench's images as WebDataset shards, two a split, with timm's `_info.json`."""
    root = bench.scratch / "shards"
    root.mkdir()
    splits = {}
    for split in ("train", "validation"):
        files = sorted((bench.images / split).glob("*/*.png"))
        names, lengths = [], []
        for number in range(2):
            part = files[number::2]
            name = f"{split}-{number:04d}.tar"
            with tarfile.open(root / name, "w") as tar:
                for index, path in enumerate(part):
                    label = str(path.parent.name.removeprefix("class")).encode()
                    for ending, content in (("png", path.read_bytes()), ("cls", label)):
                        entry = tarfile.TarInfo(f"{number}{index:05d}.{ending}")
                        entry.size = len(content)
                        tar.addfile(entry, io.BytesIO(content))
            names.append(name)
            lengths.append(len(part))
        splits[split] = {"name": split, "num_samples": len(files), "filenames": names, "shard_lengths": lengths}
    (root / "_info.json").write_text(json.dumps({"splits": splits}))
    return root


def _data(bench: Bench, *data: str) -> str:
    arguments = bench.arguments("resnet_adju", *SCALE, *TWO_CPUS, batch=2)
    at = arguments.index("--data-dir")
    del arguments[at : at + 2]
    at = arguments.index("--workers")
    arguments[at + 1] = "1"  # a reader of shards needs a worker
    rows = summary(bench.start(*arguments, *data, launcher=TORCHRUN))
    same(len(rows), 2, "epochs in summary.csv")
    return f"two processes, final top-1 {rows[-1]['eval_top1']:g}"


@check("WebDataset shards")
def webdataset(bench: Bench) -> str:
    """`--dataset wds/` reads tar files."""
    return _data(bench, "--dataset", "wds/", "--data-dir", str(_shards(bench)))


@check("Hugging Face datasets")
def hugging_face(bench: Bench) -> str:
    """`--dataset hfds/FOLDER` reads a folder or a repository of images."""
    return _data(bench, "--dataset", f"hfds/{bench.images}", "--data-dir", str(bench.scratch / "hfds"))


@check("FSDP2")
def fsdp2(bench: Bench) -> str:
    """The script of docs/scale.md under `fully_shard` prints the losses that it prints under DDP."""
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    if found is None:
        raise CheckFailed("docs/scale.md has no Python script")
    sharded = found.group(1)
    # The same script with DDP in the place of the lines that shard.
    lines = [line for line in sharded.splitlines() if not re.match(r"for stage in|    fully_shard\(stage\)", line)]
    replicated = "\n".join(lines).replace(
        "fully_shard(model)", "model = torch.nn.parallel.DistributedDataParallel(model)"
    )
    losses = []
    for name, script in (("fsdp2.py", sharded), ("ddp.py", replicated)):
        (bench.scratch / name).write_text(script)
        done = bench.python(*TORCHRUN[:-1], name)
        if done.returncode:
            raise CheckFailed(f"{name}: {done.stderr.strip().splitlines()[-1]}")
        losses.append(sorted(re.findall(r"rank \d, step \d: loss [\d.]+", done.stdout)))  # lines of two processes mix
    same(len(losses[0]), 6, "lines of losses")
    same(losses[0], losses[1], "losses")
    return f"equal to DDP: {losses[0][2]}"
