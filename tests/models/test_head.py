"""The head swap on models of more than 25 timm families, its classifier resets, copies and refusals."""

from __future__ import annotations

import copy
import pickle

import pytest
import timm
import torch
from torch import nn

import timm_gcp
from timm_gcp import GlobalCovPool2d, swap_pooling
from timm_gcp.functional import global_cov_pool

CLASSES = 5
DIM = 8
WIDTH = DIM * (DIM + 1) // 2

# timm family (its module) -> a small model of it, keywords, image size.
FAMILIES: dict[str, tuple[str, dict, int]] = {
    "byobnet": ("test_byobnet", {}, 64),
    "convnext": ("convnext_atto", {}, 64),
    "cspnet": ("darknet17", {}, 64),
    "densenet": ("densenet121", {"block_config": (2, 2, 2, 2)}, 64),
    "dla": ("dla46_c", {}, 64),
    "dpn": ("dpn48b", {}, 64),
    "edgenext": ("edgenext_xx_small", {}, 64),
    "efficientnet": ("tinynet_e", {}, 64),
    "fastvit": ("fastvit_t8", {}, 64),
    "fasternet": ("fasternet_t0", {}, 64),
    "ghostnet": ("ghostnet_050", {}, 64),
    "hardcorenas": ("hardcorenas_a", {}, 64),
    "hgnet": ("hgnetv2_b0", {}, 64),
    "hrnet": ("hrnet_w18_small", {}, 64),
    "inception_next": ("inception_next_atto", {}, 64),
    "inception_v3": ("inception_v3", {"aux_logits": False}, 96),
    "lowformer": ("lowformer_b0", {}, 64),
    "metaformer": ("poolformer_s12", {}, 64),
    "mobilenetv3": ("mobilenetv3_small_050", {}, 64),
    "nfnet": ("nf_resnet26", {}, 64),
    "rdnet": ("rdnet_tiny", {}, 64),
    "regnet": ("regnety_002", {}, 64),
    "repghost": ("repghostnet_050", {}, 64),
    "res2net": ("res2net50_14w_8s", {"layers": [1, 1, 1, 1]}, 64),
    "resnest": ("resnest14d", {}, 64),
    "resnet": ("test_resnet", {}, 64),
    "resnetv2": ("resnetv2_18", {}, 64),
    "rexnet": ("rexnet_100", {}, 64),
    "selecsls": ("selecsls42", {}, 64),
    "senet": ("legacy_seresnet18", {}, 64),
    "shvit": ("shvit_s1", {}, 64),
    "sknet": ("skresnet18", {}, 64),
    "starnet": ("starnet_s1", {}, 64),
    "tresnet": ("tresnet_m", {"layers": [1, 1, 1, 1]}, 64),
    "vgg": ("vgg11", {"mlp_ratio": 0.05}, 64),
    "visformer": ("visformer_tiny", {"depth": (1, 1, 1)}, 224),
    "vovnet": ("ese_vovnet19b_dw", {}, 64),
    "xception": ("legacy_xception", {}, 64),
    "xception_aligned": ("xception41", {}, 64),
}
# The oldest timm that the package supports lacks the newest families.
AVAILABLE = {family: entry for family, entry in FAMILIES.items() if timm.is_model(entry[0])}


def make(name: str, **kwargs) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=CLASSES, **kwargs)


def swapped_resnet(**options) -> nn.Module:
    return swap_pooling(make("test_resnet"), **{"reduce_dim": DIM, **options})


def logits(output: torch.Tensor | tuple) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output


def test_at_least_25_families():
    """Each under the family that it is filed under here, by timm's own register."""
    assert len(AVAILABLE) >= 25
    for family, (name, _, _) in AVAILABLE.items():
        assert name in timm.list_models(module=family), family


@pytest.mark.parametrize("family", AVAILABLE)
def test_family(family):
    """Forward in both modes, pre-logits, and a backward that reaches every parameter left in the model."""
    name, kwargs, size = AVAILABLE[family]
    model = make(name, **kwargs)
    channels = model.num_features
    model_id, base = id(model), type(model)
    model = swap_pooling(model, reduce_dim=DIM)
    assert id(model) == model_id
    assert isinstance(model, base)
    assert model.num_features == channels
    assert model.head_hidden_size == WIDTH
    assert [type(m) for m in model.modules() if isinstance(m, GlobalCovPool2d)] == [GlobalCovPool2d]

    x = torch.randn(2, 3, size, size)
    with torch.no_grad():
        features = model.eval().forward_features(x)
        assert model.forward_head(features, pre_logits=True).shape == (2, WIDTH)
        assert model.forward_head(features).shape == (2, CLASSES)
        assert model(x).shape == (2, CLASSES)
    output = logits(model.train()(x))
    assert output.isfinite().all()
    output.square().sum().backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]


def test_head_is_what_it_says():
    """Classifier of the pooled reduction of the feature map, put together by hand."""
    model = swapped_resnet().eval()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        pooled = global_cov_pool(model.global_pool.reduction(model.forward_features(x)))
        torch.testing.assert_close(model(x), model.fc(pooled))


def test_options_reach_the_layer():
    model = swapped_resnet(
        reduce_dim=(16, 4), normalization="power", n_iter=3, exponent=0.3, eps=0.5, act_layer=nn.SiLU
    )
    pool = model.global_pool
    assert (pool.normalization, pool.n_iter, pool.exponent, pool.eps, pool.out_features) == ("power", 3, 0.3, 0.5, 10)
    assert [type(step.act) for step in pool.reduction] == [nn.SiLU, nn.SiLU]
    assert swap_pooling(make("test_resnet"), reduce_dim=None).head_hidden_size == 96 * 97 // 2


