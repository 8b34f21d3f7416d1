"""Where a classifier looks: exact shares of the logit, and refusals."""

from __future__ import annotations

import pytest
import timm
import torch
from timm.layers import SelectAdaptivePool2d

import timm_gcp
from timm_gcp.inference.contributions import _on_grid, contributions, pooled_features


def tiny(**kwargs):
    torch.manual_seed(0)
    model = timm.create_model("shufflenet_v2_x1_0_gcp", num_classes=4, reduce_dim=6, **kwargs)
    return model.double().eval()


@pytest.mark.parametrize("kwargs", [{}, {"n_iter": 3}, {"normalization": "eigh"}])
def test_contributions_add_up_to_the_logit(kwargs):
    model = tiny(**kwargs)
    images, classes = torch.randn(3, 3, 96, 96, dtype=torch.float64), torch.tensor([2, 0, 3])
    found, logits = contributions(model, images, classes)
    assert found.shape == (3, 3, 3) and not found.requires_grad
    bias = model.get_classifier().bias.detach()
    torch.testing.assert_close(
        found.sum((1, 2)), logits[torch.arange(3), classes] - bias[classes], rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(logits, model(images).detach())


def test_average_pooling_gives_the_class_activation_map():
    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=4).double().eval()
    images, classes = torch.randn(2, 3, 64, 64, dtype=torch.float64), torch.tensor([1, 3])
    found, _ = contributions(model, images, classes)
    features = model.forward_features(images).detach()
    weights = model.get_classifier().weight.detach()[classes]
    torch.testing.assert_close(found, torch.einsum("bchw,bc->bhw", features, weights) / features[0, 0].numel())


def test_without_reduction_the_features_themselves_are_meant():
    model = timm_gcp.swap_pooling(timm.create_model("test_resnet", num_classes=3), reduce_dim=None).eval()
    assert pooled_features(model)[1] is False
    assert contributions(model, torch.randn(1, 3, 64, 64), torch.tensor([1]))[0].shape[0] == 1


def test_no_hook_stays():
    model = tiny()
    with pytest.raises(ValueError, match=r"classes must be 0 to 3, got \[4\]"):
        contributions(model, torch.randn(1, 3, 64, 64, dtype=torch.float64), torch.tensor([4]))
    module, _ = pooled_features(model)
    assert not module._forward_hooks and not module._forward_pre_hooks


def test_a_model_without_a_map_is_refused():
    with pytest.raises(ValueError, match="Linear pools no feature map"):
        pooled_features(torch.nn.Linear(2, 2))
    model = torch.nn.Sequential(torch.nn.Flatten(), SelectAdaptivePool2d(pool_type="avg"))
    with pytest.raises(ValueError, match=r"pools \(1, 12\), not a feature map \(B, C, h, w\)"):
        contributions(model, torch.randn(1, 3, 2, 2), torch.tensor([0]))


@pytest.mark.parametrize(
    ("options", "pool"),
    [({}, "global_pool"), ({"head_tokens": "all"}, "global_pool"), ({"head_class_token": "add"}, "gcp_pool")],
)
def test_tokens_are_laid_out_as_their_patches(options, pool):
    torch.manual_seed(0)
    model = timm.create_model("gcp_swap", backbone="test_vit", num_classes=3, reduce_dim=8, **options).eval().double()
    images = torch.randn(2, 3, 160, 160, dtype=torch.float64)
    found, _ = contributions(model, images, torch.tensor([1, 2]))
    assert found.shape == (2, 10, 10)

    skip = 0 if "head_tokens" in options else 1
    covariance = model.get_submodule(pool)
    reduced = covariance.reduction(model.forward_features(images)[:, skip:].transpose(1, 2).unsqueeze(3)).detach()
    reduced.requires_grad_()
    fc = model.head if pool == "global_pool" else model.gcp_fc
    covariance.reduction = torch.nn.Identity()
    own = fc(covariance(reduced))[[0, 1], [1, 2]]
    (gradient,) = torch.autograd.grad(own.sum(), reduced)
    tokens = (reduced * gradient).sum(1)[:, 1 - skip :, 0]  # the patches, row by row
    torch.testing.assert_close(found, tokens.reshape(2, 10, 10).detach())


def test_patches_without_a_grid_are_refused():
    model = timm_gcp.swap_pooling(timm.create_model("test_vit", num_classes=3), reduce_dim=8).eval()
    images = torch.randn(1, 3, 160, 160)
    with pytest.raises(ValueError, match="100 patches, which form no grid of the shape of a 160×90 image"):
        _on_grid(model, torch.zeros(1, 100, 1), images[..., :90])
