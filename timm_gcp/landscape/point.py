"""A model at one batch, with the output X of a layer set free: loss and gradient there and at X + η∇L(X).

Many step sizes η share a pass. Batch-norm in training mode would then mix their statistics, so it is computed group by
group: each step size sees the statistics of its own copy of the batch, exactly as if it had been alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from timm_gcp.train.untouched import GroupedBatchNorm, LossFunction


def find_layer(model: nn.Module, name: str | None = None) -> nn.Module:
    """The module called `name`, or the first `nn.Conv2d` in registration order when no name is given.

    Raises:
        ValueError: There is no such module; the message lists the convolutions of the model.
    """
    convolutions = [key for key, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    if name is None:
        if not convolutions:
            raise ValueError(f"{type(model).__name__} has no nn.Conv2d to probe. Name a layer, as in --layer NAME.")
        name = convolutions[0]
    modules = dict(model.named_modules())
    if not name or name not in modules:
        known = ", ".join(convolutions[:8]) + (", ..." if len(convolutions) > 8 else "")
        raise ValueError(f"{type(model).__name__} has no layer {name!r}. Its convolutions are: {known}.")
    return modules[name]


class LandscapePoint:
    """One batch at one state of the model: X, L(X), ∇L(X), and evaluations at X + η∇L(X)."""

    def __init__(self, model: nn.Module, layer: nn.Module, images: Tensor, targets: Tensor, loss: LossFunction) -> None:
        self.model, self.layer, self.images, self.targets, self.loss_function = model, layer, images, targets, loss
        losses, gradient, self.x = self._evaluate(None, 1, backward=True)
        self.loss, self.gradient = losses[0], gradient

    def _evaluate(self, x: Tensor | None, groups: int, backward: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Losses `(groups,)` with the layer's output replaced by `x`, their gradients, and the output itself."""
        seen: list[Tensor] = []

        def replace(_module: nn.Module, _inputs: Any, output: Any) -> Tensor:
            if not isinstance(output, Tensor) or seen:
                what = "is called more than once" if seen else f"returns a {type(output).__name__}, not a tensor"
                raise ValueError(f"the probed layer {what} in a forward pass. Choose another layer with --layer NAME.")
            leaf = (output if x is None else x).detach().clone().requires_grad_(backward)
            seen.append(leaf)
            return leaf.clone()  # the next layer may work in place, which a leaf does not allow

        handle = self.layer.register_forward_hook(replace)
        try:
            with torch.set_grad_enabled(backward), GroupedBatchNorm(groups):
                images = self.images if groups == 1 else self.images.repeat(groups, *[1] * (self.images.dim() - 1))
                logits = self.model(images)
                if not seen:
                    raise ValueError(
                        "the probed layer is not used in a forward pass. Choose another with --layer NAME."
                    )
                parts = logits.unflatten(0, (groups, -1))
                losses = torch.stack([self.loss_function(part, self.targets) for part in parts])
                self.uniform_loss = self.loss_function(torch.zeros_like(parts[0].detach()), self.targets)
        finally:
            handle.remove()
        if not backward:
            return losses.detach(), torch.empty(0), seen[0]
        # the groups do not depend on each other, so the gradient of the sum holds every group's own gradient
        gradient = None
        if losses.requires_grad:
            (gradient,) = torch.autograd.grad(losses.sum(), seen[0], allow_unused=True)
        if gradient is None:
            raise ValueError("the loss does not depend on the probed layer. Choose another with --layer NAME.")
        return losses.detach(), gradient, seen[0].detach()

    def along_gradient(self, step_sizes: Tensor, backward: bool = True) -> tuple[Tensor, Tensor]:
        """Losses `(E,)` and, unless `backward` is off, gradient changes `(E,)` at X + η∇L(X), all in one pass."""
        steps = step_sizes.to(self.x).view(-1, *[1] * self.x.dim())
        moved = (self.x + steps * self.gradient).flatten(0, 1)
        losses, gradients, _ = self._evaluate(moved, len(step_sizes), backward)
        if not backward:
            return losses.double().cpu(), torch.empty(0)
        change = gradients.unflatten(0, (len(step_sizes), -1)) - self.gradient
        return losses.double().cpu(), change.double().flatten(1).norm(dim=1).cpu()