def test_channels_given_need_no_forward_pass():
    model = make("test_resnet")
    model.forward_features = None  # would fail if called
    assert swap_pooling(model, DIM, channels=96).global_pool.in_chans == 96


def test_mode_device_and_type_are_kept():
    model = swap_pooling(make("test_resnet").eval().double(), DIM)
    assert not any(module.training for module in model.modules())
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert model(torch.randn(1, 3, 64, 64, dtype=torch.float64)).dtype == torch.float64
    assert swapped_resnet().fc.training
    with torch.device("meta"):
        meta = timm.create_model("test_resnet", num_classes=CLASSES)
    meta = swap_pooling(meta, DIM)
    assert {p.device.type for p in meta.parameters()} == {"meta"}


def test_probing_leaves_no_trace():
    """The forward pass that finds the channels changes neither running statistics nor modes, partial ones included."""
    model = make("test_resnet")
    model.layer1.eval()
    before = copy.deepcopy(model.state_dict())
    model = swap_pooling(model, DIM)
    for name, tensor in model.state_dict().items():
        if name in before and not name.startswith("fc"):
            assert torch.equal(tensor, before[name]), name
    assert model.training
    assert not model.layer1.training


@pytest.mark.parametrize("num_classes", [0, 3])
def test_reset_classifier_keeps_the_pooling(num_classes):
    model = swapped_resnet().eval()
    pool = model.global_pool
    model.reset_classifier(num_classes)
    assert model.global_pool is pool
    assert model.num_classes == num_classes
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, num_classes or WIDTH)


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "test_efficientnet", "test_byobnet"])
def test_reset_classifier_changes_the_pooling(name):
    model = swap_pooling(make(name), DIM).eval()
    channels = model.num_features
    x = torch.randn(2, 3, 64, 64)
    for kind, width in [
        ("avg", channels),
        ("catavgmax", 2 * channels),
        ("gcp", WIDTH),
        ("max", channels),
        ("gcp", WIDTH),
    ]:
        model.reset_classifier(3, kind)
        assert model.head_hidden_size == width
        assert model.get_classifier().in_features == width
        assert model(x).shape == (2, 3)
        assert not any(module.training for module in model.modules())
    model.reset_classifier(0, "")
    assert model(x).shape == model.forward_features(x).shape


def test_copies_and_pickles():
    model = swapped_resnet().eval()
    x = torch.randn(2, 3, 64, 64)
    model(x).sum().backward()
    expected = model(x)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)):
        assert type(twin) is type(model)
        torch.testing.assert_close(twin(x), expected, rtol=0, atol=0)
    twin = copy.deepcopy(model)
    twin.reset_classifier(2)
    assert model.num_classes == CLASSES
    assert model(x).shape == (2, CLASSES)


def test_class_is_shared_and_named():
    one, two = swapped_resnet(), swapped_resnet()
    assert type(one) is type(two)
    assert type(one).__name__ == "ResNetGcp"
    assert isinstance(one, timm.models.ResNet)


def test_models_without_timm_parts():
    with pytest.raises(ValueError, match=r"Sequential has no forward_features; swap_pooling takes"):
        swap_pooling(nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)))


def test_several_classifiers():
    model = make("test_resnet")
    model.pretrained_cfg = {**model.pretrained_cfg, "classifier": ("one", "two")}
    model.logits = model.fc
    del model.fc
    with pytest.raises(
        ValueError, match=r"ResNet has no single linear classifier \(looked for one, two, fc, classifier"
    ):
        swap_pooling(model)


def test_swapped_twice():
    model = swapped_resnet()
    with pytest.raises(ValueError, match=r"ResNetGcp already has a covariance head; use reset_classifier to change it"):
        swap_pooling(model)
    with pytest.raises(ValueError, match=r"already has a covariance head"):
        swap_pooling(timm.create_model("shufflenet_v2_x1_0_gcp", reduce_dim=DIM))


def test_features_that_can_not_be_probed():
    model = make("test_resnet")

    def fail(x):
        raise RuntimeError("no image of this size")

    model.forward_features = fail
    with pytest.raises(ValueError, match=r"fails for images of 160×160 \(no image of this size\); give the channels"):
        swap_pooling(model)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"reduce_dim": 0}, "reduce_dim is 0; give a width of at least 1"),
        ({"normalization": "svd"}, "normalization is 'svd'; choose one of"),
        ({"n_iter": 0}, "n_iter is 0"),
    ],
)
def test_bad_options_leave_the_model_as_it_was(options, text):
    model = make("test_resnet")
    keys = list(model.state_dict())
    with pytest.raises(ValueError, match=text):
        swap_pooling(model, **options)
    assert list(model.state_dict()) == keys
    assert type(model) is timm.models.ResNet


def test_public_name():
    assert timm_gcp.swap_pooling is swap_pooling


def test_a_convolution_between_features_and_pooling_goes():
    """EfficientViT widens the map in its head: the reduction of the covariance head takes its place."""
    model = timm_gcp.swap_pooling(timm.create_model("efficientvit_b0", num_classes=3), reduce_dim=8).eval()
    with torch.inference_mode():
        assert model(torch.randn(2, 3, 64, 64)).shape == (2, 3)
    assert model.head_hidden_size == 36
