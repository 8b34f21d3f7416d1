"""The first output of an autograd function, by the shorter way where `torch.func` is not at work.

Functions for `torch.func` return all that backward needs as outputs. Each becomes a tensor of the graph, which counts
where a single image is pooled.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


@functools.lru_cache
def _direct(function: type[Function]) -> type[Function]:
    """`function` with its first output alone; what its context keeps of the others is kept all the same."""

    def forward(ctx: Any, *inputs: Any) -> Tensor:
        outputs = function.forward(*inputs)
        function.setup_context(ctx, inputs, outputs)
        return outputs[0]

    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return function.backward(ctx, *grads)

    made = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return types.new_class(function.__name__, (Function,), exec_body=lambda body: body.update(made))


def first_output(function: type[Function], *inputs: Any) -> Tensor:
    """`function.apply(*inputs)[0]`.

    Args:
        function: Has `forward` without a context and `setup_context`; its outputs beside the first are not
            differentiable.
        inputs: Its inputs.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return function.apply(*inputs)[0]
    return _direct(function).apply(*inputs)
