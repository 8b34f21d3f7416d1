"""Principal components as the start of a reduction: against an eigendecomposition, of swapped models, refusals."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

import timm_gcp
from timm_gcp.models.pooling import GlobalCovPool2d
from timm_gcp.models.principal import set_principal


def features(*shape: int) -> torch.Tensor:
    """Maps whose channels are mixtures of different scales, away from zero."""
    torch.manual_seed(0)
    mixed = torch.randn(shape[1], shape[1]) @ torch.diag(torch.logspace(0, -2, shape[1]))
    return torch.einsum("cd,bdn->bcn", mixed, torch.randn(shape[0], shape[1], shape[2])) + 3


def test_directions_are_those_of_largest_variance():
    maps = features(6, 10, 30)
    pool = GlobalCovPool2d(10, 4, act_layer=nn.Identity)
    share = set_principal(pool, maps.unflatten(2, (5, 6)).split(4))
    rows = maps.transpose(1, 2).reshape(-1, 10).double()
    values, vectors = torch.linalg.eigh(torch.cov(rows.T, correction=0))
    weight = pool.reduction[0].conv.weight.flatten(1).double()
    torch.testing.assert_close((weight @ vectors[:, -4:].flip(1)).abs(), torch.eye(4).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(pool.reduction[0].bn.running_var.double(), values[-4:].flip(0), rtol=1e-5, atol=0)
    assert share == pytest.approx((values[-4:].sum() / values.sum()).item(), rel=1e-6) and 0.9 < share < 1
    reduced = pool.eval().reduction(maps.unflatten(2, (5, 6))).transpose(0, 1).flatten(1).double()
    torch.testing.assert_close(torch.cov(reduced, correction=0), torch.eye(4).double(), atol=1e-3, rtol=0)
    torch.testing.assert_close(reduced.mean(1), torch.zeros(4).double(), atol=1e-4, rtol=0)


def test_a_reduction_that_was_used_before_starts_anew():
    pool, fresh = (GlobalCovPool2d(10, 4) for _ in range(2))
    maps = features(6, 10, 30)
    pool.train()(torch.randn(2, 10, 3, 3))
    nn.init.constant_(pool.reduction[0].bn.weight, 5.0)
    set_principal(pool, [maps])
    set_principal(fresh, [maps])
    for key, value in fresh.state_dict().items():
        torch.testing.assert_close(pool.state_dict()[key], value)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext"])
def test_of_a_swapped_model(name):
    """Feature maps, tokens and NHWC: the components of what the pooling gets; nothing else changes, nor the mode."""
    torch.manual_seed(0)
    model = timm_gcp.swap_pooling(timm.create_model(name, num_classes=3), 4)
    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    size = model.pretrained_cfg["input_size"][-1]
    batches = [(torch.randn(4, 3, size, size), torch.zeros(4)), torch.randn(3, 3, size, size)]
    timm_gcp.init_reduction(model, batches)
    assert model.training and all(module.training for module in model.modules())
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    (prefix,) = (key for key, module in model.named_modules() if isinstance(module, GlobalCovPool2d))
    assert changed == {f"{prefix}.reduction.0.{key}" for key in ("conv.weight", "bn.running_mean", "bn.running_var")}
    pool, seen = model.get_submodule(prefix), []
    pool.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    model.eval()
    with torch.no_grad():
        for batch in batches:
            model(batch[0] if isinstance(batch, tuple) else batch)
    again = GlobalCovPool2d(seen[0].shape[1], 4)
    set_principal(again, seen)
    torch.testing.assert_close(again.reduction[0].conv.weight, pool.reduction[0].conv.weight)


@pytest.mark.parametrize(
    ("pool", "maps", "said"),
    [
        (GlobalCovPool2d(6, (4, 3)), torch.randn(2, 6, 9), r"has 2 steps; .* give reduce_dim=128"),
        (GlobalCovPool2d(6, None), torch.randn(2, 6, 9), r"has 0 steps"),
        (GlobalCovPool2d(6, 7), torch.randn(2, 6, 9), r"from 6 channels to 7; there are no more principal"),
        (GlobalCovPool2d(6, 4), torch.randn(2, 5, 9), r"expected maps \(B, 6, H, W\), got shape \(2, 5, 9\)"),
        (GlobalCovPool2d(6, 4), torch.full((2, 6, 9), torch.nan), r"holds NaN or Inf; check the backbone"),
        (GlobalCovPool2d(6, 4), torch.randn(1, 6, 4), r"4 directions need more than 4 positions, got 4: give more"),
    ],
)
def test_refusals(pool, maps, said):
    before = {key: value.clone() for key, value in pool.state_dict().items()}
    with pytest.raises(ValueError, match=said):
        set_principal(pool, [maps])
    assert all(torch.equal(value, before[key]) for key, value in pool.state_dict().items())


def test_a_model_without_a_covariance_head():
    with pytest.raises(ValueError, match=r"ResNet has 0 GlobalCovPool2d; init_reduction takes a model with one"):
        timm_gcp.init_reduction(timm.create_model("test_resnet"), [])
