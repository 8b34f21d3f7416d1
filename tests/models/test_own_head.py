"""Swaps of models whose features are tokens or NHWC maps, one of each layout, tiny."""

from __future__ import annotations

import copy
import pickle

import pytest
import timm
import torch
from timm.models import save_for_hf
from torch import nn

from timm_gcp import swap_pooling
from timm_gcp.functional import global_cov_pool

CLASSES, DIM = 3, 4
WIDTH = DIM * (DIM + 1) // 2
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
SWIN = {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 8, "depths": (1, 1), "num_heads": (1, 1)}
# Layout: timm name, keywords, options of the swap.
CASES: dict[str, tuple[str, dict, dict]] = {
    "NCHW without a pooling module": ("repvit_m0_9", {"depth": (1, 1, 1, 1), "embed_dim": (8, 8, 16, 16)}, {}),
    "NHWC": ("swin_tiny_patch4_window7_224", SWIN, {}),
    "class token": ("vit_tiny_patch16_224", VIT, {}),
    "class token, all": ("vit_tiny_patch16_224", VIT, {"tokens": "all"}),
    "class token, added": ("vit_tiny_patch16_224", VIT, {"class_token": "add"}),
    "class token, behind": ("vit_tiny_patch16_224", VIT, {"class_token": "concat"}),
    "registers": ("vit_tiny_patch16_224", {**VIT, "reg_tokens": 2}, {}),
    "no class token": ("vit_tiny_patch16_224", {**VIT, "class_token": False, "global_pool": "avg"}, {}),
    "norm behind the pooling": ("vit_tiny_patch16_224", {**VIT, "global_pool": "avg"}, {}),
    "distilled": ("deit_tiny_distilled_patch16_224", VIT, {}),
    "distilled, added": ("deit_tiny_distilled_patch16_224", VIT, {"class_token": "add"}),
}


def images(count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def base(case: str) -> nn.Module:
    torch.manual_seed(0)
    name, keywords, _ = CASES[case]
    return timm.create_model(name, num_classes=CLASSES, **keywords)


def swapped(case: str) -> nn.Module:
    model = swap_pooling(base(case), DIM, **CASES[case][2])
    model.train()(images(8))  # statistics of a few images
    return model.eval()


@pytest.mark.parametrize("case", CASES)
def test_all_that_a_timm_model_does(case, tmp_path):
    model, x = swapped(case), images()
    model.train()(x).square().sum().backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]
    model.zero_grad()
    model.eval()
    with torch.no_grad():
        features, wanted = model.forward_features(x), model(x)
        assert wanted.shape == (2, CLASSES)
        torch.testing.assert_close(model.forward_head(features), wanted)
        assert model.forward_head(features, pre_logits=True).shape == (2, model.head_hidden_size)
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert type(twin) is type(model)
            torch.testing.assert_close(twin(x), wanted, rtol=0, atol=0)
        save_for_hf(model, tmp_path, safe_serialization=True)
        loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
        torch.testing.assert_close(loaded(x), wanted, rtol=0, atol=0)
        assert timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=7)(x).shape == (2, 7)
        for kind in ("avg", "max", "catavgmax", "gcp"):
            model.reset_classifier(5, kind)
            assert model(x).shape == (2, 5)
        for classifier in model.get_classifier() if "add" in case else (model.get_classifier(),):
            assert classifier.out_features == 5
        model.reset_classifier(0)
        assert model(x).shape == (2, model.head_hidden_size)
        model.reset_classifier(0, "")
        torch.testing.assert_close(model(x), features)
        assert not any(module.training for module in model.modules())
        model.reset_classifier(2)
        assert model(x).shape == ((2, 2, *features.shape[2:]) if "NCHW" in case else (*features.shape[:-1], 2))


