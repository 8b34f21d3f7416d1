"""How layers start: the three rules of the authors' constructors, and the one that `swap_pooling` takes by default.

The authors initialise each family by a rule of its own. Under batch-norm the effective learning rate of a convolution
goes as 1/‖w‖², so the scale of its initial weights matters although it does not change what the layer computes.
"""

from __future__ import annotations

from torch import nn

from timm_gcp.common.messages import check_choice

INIT_RULES = ("fan_out", "fan_out_normal", "torch")


def init_conv(conv: nn.Conv2d, rule: str) -> None:
    """Initialise a new convolution in place.

    Args:
        conv: The layer, as torch's constructor leaves it.
        rule: `'fan_out'` and `'fan_out_normal'` draw from N(0, 2 / fan_out) with fan_out = output channels × kernel
            area, not divided by groups (the authors' ResNets and MobileNetV2); `'torch'` is torch's own default,
            uniform with variance 1 / (3 fan_in) (their ShuffleNetV2).

    Raises:
        ValueError: Another rule.
    """
    check_choice("init", rule, INIT_RULES)
    if rule != "torch":
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        if conv.bias is not None:
            nn.init.zeros_(conv.bias)


def init_linear(linear: nn.Linear, rule: str) -> None:
    """Initialise a new classifier in place.

    Args:
        linear: The layer, as torch's constructor leaves it.
        rule: `'fan_out_normal'` draws from N(0, 0.01²) with zero bias (the authors' MobileNetV2); `'fan_out'` and
            `'torch'` are torch's own default (their ResNets and ShuffleNetV2).

    Raises:
        ValueError: Another rule.
    """
    check_choice("init", rule, INIT_RULES)
    if rule == "fan_out_normal":
        nn.init.normal_(linear.weight, 0.0, 0.01)
        nn.init.zeros_(linear.bias)


def init_model(model: nn.Module, rule: str) -> nn.Module:
    """Initialise every convolution and linear layer of `model` by `rule`, in place; returns it.

    Args:
        model: Any model; what `rule` leaves to torch's default stays as it is.
        rule: See `init_conv` and `init_linear`.

    Raises:
        ValueError: Another rule.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            init_conv(module, rule)
        elif isinstance(module, nn.Linear):
            init_linear(module, rule)
    return model
