"""Data-parallel training over two gloo processes on the loopback interface, and the conversion to SyncBatchNorm."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from data_parallel import NAMES, WORLD, batch, build, frozen_statistics, train, worker
from timm.layers import convert_sync_batchnorm
from torch import nn


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Folder with what each process holds after its training, `NAME.RANK.pt`."""
    if not dist.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    folder = tmp_path_factory.mktemp("trained")
    mp.spawn(worker, (free_port(), str(folder)), nprocs=WORLD)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_equal_one(trained, name):
    """Each process takes half of every batch; after three steps both hold what one process gets from whole batches.

    DistributedDataParallel also raises if a parameter takes no part in the loss, so that none is idle.
    """
    whole = frozen_statistics(build(name))
    start = {key: tensor.clone() for key, tensor in whole.state_dict().items()}
    train(whole, slice(None))
    for rank in range(WORLD):
        found = torch.load(trained / f"{name}.{rank}.pt", weights_only=True)
        for key, tensor in whole.state_dict().items():
            torch.testing.assert_close(found[key], tensor, rtol=1e-9, atol=1e-11, msg=lambda t, key=key: f"{key}: {t}")
    assert not torch.equal(start["fc.weight"], whole.state_dict()["fc.weight"])


@pytest.mark.parametrize("name", [*NAMES, "mobilenetv2_100_gcp"])
def test_sync_batch_norm(name):
    """Every batch normalisation is converted, those of the reduction too, under the same names with the same values.

    By timm's function, as its train.py does for --sync-bn: PyTorch's own drops the activation that timm keeps inside
    the batch normalisations of its EfficientNets, whatever their head.
    """
    model = build(name)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    expected = model.eval()(batch(0))
    converted = convert_sync_batchnorm(model)
    assert type(converted) is type(model)
    assert isinstance(converted.global_pool.reduction[0].bn, nn.SyncBatchNorm)
    assert not [m for m in converted.modules() if isinstance(m, nn.BatchNorm2d)]
    after = converted.state_dict()
    assert list(after) == list(before)
    assert expected.std() > 0
    assert all(torch.equal(after[key], before[key]) for key in before)
    torch.testing.assert_close(converted(batch(0)), expected, rtol=0, atol=1e-12)
