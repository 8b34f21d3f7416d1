"""ShuffleNetV2 against torchvision's through its own state dict, and what timm expects of a backbone."""

from __future__ import annotations

import pytest
import timm
import torch
from torchvision.models import shufflenet_v2_x1_0 as torchvision_shufflenet

import timm_gcp
from timm_gcp.models.shufflenetv2 import ShuffleNetV2, shuffle_join


@pytest.fixture(scope="module")
def theirs():
    torch.manual_seed(0)
    model = torchvision_shufflenet(num_classes=10)
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.uniform_(0.5, 1.5)
    return model.eval()


@pytest.fixture
def ours(theirs):
    model = timm.create_model("shufflenet_v2_x1_0", num_classes=10)
    model.load_state_dict(theirs.state_dict(), strict=True)
    return model.eval()


def test_names_are_torchvisions(theirs, ours):
    """The same names in the same order, each of the same size."""
    shapes = {name: tensor.shape for name, tensor in theirs.state_dict().items()}
    assert {name: tensor.shape for name, tensor in ours.state_dict().items()} == shapes
    assert list(ours.state_dict()) == list(shapes)


@pytest.mark.parametrize("size", [64, 95])
def test_values_are_torchvisions(theirs, ours, size):
    x = torch.randn(2, 3, size, size, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(ours.double()(x), theirs.double()(x), rtol=0, atol=1e-12)
    theirs.float()


def test_training_is_torchvisions(theirs, ours):
    """Outputs, gradients and running statistics of a training step."""
    import copy

    x = torch.randn(4, 3, 64, 64, dtype=torch.float64)
    twin = copy.deepcopy(theirs).double().train()
    ours = ours.double().train()
    for model in (twin, ours):
        model(x).square().sum().backward()
    for (name, wanted), found in zip(twin.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-9, atol=1e-9, msg=name)
    for (name, wanted), found in zip(twin.named_buffers(), ours.buffers(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12, msg=name)


def test_shuffle_join():
    x1, x2 = torch.tensor([[0.0, 1]]).view(1, 2, 1, 1), torch.tensor([[10.0, 11]]).view(1, 2, 1, 1)
    assert shuffle_join(x1, x2).flatten().tolist() == [0, 10, 1, 11]


@pytest.mark.parametrize(("output_stride", "size"), [(32, 4), (16, 8), (8, 16)])
def test_output_stride(theirs, output_stride, size):
    """Dilation instead of stride: the same weights, a larger map, and feature_info that says so."""
    model = timm.create_model("shufflenet_v2_x1_0", num_classes=10, output_stride=output_stride).eval()
    model.load_state_dict(theirs.state_dict())
    x = torch.randn(1, 3, 128, 128)
    with torch.no_grad():
        assert model.forward_features(x).shape == (1, 1024, size, size)
        assert model(x).shape == (1, 10)
    assert model.feature_info[-1]["reduction"] == output_stride
    extractor = timm.create_model("shufflenet_v2_x1_0", features_only=True, output_stride=output_stride)
    with torch.no_grad():
        maps = extractor(x)
    assert [128 // m.shape[-1] for m in maps] == extractor.feature_info.reduction()


def test_dilation_keeps_what_stride_sees(theirs):
    """Where the strided map has a value, the dilated one has it too: the same taps of the same image."""
    x = torch.randn(1, 3, 128, 128, dtype=torch.float64)
    maps = []
    for output_stride in (32, 16):
        model = timm.create_model("shufflenet_v2_x1_0", num_classes=10, output_stride=output_stride).eval().double()
        model.load_state_dict(theirs.state_dict())
        with torch.no_grad():
            maps.append(model.forward_features(x))
    torch.testing.assert_close(maps[1][..., ::2, ::2], maps[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("output_stride", [4, 64, 24])
def test_bad_output_stride(output_stride):
    with pytest.raises(ValueError, match=f"output_stride is {output_stride}; choose 8, 16 or 32"):
        ShuffleNetV2(output_stride=output_stride)


def test_intermediates(ours):
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        final, maps = ours.forward_intermediates(x)
        torch.testing.assert_close(final, ours.forward_features(x))
        assert [m.shape[1] for m in maps] == [24, 24, 116, 232, 464] == [f["num_chs"] for f in ours.feature_info]
        assert [64 // m.shape[-1] for m in maps] == [f["reduction"] for f in ours.feature_info]
        alone = ours.forward_intermediates(x, indices=[1, 3], stop_early=True, intermediates_only=True)
        assert len(alone) == 2
        assert torch.equal(alone[1], maps[3])
        early, _ = ours.forward_intermediates(x, indices=[3], stop_early=True)
        assert torch.equal(early, maps[3])
    with pytest.raises(ValueError, match="output_fmt is 'NHWC'; only 'NCHW' is supported"):
        ours.forward_intermediates(x, output_fmt="NHWC")


@pytest.mark.parametrize("level", range(5))
def test_prune(ours, level):
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        wanted = ours.forward_intermediates(x, intermediates_only=True)[level]
        assert ours.prune_intermediate_layers([level]) == [level]
        found = ours.forward_intermediates(x, [level], intermediates_only=True)[0]
        assert torch.equal(found, wanted)
        if level < 4:
            assert torch.equal(ours.forward_features(x), wanted)
            assert ours.num_features == wanted.shape[1]
    used = {name.split(".")[0] for name, _ in ours.named_parameters()}
    assert used <= {"conv1", "stage2", "stage3", "stage4", "conv5"}
    assert len(used) == {0: 1, 1: 1, 2: 2, 3: 3, 4: 5}[level]


def test_gradient_checkpointing(ours):
    x = torch.randn(2, 3, 64, 64)
    ours.train()
    for module in ours.modules():  # a checkpointed batch normalisation counts its batch twice; leave it out of this
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
    grads = []
    for enable in (False, True):
        ours.set_grad_checkpointing(enable)
        ours.zero_grad()
        ours(x).sum().backward()
        grads.append([p.grad.clone() for p in ours.parameters()])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*grads, strict=True))


def test_groups_cover_every_parameter(ours):
    from timm.models._manipulate import group_parameters

    groups = group_parameters(ours, ours.group_matcher())
    assert sum(len(names) for names in groups.values()) == len(list(ours.parameters()))
    assert len(groups) == 1 + 16 + 1  # stem, units (the last with conv5), classifier
    assert sorted(groups[max(groups)]) == ["fc.bias", "fc.weight"]
    assert len(group_parameters(ours, ours.group_matcher(coarse=True))) == 1 + 3 + 1


def test_reset_classifier(ours):
    x = torch.randn(2, 3, 64, 64)
    fc = ours.get_classifier()
    assert fc is ours.fc
    ours.reset_classifier(7, "catavgmax")
    assert ours(x).shape == (2, 7)
    assert ours.head_hidden_size == 2048
    ours.reset_classifier(3)
    assert ours.fc.in_features == 2048
    ours.reset_classifier(0, "")
    assert ours(x).shape == (2, 1024, 2, 2)
    assert not ours.fc.training


def test_dropout_and_pre_logits(ours):
    x = torch.randn(2, 3, 64, 64)
    assert ours.forward_head(ours.forward_features(x), pre_logits=True).shape == (2, 1024)
    dropping = timm.create_model("shufflenet_v2_x1_0", num_classes=10, drop_rate=0.9).train()
    features = dropping.forward_features(x)
    assert (dropping.forward_head(features, pre_logits=True) == 0).float().mean() > 0.8


def test_gap_and_gcp_twins_share_the_backbone():
    """The twin differs in its head and in the activation of the reduction only."""
    gap = timm.create_model("shufflenet_v2_x1_0", device="meta")
    gcp = timm.create_model("shufflenet_v2_x1_0_gcp", device="meta")
    head = ("fc.", "global_pool.")
    names = [{n: p.shape for n, p in m.named_parameters() if not n.startswith(head)} for m in (gap, gcp)]
    assert names[0] == names[1]
    assert isinstance(gcp, ShuffleNetV2)
    assert timm_gcp.models.ShuffleNetV2 is ShuffleNetV2
