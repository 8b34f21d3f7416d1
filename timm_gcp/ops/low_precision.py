"""Products inside Newton–Schulz in bfloat16: each factor as one term, or as two that keep 16 bits.

A bfloat16 number has 8 bits, so that a factor rounded to it is off by up to 2⁻⁹ to 2⁻⁸. Split as a = h + l, with h the
nearest bfloat16 and l the one nearest to a − h, it is off by 2⁻¹⁷ or so, and

    a b ≈ hₐ h_b + hₐ l_b + lₐ h_b,

where what is left out, lₐ l_b, is of the order of that rounding. Products of two bfloat16 numbers are exact in
float32, so three products that sum in float32 give nearly float32's result on hardware that multiplies bfloat16 only.
Here they are one product with an inner side three times as long: (hₐ hₐ lₐ)(h_b; l_b; h_b).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from timm_gcp.ops.choice import is_exporting
from timm_gcp.ops.precision import autocast_off

LOW_PRECISIONS = ("bfloat16", "bfloat16x2")


def low_product(a: Tensor, b: Tensor, low: str) -> Tensor:
    """`a b` for batches, the factors rounded as `low`, of `LOW_PRECISIONS`, says; in the type of `a`."""
    if low == "bfloat16":
        return torch.bmm(a.bfloat16(), b.bfloat16()).to(a.dtype)
    value: Tensor = TwoTermProduct.apply(a, b.view_as(b) if b is a else b)  # torch.compile refuses a tensor given twice
    return value


class TwoTermProduct(torch.autograd.Function):
    """`(B, n, k)`, `(B, k, m)` -> `(B, n, m)` by two terms a factor; so are the products of its backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        """The product."""
        wide = _sums_in_float32(a)
        dtype = torch.bfloat16 if wide else torch.float32
        (high_a, low_a), (high_b, low_b) = _two_terms(a, dtype), _two_terms(b, dtype)
        left, right = torch.cat((high_a, high_a, low_a), -1), torch.cat((high_b, low_b, high_b), -2)
        value = torch.bmm(left, right, out_dtype=torch.float32) if wide else torch.bmm(left, right)
        return value.to(a.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keep the factors."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of the factors that need one."""
        a, b = ctx.saved_tensors
        with autocast_off(grad.device):
            d_a = TwoTermProduct.apply(grad, b.mT) if ctx.needs_input_grad[0] else None
            d_b = TwoTermProduct.apply(a.mT, grad) if ctx.needs_input_grad[1] else None
        return d_a, d_b


def _sums_in_float32(a: Tensor) -> bool:
    """Whether bfloat16 products with float32 sums are to be had: CUDA from torch 2.8, and not in a portable program.

    Elsewhere the terms are multiplied as float32 numbers: the same products and sums. TF32 holds the terms exactly.
    """
    cuda = a.device.type == "cuda"  # torch 2.6 does not compile `a.is_cuda` in a backward
    return cuda and torch.version.hip is None and hasattr(torch.ops.aten.bmm, "dtype") and not is_exporting()


def _two_terms(a: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    a = a.float()
    high = _nearest(a)
    return high.to(dtype), _nearest(a - high).to(dtype)


def _nearest(a: Tensor) -> Tensor:
    """The float32 tensor `a` rounded to bfloat16.

    By its bits where code is compiled, for a compiler may drop a conversion to bfloat16 and back, and with it the
    second term. A program for export holds both terms in float32, where dropping the conversions only adds digits.
    """
    if torch.compiler.is_compiling() and not is_exporting():
        return ((a.contiguous().view(torch.int32) + 0x8000) & -0x10000).view(torch.float32)
    return a.bfloat16()
