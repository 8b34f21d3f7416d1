"""The equations on the features of a network: capturing, rows, callback."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

import timm_gcp
from timm_gcp.second_order.gradient import agreement, exact_gradient
from timm_gcp.second_order.study import (
    SecondOrderCallback,
    capture,
    compare,
    find_pooling,
    read_rows,
    spectra,
    write_rows,
)


def network(**keys) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("resnet18_gcp", num_classes=3, reduce_dim=8, **keys).train()


def batch(size: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(size, 3, 64, 64, generator=generator), torch.arange(size) % 3


def test_capture_has_the_gradients_of_each_sample():
    """Against plain autograd on a network in training mode, whose input to the covariance is made a leaf by hand."""
    model, (images, targets) = network().double(), batch()
    captured = capture(model, images.double(), targets)
    features = model.global_pool.reduction(model.forward_features(images.double())).detach().requires_grad_()
    from timm_gcp.functional import covariance, global_cov_pool, matrix_sqrt

    loss = nn.functional.cross_entropy(model.fc(global_cov_pool(features)), targets, reduction="sum")
    (grad_x,) = torch.autograd.grad(loss, features)
    torch.testing.assert_close(captured.features, features.detach().flatten(2).mT)
    torch.testing.assert_close(captured.grad_x, grad_x.flatten(2).mT)
    # ∂L/∂Z, pulled back through the steps one by one, is the same gradient
    (again,) = torch.autograd.grad((matrix_sqrt(covariance(features)) * captured.grad_z).sum(), features)
    torch.testing.assert_close(again, grad_x)
    assert captured.factors.inputs.shape == (512, 512) and captured.factors.outputs.shape == (8, 8)


def test_capture_changes_nothing():
    model, (images, targets) = network(), batch()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    capture(model, images, targets)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in before.items())
    assert model.training and all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_the_layer_with_many_iterations_has_the_gradient_of_eq_6():
    captured = capture(network(n_iter=40).double(), batch()[0].double(), batch()[1])
    cosine, ratio = agreement(exact_gradient(captured.features, captured.grad_z), captured.grad_x)
    torch.testing.assert_close(cosine, torch.ones_like(cosine), atol=1e-8, rtol=0)
    torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-6, rtol=0)


def test_row():
    captured = capture(network(), *batch())
    row = compare(captured)
    assert all(abs(value) < float("inf") for value in row.values())
    assert all(-1 <= value <= 1 for key, value in row.items() if key.startswith("cosine"))
    assert all(0 < value <= 1 + 1e-9 for key, value in row.items() if key.startswith("flatness"))
    assert 0.5 < row["cosine_layer"] < 1  # five iterations are not the exact root
    assert row["condition_literal_eigen"] == pytest.approx(1, abs=1e-6)  # JXΣ^(−½) whitens
    assert 1 <= row["rank"] <= 8
    assert row["overlap_chance"] == 1.0  # eight of eight


def test_spectra_descend():
    curves = spectra(capture(network(), *batch()))
    assert len(curves) == 6
    for values in curves.values():
        assert (values.diff() <= 1e-9 * values[0]).all()


def test_callback_rows_and_resuming(tmp_path):
    model, path = network(), tmp_path / "new" / "a.csv"
    first = SecondOrderCallback(path, every=10, images=2)
    for step in (0, 10, 20):
        first.on_update(step, model, batch())
    assert read_rows(path) == first.rows
    again = SecondOrderCallback(path, every=10, images=2)
    again.on_update(10, model, batch())
    assert [row["step"] for row in read_rows(path)] == [0, 10]
    assert again.rows[1] == pytest.approx(first.rows[1])


def test_callback_keeps_the_spectra_of_the_last_probe(tmp_path):
    model, path = network(), tmp_path / "spectra.csv"
    callback = SecondOrderCallback(tmp_path / "a.csv", images=2, spectra_path=path)
    for size in (4, 2):
        callback.on_update(0, model, batch(size))
    wanted = spectra(capture(model, *batch(2)))
    rows = read_rows(path)
    assert len(rows) == max(map(len, wanted.values()))
    for name, values in wanted.items():
        column = torch.tensor([row[name] for row in rows], dtype=values.dtype)
        torch.testing.assert_close(column[: len(values)], values, rtol=1e-9, atol=0)
        assert column[len(values) :].isnan().all()


def test_training_is_the_same_with_the_callback(tmp_path):
    def trained(callbacks) -> dict[str, torch.Tensor]:
        model, (images, targets) = network(drop_rate=0.3), batch()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for step in range(3):
            for callback in callbacks:
                callback.on_update(step, model, (images, targets))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), targets).backward()
            optimizer.step()
        return model.state_dict()

    watched, plain = trained([SecondOrderCallback(tmp_path / "a.csv", every=1)]), trained([])
    assert all(torch.equal(watched[key], value) for key, value in plain.items())


def test_bad_input_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"Linear has no GlobalCovPool2d: choose a \*_gcp model"):
        find_pooling(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="no reduction"):
        find_pooling(timm_gcp.GlobalCovPool2d(4, reduce_dim=None))
    with pytest.raises(ValueError, match="at least 1; got 0 and 16"):
        SecondOrderCallback(tmp_path / "a.csv", every=0)
    write_rows(tmp_path / "a.csv", [{"step": 1.0}])
    (tmp_path / "a.csv").write_text("step,loss\n1,two\n")
    with pytest.raises(ValueError, match=r"a\.csv is not a CSV of numbers"):
        read_rows(tmp_path / "a.csv")
