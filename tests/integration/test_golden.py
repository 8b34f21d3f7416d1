"""All 14 architectures of the authors' release against the logits of their own models.

The authors centre with an N×N matrix that their code builds in float32, also when the network runs in float64: its
entries 1/N and 1/N² are off by up to 6e-8, which the square root amplifies to as much as 7e-5 in the logits. So the
float64 test states their pooling independently, rounding and all, between our backbone, our reduction and our
classifier, and wants 1e-6; and it wants our pooling equal to the same statement without the rounding to 1e-9.
"""

from __future__ import annotations

import pytest
import synthetic
import timm
import torch

import timm_gcp  # noqa: F401
from timm_gcp.weights.architectures import ARCHITECTURES
from timm_gcp.weights.layouts import checkpoint_filter_fn


def authors_pooling(x: torch.Tensor, centring_dtype: torch.dtype) -> torch.Tensor:
    """Covariance, five coupled Newton–Schulz steps on the D×D side, upper triangle by rows: (B, D, H, W) -> (B, F)."""
    batch, dim, height, width = x.shape
    n = height * width
    x = x.reshape(batch, dim, n)
    centring = torch.eye(n, dtype=centring_dtype) * (1 / n) + torch.ones(n, n, dtype=centring_dtype) * (-1 / n / n)
    sigma = x @ centring.to(x.dtype) @ x.mT
    trace = sigma.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    identity = torch.eye(dim, dtype=x.dtype)
    y, z = sigma / trace, identity
    for _ in range(5):
        step = (3 * identity - z @ y) / 2
        y, z = y @ step, step @ z
    rows, columns = torch.triu_indices(dim, dim)
    return (y * trace.sqrt())[:, rows, columns]


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_logits(name: str) -> None:
    arch = ARCHITECTURES[name].authors
    expected = synthetic.golden(arch).double()
    images = synthetic.image()
    with torch.device("meta"):
        model = timm.create_model(name).eval()
    weights = {f"module.{key}": value for key, value in synthetic.state_dict(arch).items()}
    model.load_state_dict(checkpoint_filter_fn({"state_dict": weights, "epoch": 90}, model), assign=True)
    with torch.inference_mode():
        assert relative(model(images[1:]), expected[1:]) < 1e-3  # float32, on one image
        model.double()  # float64, on the other
        image = images[:1].double()
        if ARCHITECTURES[name].dimension is None:
            assert relative(model(image), expected[:1]) < 1e-6
            return
        reduced: list[torch.Tensor] = []
        model.global_pool.reduction.register_forward_hook(lambda module, args, output: reduced.append(output))
        ours = model(image)
        classifier = model.get_classifier()
        assert relative(classifier(authors_pooling(reduced[0], torch.float32)), expected[:1]) < 1e-6
        assert relative(ours, classifier(authors_pooling(reduced[0], torch.float64))) < 1e-9
