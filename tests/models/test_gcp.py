"""The registered models: names, sizes, variants, and what timm does with a model."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import re
import warnings

import pytest
import timm
import torch
from timm.models._manipulate import group_parameters
from torch import nn

import timm_gcp
from timm_gcp import GlobalCovPool2d
from timm_gcp.models.gcp import LAST_STAGES, set_last_stage
from timm_gcp.models.registered import READY

RESNETS = ["resnet18_gcp", "resnet34_gcp", "resnet50_gcp", "resnet101_gcp"]
SIX = [*RESNETS, "mobilenetv2_100_gcp", "shufflenet_v2_x1_0_gcp"]
D128 = ["resnet50_gcp_d128", "mobilenetv2_100_gcp_d128"]
GCP = [*SIX, *D128]
ALL = [*GCP, "shufflenet_v2_x1_0"]
SMALL = ["resnet18_gcp", "mobilenetv2_100_gcp", "shufflenet_v2_x1_0_gcp"]
STOCK = {"resnet18_gcp": "resnet18", "resnet34_gcp": "resnet34", "resnet50_gcp": "resnet50"}
STOCK |= {"resnet101_gcp": "resnet101", "resnet50_gcp_d128": "resnet50", "mobilenetv2_100_gcp": "mobilenetv2_100"}
STOCK |= {"mobilenetv2_100_gcp_d128": "mobilenetv2_100", "shufflenet_v2_x1_0_gcp": "shufflenet_v2_x1_0"}


def meta(name: str, **kwargs) -> nn.Module:
    """The model without memory or initialisation: names and shapes only."""
    return timm.create_model(name, device="meta", **kwargs)


def small(name: str, **kwargs) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name, **{"num_classes": 10, "reduce_dim": 8, **kwargs})


@pytest.fixture(scope="module", params=SMALL)
def model(request) -> nn.Module:
    """One model of each family for tests that leave it as it is."""
    return small(request.param).eval()


def images(*shape: int) -> torch.Tensor:
    return torch.randn(shape or (2, 3, 64, 64), generator=torch.Generator().manual_seed(0))


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_registered_names():
    found = {
        name for name in timm.list_models() if timm.models.model_entrypoint(name).__module__.startswith("timm_gcp")
    }
    ready = {f"{base}_gcp" for base in READY}
    assert found == {*ALL, "gcp_swap", *ready}
    assert {name for name in timm.list_models("*_gcp*") if name in found} == {*GCP, *ready}
    assert set(timm.list_models(module="registered")) == ready
    assert set(timm.list_models(module="gcp")) >= set(ALL) and timm.list_models(module="swapped") == ["gcp_swap"]
    assert not found & set(timm.list_models(module="resnet"))


@pytest.mark.parametrize("name", GCP)
def test_head(name):
    dim = 128 if name.endswith("d128") else 256
    model = meta(name)
    pool = model.global_pool
    width = dim * (dim + 1) // 2
    assert isinstance(pool, GlobalCovPool2d)
    assert (pool.dim, pool.normalization, pool.n_iter) == (dim, "newton_schulz", 5)
    assert type(pool.reduction[0].act) is (nn.ReLU if name in RESNETS or "resnet" in name else nn.ReLU6)
    assert model.head_hidden_size == width
    assert (model.get_classifier().in_features, model.get_classifier().out_features) == (width, 1000)
    assert model.num_features == pool.in_chans == meta(STOCK[name]).num_features


@pytest.mark.parametrize("name", GCP)
def test_state_dict_names(name):
    """The backbone's names are the stock model's; the head's are those that weight files are written with."""
    names = list(meta(name).state_dict())
    classifier = "classifier" if "mobilenet" in name else "fc"
    stock = [n for n in meta(STOCK[name]).state_dict() if not n.startswith(f"{classifier}.")]
    leaves = [
        "conv.weight",
        *(f"bn.{x}" for x in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
    ]
    head = [f"global_pool.reduction.0.{leaf}" for leaf in leaves] + [f"{classifier}.weight", f"{classifier}.bias"]
    assert names == stock + head
    steps = meta(name, reduce_dim=(64, 32)).state_dict()
    assert [n for n in steps if n.startswith("global_pool.reduction.1.")] == [
        f"global_pool.reduction.1.{leaf}" for leaf in leaves
    ]


@pytest.mark.parametrize(
    ("name", "millions"),
    [("resnet18_gcp", 19.60), ("resnet34_gcp", 29.71), ("resnet50_gcp", 32.32), ("resnet101_gcp", 51.31)],
)
def test_parameters_of_appendix_v(name, millions):
    assert count(meta(name, reduce_dim=(256, 128))) / 1e6 == pytest.approx(millions, abs=0.01)


@pytest.mark.parametrize("name", GCP)
@pytest.mark.parametrize("reduce_dim", [None, 128, (256, 128)])
def test_parameters_by_arithmetic(name, reduce_dim):
    """Backbone, reduction steps (convolution and two batch-norm vectors) and classifier."""
    model = meta(name, **({} if reduce_dim is None else {"reduce_dim": reduce_dim}))
    widths = reduce_dim if isinstance(reduce_dim, tuple) else (model.global_pool.dim,)
    channels = [model.num_features, *widths]
    reduction = sum(a * b + 2 * b for a, b in itertools.pairwise(channels))
    dim = widths[-1]
    expected = count(meta(STOCK[name], num_classes=0)) + reduction + (dim * (dim + 1) // 2 + 1) * 1000
    assert count(model) == expected


@pytest.mark.parametrize("name", [*RESNETS, "resnet50_gcp_d128"])
def test_last_stages_have_equal_parameters(name):
    shapes = [
        {n.replace("layer4.pool.", "layer4."): p.shape for n, p in meta(name, last_stage=stage).state_dict().items()}
        for stage in LAST_STAGES
    ]
    assert shapes[0] == shapes[1] == shapes[2]


@pytest.mark.parametrize("name", ["resnet18_gcp", "resnet50_gcp"])
@pytest.mark.parametrize(("stage", "size"), [("stride1", 8), ("stride2", 4), ("maxpool", 4)])
def test_last_stage_sizes(name, stage, size):
    model = small(name, last_stage=stage).eval()
    x = images(1, 3, 128, 128)
    with torch.no_grad():
        assert model.forward_features(x).shape[-2:] == (size, size)
        assert model(x).shape == (1, 10)
    assert model.feature_info[-1]["reduction"] == 128 // size
    assert not [m for m in model.layer4.modules() if getattr(m, "dilation", 1) not in (1, (1, 1))]
    with torch.no_grad():
        assert [m.shape[-1] for m in model.forward_intermediates(x, intermediates_only=True)][-1] == size


def test_last_stage_stride2_is_the_stock_resnet():
    torch.manual_seed(0)
    ours = small("resnet18_gcp", last_stage="stride2").eval()
    stock = timm.create_model("resnet18", num_classes=10).eval()
    stock.load_state_dict(
        {k: v for k, v in ours.state_dict().items() if k in stock.state_dict() and "fc" not in k}, False
    )
    with torch.no_grad():
        torch.testing.assert_close(ours.forward_features(images()), stock.forward_features(images()), rtol=0, atol=0)


def test_last_stage_maxpool_pools_in_front():
    ours = small("resnet18_gcp", last_stage="maxpool").eval()
    x = images()
    with torch.no_grad():
        y = ours.layer3(ours.layer2(ours.layer1(ours.maxpool(ours.act1(ours.bn1(ours.conv1(x)))))))
        y = ours.layer4[1:](nn.functional.max_pool2d(y, 2))
        torch.testing.assert_close(ours.forward_features(x), y, rtol=0, atol=0)
    assert [type(m).__name__ for m in ours.layer4] == ["MaxPool2d", "BasicBlock", "BasicBlock"]


def test_bad_last_stage():
    with pytest.raises(ValueError, match="last_stage is 'stride4'; choose one of 'stride1', 'stride2', 'maxpool'"):
        small("resnet18_gcp", last_stage="stride4")
    with pytest.raises(ValueError, match="last_stage is 'none'"):
        set_last_stage(timm.create_model("resnet18"), "none")


@pytest.mark.parametrize("name", ["mobilenetv2_100_gcp", "shufflenet_v2_x1_0_gcp"])
def test_last_stage_is_for_resnets(name):
    with pytest.raises(TypeError, match="last_stage"):
        small(name, last_stage="stride1")


@pytest.mark.parametrize(
    ("name", "output_stride", "size"),
    [
        ("resnet18_gcp", 16, 8),
        ("resnet18_gcp", 8, 16),
        ("mobilenetv2_100_gcp", 32, 4),
        ("mobilenetv2_100_gcp", 16, 8),
        ("shufflenet_v2_x1_0_gcp", 32, 4),
        ("shufflenet_v2_x1_0_gcp", 16, 8),
        ("shufflenet_v2_x1_0_gcp", 8, 16),
    ],
)
def test_output_stride(name, output_stride, size):
    model = small(name, output_stride=output_stride).eval()
    with torch.no_grad():
        assert model.forward_features(images(1, 3, 128, 128)).shape[-2:] == (size, size)
        assert model(images(1, 3, 128, 128)).shape == (1, 10)
    assert model.feature_info[-1]["reduction"] == output_stride


def test_data_configuration():
    for name in ALL:
        config = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
        assert config["input_size"] == (3, 224, 224)
        assert config["interpolation"] == "bilinear"
        assert config["crop_pct"] == 0.875
        assert config["mean"] == timm.data.IMAGENET_DEFAULT_MEAN
        assert config["std"] == timm.data.IMAGENET_DEFAULT_STD
        assert timm.get_pretrained_cfg(name).num_classes == 1000


def test_forward_backward(model):
    twin = copy.deepcopy(model).train()
    output = twin(images(4, 3, 64, 64))
    assert output.shape == (4, 10)
    output.square().sum().backward()
    assert not [name for name, p in twin.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    with torch.no_grad():
        features = model.forward_features(images())
        torch.testing.assert_close(model.forward_head(features), model(images()), rtol=0, atol=0)
        assert model.forward_head(features, pre_logits=True).shape == (2, model.head_hidden_size) == (2, 36)


@pytest.mark.parametrize("name", SMALL)
def test_head_keywords(name):
    model = small(name, reduce_dim=(16, 4), normalization="power", n_iter=3, exponent=0.25, eps=0.5).eval()
    pool = model.global_pool
    assert (pool.dim, pool.normalization, pool.n_iter, pool.exponent, pool.eps) == (4, "power", 3, 0.25, 0.5)
    assert model(images()).shape == (2, 10)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("in_chans", [1, 4])
def test_in_chans(name, in_chans):
    assert small(name, in_chans=in_chans).eval()(images(2, in_chans, 64, 64)).shape == (2, 10)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("size", [(64, 96), (33, 65)])
def test_any_image_size(name, size):
    assert small(name).eval()(images(1, 3, *size)).isfinite().all()


@pytest.mark.parametrize("name", SMALL)
def test_pooling_names(name):
    """global_pool at creation: 'gcp' by default, timm's own, or none."""
    for kind, width in [("gcp", 36), ("avg", None), ("catavgmax", None)]:
        model = small(name, global_pool=kind).eval()
        width = width or model.num_features * (2 if kind == "catavgmax" else 1)
        assert model.head_hidden_size == model.get_classifier().in_features == width
        assert model(images()).shape == (2, 10)
    bare = small(name, num_classes=0, global_pool="").eval()
    assert bare(images()).shape == bare.forward_features(images()).shape
    assert small(name, num_classes=0).eval()(images()).shape == (2, 36)


@pytest.mark.parametrize("name", SMALL)
def test_reset_classifier(name):
    model = small(name).eval()
    reduction = model.global_pool.reduction
    model.reset_classifier(7)
    assert model.global_pool.reduction is reduction
    assert model(images()).shape == (2, 7)
    model.reset_classifier(0)
    assert model(images()).shape == (2, 36)
    model.reset_classifier(5, "avg")
    assert model.get_classifier().in_features == model.head_hidden_size == model.num_features
    model.reset_classifier(5, "gcp")
    assert model.global_pool.dim == 8
    assert model(images()).shape == (2, 5)
    model.reset_classifier(0, "")
    assert model(images()).ndim == 4


@pytest.mark.parametrize("name", [*SMALL, "shufflenet_v2_x1_0"])
def test_features_only(name):
    extractor = timm.create_model(name, features_only=True).eval()
    assert not any("global_pool" in key or "fc" in key or "classifier" in key for key in extractor.state_dict())
    with torch.no_grad():
        maps = extractor(images(1, 3, 128, 128))
    assert [m.shape[1] for m in maps] == extractor.feature_info.channels()
    assert [128 // m.shape[-1] for m in maps] == extractor.feature_info.reduction()
    two = timm.create_model(name, features_only=True, out_indices=(1, 3))
    assert len(two(images(1, 3, 128, 128))) == 2


@pytest.mark.parametrize(("normalization", "options"), [("isice", {"steps": 2}), ("dropcov", {"beta": 3.0})])
def test_options_of_the_pooling(normalization, options):
    """Reachable by timm's factory, kept by reset_classifier, trained; not asked of a feature extractor."""
    keywords = {"normalization": normalization, "pool_kwargs": {**options, "concat_average": True}}
    model = small("shufflenet_v2_x1_0_gcp", num_classes=3, reduce_dim=4, **keywords)
    for classes in (3, 2):
        model.reset_classifier(classes, "avg")
        model.reset_classifier(classes, "gcp")
        assert (model.global_pool.normalization, model.global_pool.pool_kwargs) == (normalization, options)
        assert model.head_hidden_size == 1024 + 10
        model.train()(images(4, 3, 64, 64)).square().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    timm.create_model("resnet50_gcp", features_only=True, **keywords)


def test_a_wide_covariance_of_a_model():
    with pytest.raises(ValueError, match="a covariance of width 2048 gives 2,098,176 numbers an image"):
        timm.create_model("resnet50_gcp", reduce_dim=2048)


def test_features_only_follows_the_last_stage():
    for stage, reduction in [("stride1", 16), ("stride2", 32), ("maxpool", 32)]:
        extractor = timm.create_model("resnet18_gcp", features_only=True, last_stage=stage).eval()
        assert extractor.feature_info.reduction()[-1] == reduction
        assert extractor(images(1, 3, 128, 128))[-1].shape[-1] == 128 // reduction


def test_dropout():
    dropping = small("mobilenetv2_100_gcp", drop_rate=0.9).train()
    pooled = dropping.forward_head(dropping.forward_features(images()), pre_logits=True)
    assert (pooled == 0).float().mean() > 0.5


def test_copies_after_a_forward_and_pickles(model):
    model = copy.deepcopy(model)
    model.train()(images(4, 3, 64, 64)).sum().backward()
    model.eval()
    expected = model(images())
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for twin in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(buffer, weights_only=False),
        timm.utils.ModelEmaV3(model).module,
    ):
        assert type(twin) is type(model)
        torch.testing.assert_close(twin(images()), expected, rtol=0, atol=0)


def test_state_dict_round_trip(model):
    twin = timm.create_model(model.pretrained_cfg["architecture"], num_classes=10, reduce_dim=8).eval()
    twin.load_state_dict(model.state_dict(), strict=True)
    torch.testing.assert_close(twin(images()), model(images()), rtol=0, atol=0)


def test_groups_cover_every_parameter(model):
    for coarse in (False, True):
        groups = group_parameters(model, model.group_matcher(coarse=coarse))
        assert sum(len(names) for names in groups.values()) == len(list(model.parameters()))
    last = max(groups)
    assert any(name.startswith("global_pool.reduction") for name in groups[last])


def test_gradient_checkpointing(model):
    plain, checkpointed = copy.deepcopy(model), copy.deepcopy(model)
    checkpointed.set_grad_checkpointing()
    for twin in (plain, checkpointed):
        twin(images()).square().sum().backward()
    for (name, a), b in zip(plain.named_parameters(), checkpointed.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_channels_last_and_half(model):
    expected = model(images())
    memory = copy.deepcopy(model).to(memory_format=torch.channels_last)
    torch.testing.assert_close(
        memory(images().contiguous(memory_format=torch.channels_last)), expected, rtol=1e-4, atol=1e-5
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(images()).isfinite().all()
    double = copy.deepcopy(model).double()
    torch.testing.assert_close(double(images().double()).float(), expected, rtol=1e-3, atol=1e-4)


def test_initialisation_is_not_zeroed():
    """The authors' ResNets do not zero the last batch-norm scale of each block, as timm's do by default."""
    block = small("resnet18_gcp").layer1[0]
    assert torch.equal(block.bn2.weight, torch.ones_like(block.bn2.weight))


@pytest.mark.parametrize("features_only", [False, True])
@pytest.mark.parametrize("name", [*SMALL, "shufflenet_v2_x1_0"])
def test_batch_norm_keywords(name, features_only, monkeypatch):
    """What train.py's --bn-momentum and --bn-eps hand over reaches every layer, the head's included."""

    def settings(**kwargs) -> set[tuple[float | None, float]]:
        layers = [
            m for m in meta(name, features_only=features_only, **kwargs).modules() if isinstance(m, nn.BatchNorm2d)
        ]
        assert len(layers) > 10
        return {(layer.momentum, layer.eps) for layer in layers}

    assert settings() == {(0.1, 1e-5)}
    assert settings(bn_momentum=0.01) == {(0.01, 1e-5)}
    assert settings(bn_momentum=0.02, bn_eps=1e-3) == {(0.02, 1e-3)}
    assert settings(bn_momentum=None) == {(0.1, 1e-5)}
    monkeypatch.setattr("timm_gcp.models.gcp.build_model_with_cfg", None)  # refused before anything is built or loaded
    with pytest.raises(ValueError, match="bn_momentum must be above 0 and at most 1, got 2"):
        settings(bn_momentum=2)


def test_unknown_keyword():
    with pytest.raises(TypeError, match="reduce_dimension"):
        small("resnet18_gcp", reduce_dimension=4)
    with pytest.raises(ValueError, match="reduce_dim is 0"):
        small("resnet18_gcp", reduce_dim=0)


def test_descriptions():
    for name in ALL:
        assert re.search(r"pooling", timm.models.model_entrypoint(name).__doc__ or "")


def test_public_names():
    assert set(timm_gcp.__all__) >= {"GlobalCovPool2d", "functional", "swap_pooling", "models"}
    assert {name.split(".")[0] for name in timm_gcp.models.default_cfgs} == set(ALL)


def test_other_pooling_is_said():
    with pytest.warns(UserWarning, match=r"shufflenet_v2_x1_0_gcp with global_pool='avg' pools as timm does"):
        model = timm.create_model("shufflenet_v2_x1_0_gcp", num_classes=2, global_pool="avg")
    assert model.head_hidden_size == 1024
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        timm.create_model("shufflenet_v2_x1_0_gcp", num_classes=2, global_pool="gcp", reduce_dim=8)


def test_configuration_tells_the_channels_of_the_model():
    model = timm.create_model("shufflenet_v2_x1_0_gcp", in_chans=1, reduce_dim=8, num_classes=2)
    assert model.pretrained_cfg["input_size"] == (1, 224, 224) and len(model.pretrained_cfg["mean"]) == 1
    assert timm.create_model("shufflenet_v2_x1_0_gcp", reduce_dim=8).pretrained_cfg["input_size"] == (3, 224, 224)
