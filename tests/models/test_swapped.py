"""Models of swap_pooling saved by timm and made again through `gcp_swap`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm
import torch
from timm.data import resolve_model_data_config
from timm.models import save_for_hf
from torch import nn

from timm_gcp import GlobalCovPool2d, swap_pooling
from timm_gcp.models import set_last_stage

SMALL = {"layers": (1, 1, 1, 1), "channels": (8, 16, 16, 32)}  # a ResNet-18 that takes every last stage
# timm name, its keywords, options of the swap.
CASES = {
    "resnet": ("resnet18", {"num_classes": 5, **SMALL}, {"reduce_dim": 8}),
    "grey": ("test_resnet", {"num_classes": 3, "in_chans": 1}, {"reduce_dim": (12, 6), "normalization": "eigh"}),
    "efficientnet": ("efficientnet_lite0", {"num_classes": 4}, {"reduce_dim": 8, "act_layer": nn.ReLU6, "n_iter": 2}),
    "regnet": ("regnetx_002", {"num_classes": 4}, {"reduce_dim": 8, "normalization": "log", "eps": 0.1}),
    "power": ("test_convnext", {"num_classes": 4}, {"reduce_dim": 8, "normalization": "power", "exponent": 0.3}),
    "isice": (
        "test_resnet",
        {"num_classes": 4},
        {"reduce_dim": 8, "normalization": "isice", "pool_kwargs": {"steps": 2}},
    ),
    "dropcov": (
        "test_resnet",
        {"num_classes": 4},
        {"reduce_dim": 8, "normalization": "dropcov", "pool_kwargs": {"beta": 2.0, "concat_average": True}},
    ),
    "no reduction": ("test_byobnet", {"num_classes": 4}, {"reduce_dim": None, "init": "torch"}),
    "no classifier": ("test_resnet", {"num_classes": 0}, {"reduce_dim": 8, "act_layer": nn.LeakyReLU}),
}


def swapped(name: str, keywords: dict, options: dict) -> nn.Module:
    """A swapped model whose batch-norm statistics are those of a few images."""
    torch.manual_seed(0)
    model = swap_pooling(timm.create_model(name, **keywords), **options)
    model.train()(images(model, 8))
    return model.eval()


def images(model: nn.Module, count: int = 2) -> torch.Tensor:
    return torch.randn(count, model.in_chans, 64, 64, generator=torch.Generator().manual_seed(0))


def data_config(model: nn.Module) -> dict:
    found = resolve_model_data_config(model)
    return {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}


def again(model: nn.Module, folder: Path, **keywords) -> nn.Module:
    save_for_hf(model, folder, safe_serialization=True)
    return timm.create_model(f"local-dir:{folder}", pretrained=True, **keywords).eval()


@pytest.mark.parametrize("case", CASES)
def test_saved_and_made_again(case, tmp_path):
    model = swapped(*CASES[case])
    loaded = again(model, tmp_path)
    assert type(loaded).__name__ == type(model).__name__
    torch.testing.assert_close(loaded(images(model)), model(images(model)), rtol=0, atol=0)
    if model.in_chans == 3:  # timm averages mean and std for others as it saves them
        assert data_config(loaded) == data_config(model)
    for key in ("first_conv", "classifier"):
        assert loaded.pretrained_cfg[key] == model.pretrained_cfg[key]
    torch.testing.assert_close(again(loaded, tmp_path / "twice")(images(model)), model(images(model)), rtol=0, atol=0)


def test_changed_after_the_swap(tmp_path):
    """Classes, pooling and last stage as they are when the model is saved."""
    model = swapped(*CASES["resnet"])
    model.reset_classifier(7)
    assert again(model, tmp_path / "classes").num_classes == 7
    set_last_stage(model, "maxpool")
    torch.testing.assert_close(again(model, tmp_path / "stage")(images(model)), model(images(model)), rtol=0, atol=0)
    model.reset_classifier(7, "avg")
    loaded = again(model, tmp_path / "pool")
    assert not isinstance(loaded.global_pool, GlobalCovPool2d)
    torch.testing.assert_close(loaded(images(model)), model.eval()(images(model)), rtol=0, atol=0)


def test_last_stage_before_the_swap(tmp_path):
    model = swap_pooling(set_last_stage(timm.create_model("resnet18", num_classes=3, **SMALL), "stride1"), reduce_dim=8)
    loaded = again(model.eval(), tmp_path)
    assert loaded.forward_features(images(model)).shape == model.forward_features(images(model)).shape == (2, 32, 4, 4)
    torch.testing.assert_close(loaded(images(model)), model(images(model)), rtol=0, atol=0)


def test_adapted_while_loading(tmp_path):
    """Another number of classes or channels, as timm adapts its own models."""
    model = swapped(*CASES["efficientnet"])
    loaded = again(model, tmp_path, num_classes=9, in_chans=1)
    assert loaded(images(loaded)).shape == (2, 9)
    there, own = (m.state_dict()["global_pool.reduction.0.conv.weight"] for m in (loaded, model))
    torch.testing.assert_close(there, own, rtol=0, atol=0)


def test_weights_that_do_not_fit_are_refused(tmp_path):
    save_for_hf(swapped(*CASES["resnet"]), tmp_path, safe_serialization=True)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config["architecture"] == "gcp_swap"
    assert config["model_args"]["backbone"] == "resnet18"
    config["model_args"]["reduce_dim"] = 4
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(RuntimeError, match=r"size mismatch for global_pool"):
        timm.create_model(f"local-dir:{tmp_path}", pretrained=True)


def test_made_by_name():
    model = timm.create_model("gcp_swap", backbone="efficientnet_lite0", reduce_dim=8, num_classes=3).eval()
    assert isinstance(model.global_pool, GlobalCovPool2d)
    assert model(images(model)).shape == (2, 3)
    assert model.pretrained_cfg["mean"] == timm.get_pretrained_cfg("efficientnet_lite0").mean
    features = timm.create_model("gcp_swap", backbone="test_convnext", features_only=True)
    assert [part.shape[1] for part in features(images(model))] == features.feature_info.channels()


def test_what_timm_did_not_make_is_left_alone():
    model = timm.models.ResNet(timm.models.resnet.BasicBlock, (1, 1, 1, 1), num_classes=3)
    assert not hasattr(swap_pooling(model, reduce_dim=8), "_model_args")


class OwnActivation(nn.ReLU):
    """One that timm has no name for."""


@pytest.mark.parametrize("options", [{"act_layer": OwnActivation}, {"normalization": lambda matrix: matrix}])
def test_options_of_ones_own_are_named(options, tmp_path):
    model = swap_pooling(timm.create_model("test_resnet"), reduce_dim=8, **options)
    with pytest.raises(ValueError, match=r"'(head_act_layer|normalization)' is not serializable"):
        save_for_hf(model, tmp_path)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"backbone": "resnet_18"}, r"backbone is 'resnet_18', which is not a model.* Did you mean 'resnet\w+'\?"),
        ({"backbone": 18}, "backbone is 18, which is not a model that timm knows"),
        ({"backbone": "local-dir:x"}, "backbone is 'local-dir:x', which is not a model"),
        ({"backbone": "gcp_swap"}, "backbone is 'gcp_swap' itself"),
        ({"backbone": "resnet18_gcp"}, "already has a covariance head"),
        ({"backbone": "crossvit_tiny_240"}, "swap_pooling takes timm models"),
        ({"backbone": "resnet18.nope"}, r"a tag that timm does not have; it has resnet18\."),
        ({"backbone": "test_vit", "class_token": "add"}, "option of gcp_swap it is called head_class_token"),
        ({"head_act_layer": "rellu"}, "head_act_layer is 'rellu', which timm does not know"),
        ({"reduce_dim": "all"}, "reduce_dim is 'all'; choose one of 'none'"),
        ({"last_stage": "stride3"}, "last_stage is 'stride3'"),
    ],
)
def test_refusals(keywords, message):
    with pytest.raises(ValueError, match=message):
        timm.create_model("gcp_swap", **keywords)


def test_no_weights_of_that_name():
    with pytest.raises(FileNotFoundError, match=r"No weights are called gcp_swap\.\w+"):
        timm.create_model("gcp_swap", pretrained=True)
