"""How the last stage of a timm ResNet down-samples: not at all as in the paper, as stock, or by a max-pool in front."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from timm.models.resnet import ResNet
from torch import nn

from timm_gcp.common.messages import check_choice
from timm_gcp.models.swap_args import note_last_stage

LAST_STAGES = ("stride1", "stride2", "maxpool")


def set_last_stage(model: ResNet, last_stage: str) -> ResNet:
    """Set how the last stage of a timm ResNet down-samples, in place; the parameters stay the same.

    A model whose `output_stride` already keeps the last stage at stride 1 (by dilation) is left as it is.

    Args:
        model: A timm ResNet whose last stage down-samples by strided convolutions alone, in both branches of its
            first block. ResNets with average pooling there (the -D variants, ResNeSt, Res2Net) or with anti-aliasing
            take `'stride2'` only.
        last_stage: `'stride1'`, `'stride2'` or `'maxpool'`.

    Returns:
        `model` itself.

    Raises:
        ValueError: Another `last_stage`, or a model that can't take it; it is then left as it was.
    """
    check_choice("last_stage", last_stage, LAST_STAGES)
    if last_stage == "stride2":
        return model
    layer4: Any = getattr(model, "layer4", None)
    if not isinstance(layer4, nn.Sequential):
        raise ValueError(
            f"last_stage={last_stage!r} is for timm ResNets, whose last stage is layer4; "
            f"{type(model).__name__} has none"
        )
    strided = {name: module for name, module in layer4[0].named_modules(prefix="layer4.0") if _is_strided(module)}
    if not strided:
        return model
    other = [f"{name} ({type(m).__name__})" for name, m in strided.items() if not _keeps_size_unstrided(m)]
    if other:
        raise ValueError(
            f"last_stage={last_stage!r} takes the stride out of convolutions, but this {type(model).__name__} also "
            f"down-samples by {', '.join(other)}; use last_stage='stride2', or a ResNet without avg_down, aa_layer and "
            "the like"
        )
    for conv in strided.values():
        conv.stride = (1, 1)
    if last_stage == "maxpool":
        model.layer4 = nn.Sequential(OrderedDict(pool=nn.MaxPool2d(2), **dict(layer4.named_children())))
    else:
        last: Any = model.feature_info[-1]
        last["reduction"] //= 2
    note_last_stage(model, last_stage)
    return model


def _is_strided(module: nn.Module) -> bool:
    """Whether a layer down-samples; a block that notes its stride is none itself."""
    stride: Any = getattr(module, "stride", 1)
    layer = not any(True for _ in module.children())
    return layer and any(step > 1 for step in (stride if isinstance(stride, tuple) else (stride,)))


def _keeps_size_unstrided(module: Any) -> bool:
    """Whether a strided layer is a convolution that keeps height and width once its stride is one."""
    if not isinstance(module, nn.Conv2d) or isinstance(module.padding, str):
        return False
    sizes = zip(module.kernel_size, module.dilation, module.padding, strict=True)
    return all(dilation * (kernel - 1) == 2 * padding for kernel, dilation, padding in sizes)
