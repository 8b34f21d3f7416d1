"""The rows of Table 1 on small networks."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from timm_gcp.reproduce.gradients import average_pooling_rows, covariance_pooling_rows, last_convolution
from timm_gcp.second_order.kfac import condition, conv_factors, kronecker_spectrum
from timm_gcp.second_order.study import DAMPING


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 3, 64, 64, generator=generator), torch.arange(4) % 2


def test_the_last_convolution_feeds_the_pooling():
    model = timm.create_model("resnet50", num_classes=2)
    assert last_convolution(model) is model.layer4[2].conv3
    model = timm.create_model("shufflenet_v2_x1_0", num_classes=2)
    assert last_convolution(model) is model.conv5[0]


def test_average_pooling(batch):
    torch.manual_seed(0)
    model = timm.create_model("shufflenet_v2_x1_0", num_classes=2, output_stride=16)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    rows = average_pooling_rows(model, *batch)
    assert rows["GAP"] == {
        "cosine": pytest.approx(1, abs=1e-6),
        "condition": pytest.approx(1),
        "flatness": pytest.approx(1),
    }
    assert rows["GAP + K-FAC"]["cosine"] is None and rows["GAP + K-FAC"]["condition"] > 10
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not model.global_pool._forward_hooks and not last_convolution(model)._forward_hooks


class Small(nn.Module):
    """One convolution, average pooling and a classifier, whose K-FAC factors can be written down."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.global_pool, self.fc = nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.global_pool(self.conv(x)).flatten(1))


def test_k_fac_is_that_of_the_last_convolution(batch):
    torch.manual_seed(0)
    model, (images, targets) = Small(), batch
    images = images[..., :8, :8]
    rows = average_pooling_rows_flat(model, images, targets)
    outputs = model.conv(images)
    outputs.retain_grad()
    nn.functional.cross_entropy(model.fc(outputs.mean(dim=(2, 3))), targets).backward()
    factors = conv_factors(model.conv, images.double(), outputs.grad.double())
    expected = condition(kronecker_spectrum(factors, 1.0, DAMPING))
    assert rows["GAP + K-FAC"]["condition"] == pytest.approx(expected, rel=1e-3)


def average_pooling_rows_flat(model: Small, images: torch.Tensor, targets: torch.Tensor) -> dict:
    """As timm's pooling layers do, hand out `(B, C)`."""
    model.global_pool = nn.Sequential(model.global_pool, nn.Flatten(1))
    return average_pooling_rows(model, images, targets)


def test_covariance_pooling(batch):
    torch.manual_seed(0)
    model = timm.create_model("shufflenet_v2_x1_0_gcp", num_classes=2, reduce_dim=8, output_stride=16)
    rows = covariance_pooling_rows(model, *batch)
    assert set(rows) == {"GCP, exact", "GCP, printed", "GCP, eigenbasis"}
    assert rows["GCP, exact"]["cosine"] > 0.9
    assert rows["GCP, eigenbasis"]["condition"] == pytest.approx(1, abs=1e-3)
    assert rows["GCP, eigenbasis"]["cosine"] > rows["GCP, printed"]["cosine"]