@pytest.mark.parametrize(
    ("case", "skip"), [("class token", 1), ("class token, all", 0), ("registers", 3), ("distilled", 2)]
)
def test_which_tokens_enter(case, skip):
    model, x = swapped(case), images()
    with torch.no_grad():
        tokens = model.forward_features(x)[:, skip:]
        pooled = global_cov_pool(model.global_pool.reduction(tokens.transpose(1, 2)[..., None]))
        torch.testing.assert_close(model(x), model.head(pooled))


def test_map_with_channels_last():
    model, x = swapped("NHWC"), images()
    with torch.no_grad():
        pooled = global_cov_pool(model.global_pool.reduction(model.forward_features(x).permute(0, 3, 1, 2)))
        torch.testing.assert_close(model(x), model.head(pooled))


def test_added_logits_are_those_of_the_class_token_and_of_the_covariance():
    """The class token's classifier keeps its weights."""
    case, x = "class token, added", images()
    before, model = base(case).eval(), swapped(case)
    with torch.no_grad():
        tokens = model.forward_features(x)
        pooled = global_cov_pool(model.gcp_pool.reduction(tokens[:, 1:].transpose(1, 2)[..., None]))
        torch.testing.assert_close(model(x), before(x) + model.gcp_fc(pooled))
        both = torch.cat([tokens[:, 0], pooled], dim=1)
        torch.testing.assert_close(model.forward_head(tokens, pre_logits=True), both)
        behind = swapped("class token, behind")
        torch.testing.assert_close(behind(x), behind.gcp_fc(behind.forward_head(behind.forward_features(x), True)))
        assert behind.gcp_fc.in_features == both.shape[1]


def test_distillation_adds_to_both_tokens():
    model = swapped("distilled, added").train()
    model.set_distilled_training(True)
    assert [part.shape for part in model(images())] == [(2, CLASSES)] * 2


def test_token_pooling():
    model, x = swapped("class token"), images()
    model.reset_classifier(CLASSES, "token")
    with torch.no_grad():
        torch.testing.assert_close(model(x), model.head(model.forward_features(x)[:, 0]))


@pytest.mark.parametrize("case", ["class token", "NHWC"])
def test_torchscript(case):
    model, x = swapped(case), images()
    torch.testing.assert_close(torch.jit.script(model)(x), model(x))


def test_a_mask_of_patches():
    for case in ("class token", "class token, added", "class token, behind"):
        model = swapped(case)
        with pytest.raises(ValueError, match="covariance pooling takes whole images; give no patch_valid"):
            model.forward_head(model.forward_features(images()), patch_valid=torch.ones(2, 16))


@pytest.mark.parametrize(
    ("case", "options", "text"),
    [
        ("class token", {"tokens": "some"}, "tokens is 'some'; choose one of 'patch', 'all'"),
        ("class token", {"class_token": "keep"}, "class_token is 'keep'; choose one of 'drop', 'add', 'concat'"),
        (
            "NHWC",
            {"class_token": "add"},
            "SwinTransformer has no class token for class_token='add'; leave it at 'drop'",
        ),
        ("norm behind the pooling", {"class_token": "concat"}, "pools by 'avg', not by its class token: make it with"),
    ],
)
def test_refusals(case, options, text):
    model = base(case)
    before = list(model.state_dict())
    with pytest.raises(ValueError, match=text):
        swap_pooling(model, DIM, **options)
    assert list(model.state_dict()) == before


class Headless(nn.Module):
    """Features without a head."""

    num_features = 8

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 8, 8)

    def forward_features(self, x):
        return self.stem(x)

    def forward(self, x):
        return self.forward_features(x)


def test_models_without_a_head():
    with pytest.raises(
        ValueError, match="Headless has no forward_head to replace; swap_pooling takes timm classifiers"
    ):
        swap_pooling(Headless(), DIM)

    class Encoder(Headless):
        def forward_head(self, x, pre_logits=False):
            raise NotImplementedError("no classifier")

    with pytest.raises(ValueError, match=r"Encoder has no head to replace: its forward_head fails .*\(no classifier\)"):
        swap_pooling(Encoder(), DIM)
