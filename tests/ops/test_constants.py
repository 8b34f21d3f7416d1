"""Constants are made once for a size, type and device, and never kept from a graph capture or in inference mode."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from timm_gcp.ops.constants import constant, identity, is_plain


def test_one_identity_for_a_size_and_a_type():
    a = torch.zeros(2, 3, 3)
    assert identity(a) is identity(torch.ones(5, 3, 3))
    assert torch.equal(identity(a), torch.eye(3))
    assert identity(a.double()).dtype == torch.float64


def test_made_anew_for_fake_tensors():
    with FakeTensorMode():
        like = torch.zeros(4, 4)
        assert not is_plain(like)
        assert identity(like) is not identity(like)
    assert torch.equal(identity(torch.zeros(4, 4)), torch.eye(4))


def test_what_is_first_made_in_inference_mode_serves_in_training():
    def make(n: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.full((n,), 2.0, dtype=dtype, device=device)

    with torch.inference_mode():
        constant(make, torch.zeros(7), 7)
    x = torch.ones(7, requires_grad=True)
    (grad,) = torch.autograd.grad((x * x * constant(make, x, 7)).sum(), x)
    assert torch.equal(grad, torch.full((7,), 4.0))
