"""Measure at a model in training and leave it untouched: mode, gradients, batch-norm statistics and counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

LossFunction = Callable[[Tensor, Tensor], Tensor]


def unwrap(model: nn.Module) -> nn.Module:
    """The eager model inside `torch.compile` and data-parallel wrappers; it shares their parameters."""
    while hasattr(model, "_orig_mod") or isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module  # type: ignore[assignment]
    return model


class GroupedBatchNorm(TorchFunctionMode):
    """Training-mode batch-norm over `groups` equal parts of the batch, without touching running statistics."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute training-mode batch-norm in groups; anything else as it is."""
        if func is F.batch_norm:
            return self._batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _batch_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            return F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
        # one call per group: the same kernel on the same numbers however many step sizes share the pass
        parts = input.chunk(self.groups)
        return torch.cat([F.batch_norm(part, None, None, weight, bias, True, momentum, eps) for part in parts])


@contextmanager
def set_aside(model: nn.Module, batch_norm: str) -> Iterator[None]:
    """Evaluation mode without parameter gradients, batch-norm as asked; everything is put back afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    wanted = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    counters = [module.num_batches_tracked for module in norms]
    try:
        model.eval()  # dropout and stochastic depth off: the paper removes them to avoid randomness
        for norm in norms:
            norm.training = batch_norm == "train"
            norm.num_batches_tracked = None  # else the layer counts each probe as a training batch
        for parameter, _ in wanted:
            parameter.requires_grad_(False)
        yield
    finally:
        for norm, counter in zip(norms, counters, strict=True):
            norm.num_batches_tracked = counter
        for module, mode in modes:
            module.training = mode
        for parameter, flag in wanted:
            parameter.requires_grad_(flag)
