"""A function by the shorter way is the function: value, gradients, name and what is kept."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from timm_gcp.ops.direct import first_output
from timm_gcp.ops.products import ProductPool
from timm_gcp.ops.scalar_functions import NewtonSchulz
from timm_gcp.ops.spectral import SpectralPool

CALLS = {
    "products, N×N": (ProductPool, 5, True, None),
    "products, D×D": (ProductPool, 5, False, None),
    "spectral, N×N": (SpectralPool, NewtonSchulz(5), True),
    "spectral, D×D": (SpectralPool, NewtonSchulz(5), False),
}


@pytest.fixture
def features() -> Tensor:
    """Two images of 6 channels and 9 positions."""
    return torch.randn(2, 6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", CALLS)
def test_value_and_gradients_are_those_of_the_function(name: str, features: Tensor) -> None:
    function, *rest = CALLS[name]
    x, y = features.clone().requires_grad_(), features.clone().requires_grad_()
    direct, applied = first_output(function, x, *rest), function.apply(y, *rest)[0]
    assert torch.equal(direct, applied)
    weight = torch.linspace(-1, 1, direct.numel(), dtype=torch.float64).view_as(direct)
    first = [torch.autograd.grad((v * weight).sum(), z, create_graph=True)[0] for v, z in ((direct, x), (applied, y))]
    assert torch.equal(*first)
    second = [torch.autograd.grad(grad.square().sum(), z)[0] for grad, z in zip(first, (x, y), strict=True)]
    assert torch.equal(*second)
    assert second[0].abs().max() > 0


@pytest.mark.parametrize("name", CALLS)
def test_it_keeps_the_same_and_bears_the_same_name(name: str, features: Tensor) -> None:
    function, *rest = CALLS[name]
    x, kept = features.clone().requires_grad_(), []

    def record(tensor: Tensor) -> Tensor:
        kept[-1].append(tuple(tensor.shape))
        return tensor

    for call in (lambda: first_output(function, x, *rest), lambda: function.apply(x, *rest)[0]):
        kept.append([])
        with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
            value = call()
        assert value.grad_fn.name() == f"{function.__name__}Backward"
    assert kept[0] == kept[1]
    assert len(kept[0]) > 1


@pytest.mark.parametrize("name", CALLS)
def test_under_torch_func_it_is_the_function_itself(name: str, features: Tensor) -> None:
    function, *rest = CALLS[name]
    x = features.clone().requires_grad_()
    (expected,) = torch.autograd.grad(first_output(function, x, *rest).sum(), x)
    gradient = torch.func.grad(lambda z: first_output(function, z, *rest).sum())
    each = torch.func.vmap(lambda z: gradient(z[None])[0])(features)
    torch.testing.assert_close(gradient(features), expected, rtol=0, atol=0)
    torch.testing.assert_close(each, expected, rtol=1e-12, atol=1e-12)
