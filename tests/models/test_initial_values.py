"""Initial values of the registered models against the authors' constructors (tests/data/authors/init.json)."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

import timm_gcp
from timm_gcp.models.initial_values import INIT_RULES, init_conv, init_linear, init_model

STATED = json.loads((Path(__file__).parents[1] / "data/authors/init.json").read_text())
MODELS = (
    "resnet18_gcp",
    "resnet34_gcp",
    "resnet50_gcp",
    "resnet50_gcp_d128",
    "resnet101_gcp",
    "mobilenetv2_100_gcp",
    "mobilenetv2_100_gcp_d128",
    "shufflenet_v2_x1_0_gcp",
    "shufflenet_v2_x1_0",
)
SIGMAS = 5.0


def torch_default(weight: torch.Tensor) -> float:
    """Standard deviation of torch's default: uniform within 1/sqrt(fan_in)."""
    return 1 / math.sqrt(3 * weight[0].numel())


def fan_out(weight: torch.Tensor) -> float:
    """Standard deviation by fan_out = output channels × kernel area, whatever the groups."""
    return math.sqrt(2 / (weight.shape[0] * weight[0, 0].numel()))


def stated_std(family: str, module: nn.Module) -> float:
    """What the authors' constructor of `family` gives the weight of a convolution or linear layer."""
    weight = module.weight
    if isinstance(module, nn.Conv2d):
        return torch_default(weight) if family == "shufflenet" else fan_out(weight)
    return 0.01 if family == "mobilenet" else torch_default(weight)


def deviations(name: str, model: nn.Module) -> list[str]:
    """Parameters whose standard deviation is not the stated one, to within the scatter of that many draws."""
    family = name.split("v2")[0].split("_")[0].rstrip("0123456789")
    wrong = []
    for path, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            if not (module.weight == 1).all() or not (module.bias == 0).all():
                wrong.append(path)
        elif isinstance(module, nn.Conv2d | nn.Linear):
            expected = stated_std(family, module)
            # The sample deviation of n normal draws scatters by 1/sqrt(2n), of uniform draws by less.
            slack = SIGMAS / math.sqrt(2 * module.weight.numel())
            if (
                abs(module.weight.std().item() / expected - 1) > slack
                or abs(module.weight.mean()) > slack * expected * 2
            ):
                wrong.append(f"{path}: {module.weight.std():.4f} for {expected:.4f}")
            if module.bias is not None:
                bound = 0.0 if family == "mobilenet" else 1 / math.sqrt(module.weight[0].numel())
                if module.bias.abs().max() > bound or (bound and module.bias.std() < bound / 3):
                    wrong.append(f"{path}.bias")
    return wrong


@pytest.mark.parametrize("pooling", ["gcp", "avg"])
@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_starts_as_the_authors(name: str, pooling: str) -> None:
    torch.manual_seed(1)
    model = timm.create_model(name, global_pool=pooling if "gcp" in name else "avg", num_classes=50)
    covered = {
        f"{path}.{leaf}"
        for path, module in model.named_modules()
        if isinstance(module, nn.BatchNorm2d | nn.Conv2d | nn.Linear)
        for leaf, _ in module.named_parameters(recurse=False)
    }
    assert covered == {key for key, _ in model.named_parameters()}
    assert deviations(name, model) == []


@pytest.mark.parametrize("name", ["resnet18_gcp", "mobilenetv2_100_gcp", "shufflenet_v2_x1_0_gcp"])
def test_one_changed_layer_is_noticed(name: str) -> None:
    torch.manual_seed(1)
    model = timm.create_model(name, num_classes=10)
    layers = [path for path, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        for path in layers:
            model.get_submodule(path).weight.mul_(1.5)
    assert [entry.split(":")[0] for entry in deviations(name, model)] == layers


def test_measured_deviations_of_the_authors() -> None:
    """The figures measured on the authors' fresh models: the rule above gives them, and so do our models."""
    torch.manual_seed(1)
    mobilenet = timm.create_model("mobilenetv2_100_gcp", num_classes=2)
    shufflenet = timm.create_model("shufflenet_v2_x1_0_gcp", num_classes=2)
    measured = {
        **STATED["mobilenet_v2, mobilenet_v2_mpncov, _128"]["measured_std"],
        **STATED["shufflenet_v2_x1_0, shufflenet_v2_mpncov_x1_0"]["measured_std"],
    }
    layers = [m for net in (mobilenet, shufflenet.global_pool) for m in net.modules() if isinstance(m, nn.Conv2d)]
    for label, value in measured.items():
        shape = tuple(int(n) for n in label.split()[1].split("x"))
        found = [m.weight.std().item() for m in layers if tuple(m.weight.shape) == shape]
        assert found
        assert found == pytest.approx([value] * len(found), rel=0.15)


def test_a_new_classifier_starts_by_the_same_rule() -> None:
    model = timm.create_model("mobilenetv2_100_gcp", num_classes=2)
    model.reset_classifier(100)
    assert model.classifier.weight.std().item() == pytest.approx(0.01, rel=0.01)
    assert not model.classifier.bias.any()
    model.reset_classifier(100, "avg")
    assert model.classifier.weight.std().item() == pytest.approx(0.01, rel=0.01)


def test_init_keyword_sets_the_head() -> None:
    torch.manual_seed(1)
    model = timm.create_model("shufflenet_v2_x1_0_gcp", num_classes=2, init="fan_out")
    assert model.global_pool.reduction[0].conv.weight.std().item() == pytest.approx(math.sqrt(2 / 256), rel=0.02)
    layer = timm_gcp.GlobalCovPool2d(1024, 256, init="torch")
    assert layer.reduction[0].conv.weight.std().item() == pytest.approx(1 / math.sqrt(3 * 1024), rel=0.02)


def test_rules_leave_what_they_do_not_name() -> None:
    conv, linear = nn.Conv2d(3, 4, 3), nn.Linear(3, 4)
    before = [p.clone() for p in (*conv.parameters(), *linear.parameters())]
    init_model(nn.Sequential(conv, linear), "torch")
    assert all(torch.equal(a, b) for a, b in zip(before, (*conv.parameters(), *linear.parameters()), strict=True))
    init_model(nn.Sequential(conv, linear), "fan_out")
    assert not conv.bias.any()
    assert torch.equal(linear.weight, before[2])


@pytest.mark.parametrize(
    "call",
    [
        lambda: init_conv(nn.Conv2d(1, 1, 1), "he"),
        lambda: init_linear(nn.Linear(1, 1), "he"),
        lambda: init_model(nn.Linear(1, 1), "he"),
        lambda: timm_gcp.GlobalCovPool2d(4, 2, init="he"),
        lambda: timm.create_model("resnet18_gcp", init="he"),
    ],
)
def test_unknown_rule_is_refused_with_the_known_ones(call) -> None:
    with pytest.raises(ValueError, match="init is 'he'; choose one of 'fan_out', 'fan_out_normal', 'torch'"):
        call()
    assert INIT_RULES == ("fan_out", "fan_out_normal", "torch")
