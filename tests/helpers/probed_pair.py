"""The batch that two processes probe together in `test_landscape_train_py.py`: in a module that both can import."""

from __future__ import annotations

import timm
import torch
import torch.distributed as dist

from timm_gcp.landscape import LandscapeCallback
from timm_gcp.reproduce.landscape_train_py import Probes, gathered

RANGE = {"low": 0.1, "high": 5.0, "points": 3}


def of_two(rank: int, folder: str) -> None:
    """Probe this process's half of four images; process 0 also probes all four alone."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=2).train()
    images = torch.randn(4, 3, 32, 32)
    targets = torch.arange(4) % 2
    mine = slice(2 * rank, 2 * rank + 2)
    assert torch.equal(gathered(images[mine]), images) and torch.equal(gathered(targets[mine]), targets)
    probes = Probes(f"{folder}/two.csv", 1, **RANGE)
    probes.before(model, images[mine], targets[mine])
    dist.barrier()
    if rank == 0:
        one = LandscapeCallback(f"{folder}/one.csv", *RANGE.values(), every=1)
        one.on_update(0, model, (images, targets))
    else:
        assert probes.callback.records == []
    dist.destroy_process_group()
