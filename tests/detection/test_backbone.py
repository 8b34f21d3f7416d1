"""FPN backbones: strides, weights that survive the swap, frozen groups, batch norms and refusals."""

from __future__ import annotations

import json

import pytest
import timm
import torch
from torch import nn

import timm_gcp  # noqa: F401  registers the models
from timm_gcp.detection.backbone import (
    NUM_GROUPS,
    STRIDES,
    STRIDES_WITHOUT_DOWNSAMPLING,
    EvalBatchNorm2d,
    gcp_backbone,
    groups_of,
)

RESNETS = ["resnet18_gcp", "resnet34_gcp", "resnet50_gcp", "resnet101_gcp"]
SIX = [*RESNETS, "mobilenetv2_100_gcp", "shufflenet_v2_x1_0_gcp"]
TWINS = ["resnet18", "mobilenetv2_100", "shufflenet_v2_x1_0"]
SIDE = 64


def shapes(backbone, side=SIDE):
    with torch.inference_mode():
        return {name: tuple(level.shape[1:]) for name, level in backbone.eval()(torch.zeros(1, 3, side, side)).items()}


def save(model, path):
    torch.save({"state_dict": model.state_dict()}, path)
    return path


@pytest.mark.parametrize("name", [*SIX, *TWINS])
def test_levels_have_strides_4_8_16_32_and_a_pooled_one(name):
    backbone = gcp_backbone(name, fpn_channels=8)
    assert backbone.strides == STRIDES
    expected = {str(i): (8, SIDE // s, SIDE // s) for i, s in enumerate(STRIDES)}
    assert shapes(backbone) == {**expected, "pool": (8, SIDE // 64, SIDE // 64)}


@pytest.mark.parametrize(
    "last_stage, strides",
    [("stride2", STRIDES), ("maxpool", STRIDES), ("stride1", STRIDES_WITHOUT_DOWNSAMPLING), (None, STRIDES)],
)
def test_last_stage_of_a_gcp_resnet(last_stage, strides):
    backbone = gcp_backbone("resnet18_gcp", last_stage, fpn_channels=8)
    assert backbone.strides == strides
    assert [level[1] for level in list(shapes(backbone).values())[:4]] == [SIDE // s for s in strides]


def test_maxpool_stands_before_the_last_stage():
    torch.manual_seed(0)
    down, pooled = (gcp_backbone("resnet18_gcp", ls, norm="bn").body.eval() for ls in ("stride1", "maxpool"))
    pooled.load_state_dict(down.state_dict())
    x = torch.randn(2, 3, SIDE, SIDE)
    with torch.inference_mode():
        third = pooled(x)[2]
        last = down.layer4(nn.functional.max_pool2d(third, 2))
        assert torch.equal(pooled(x)[3], last)


@pytest.mark.parametrize("name", SIX)
def test_a_backbone_has_the_classifiers_names_and_sizes(name):
    with torch.device("meta"):
        classifier, body = timm.create_model(name), gcp_backbone(name, norm="bn", fpn_channels=8).body
    given = {key: value.shape for key, value in classifier.state_dict().items()}
    assert all(given[key] == value.shape for key, value in body.state_dict().items())


@pytest.mark.parametrize("name", ["resnet18_gcp", "mobilenetv2_100_gcp", "shufflenet_v2_x1_0_gcp", "mobilenetv2_100"])
@pytest.mark.parametrize("norm", ["frozen_bn", "bn"])
def test_weights_are_those_of_the_classifier_tensor_by_tensor(name, norm, tmp_path):
    torch.manual_seed(1)
    classifier = timm.create_model(name, num_classes=5)
    for module in classifier.modules():  # statistics that are not the initial ones
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
    backbone = gcp_backbone(name, norm=norm, checkpoint=save(classifier, tmp_path / "c.pth"), fpn_channels=8)
    before, after = classifier.state_dict(), backbone.body.state_dict()
    assert after and all(torch.equal(after[key], before[key]) for key in after)
    dropped = {key.split(".")[0] for key in before if not key.endswith("tracked")} - {
        key.split(".")[0] for key in after
    }
    assert dropped <= {"fc", "classifier", "global_pool", "conv_head", "bn2", "conv5"}


@pytest.mark.parametrize("pretrained_as", ["stride1", "stride2", "maxpool"])
def test_a_checkpoint_of_another_last_stage_loads(pretrained_as, tmp_path):
    classifier = timm.create_model("resnet18_gcp", last_stage=pretrained_as, reduce_dim=(64, 32), num_classes=3)
    path = save(classifier, tmp_path / "c.pth")
    for last_stage in ("stride2", "maxpool", "stride1"):
        body = gcp_backbone("resnet18_gcp", last_stage, checkpoint=path, fpn_channels=8).body.state_dict()
        assert all(torch.equal(value, classifier.state_dict()[key]) for key, value in body.items())


def test_a_safetensors_file_and_a_weight_folder_load(tmp_path):
    from safetensors.torch import save_file

    classifier = timm.create_model("resnet18_gcp", num_classes=3)
    save_file(classifier.state_dict(), tmp_path / "model.safetensors")
    config = {"architecture": "resnet18_gcp", "num_classes": 3, "pretrained_cfg": {"mean": [0.1, 0.2, 0.3]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    weight = classifier.state_dict()["layer4.1.conv2.weight"]
    loaded = gcp_backbone("resnet18_gcp", checkpoint=tmp_path / "model.safetensors", fpn_channels=8)
    assert torch.equal(loaded.body.state_dict()["layer4.1.conv2.weight"], weight)
    folder = gcp_backbone(f"local-dir:{tmp_path}", "maxpool", pretrained=True, fpn_channels=8)
    assert folder.strides == STRIDES
    assert torch.equal(folder.body.state_dict()["layer4.1.conv2.weight"], weight)


@pytest.mark.parametrize("name", ["resnet18_gcp", "mobilenetv2_100_gcp", "shufflenet_v2_x1_0_gcp"])
def test_trainable_layers_count_from_the_coarsest_level(name):
    counts = []
    for trainable in range(NUM_GROUPS + 1):
        body = gcp_backbone(name, trainable_layers=trainable, norm="bn", fpn_channels=8).body
        groups = groups_of(body)
        assert sum(len(group) for group in groups) == len(list(body.parameters()))
        states = [{parameter.requires_grad for parameter in group} for group in groups]
        assert all(state <= {i >= NUM_GROUPS - trainable} for i, state in enumerate(states))
        counts.append(sum(parameter.requires_grad for parameter in body.parameters()))
    assert counts[0] == 0 and counts[-1] == len(list(body.parameters()))
    assert counts == sorted(counts)


def test_groups_follow_the_stages_of_a_resnet():
    body = gcp_backbone("resnet18_gcp", norm="bn", trainable_layers=3, fpn_channels=8).body
    trained = {name.split(".")[0] for name, parameter in body.named_parameters() if parameter.requires_grad}
    assert trained == {"layer2", "layer3", "layer4"}


def buffers_after_a_step(norm, trainable_layers):
    torch.manual_seed(0)
    backbone = gcp_backbone("resnet18_gcp", norm=norm, trainable_layers=trainable_layers, fpn_channels=8).train()
    before = {key: value.clone() for key, value in backbone.body.state_dict().items()}
    backbone(torch.randn(2, 3, SIDE, SIDE))["0"].sum().backward()
    after = backbone.body.state_dict()
    moved = {key.split(".")[0] for key in after if "running" in key and not torch.equal(before[key], after[key])}
    return backbone, moved


def test_batch_norms_train_freeze_or_keep_their_statistics():
    frozen, moved = buffers_after_a_step("frozen_bn", 5)
    assert not moved and not any("bn" in name for name, _ in frozen.body.named_parameters())
    keeping, moved = buffers_after_a_step("eval_bn", 5)
    assert not moved and keeping.body.layer4[1].bn2.weight.grad is not None
    _, moved = buffers_after_a_step("bn", 3)
    assert moved == {"layer2", "layer3", "layer4"}  # and not those of the frozen groups
    synced = gcp_backbone("mobilenetv2_100_gcp", norm="sync_bn", fpn_channels=8)
    assert any(isinstance(module, nn.SyncBatchNorm) for module in synced.body.modules())


def test_eval_batch_norm_stays_in_evaluation():
    norm = EvalBatchNorm2d(3).train()
    y = norm(torch.full((2, 3, 4, 4), 5.0))
    assert not norm.training and torch.equal(norm.running_mean, torch.zeros(3))
    assert torch.allclose(y, torch.full_like(y, 5.0), atol=1e-4)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"name": "resnet18_gpc"}, "unknown model 'resnet18_gpc'. Did you mean 'resnet18_gcp'"),
        ({"norm": "gn"}, "norm must be one of frozen_bn, eval_bn, bn, sync_bn. Got 'gn'"),
        ({"trainable_layers": 6}, r"trainable_layers must be in \[0, 5\]. Got 6"),
        ({"fpn_channels": 0}, "fpn_channels must be at least 1. Got 0"),
        ({"levels": (2, 1)}, r"levels must be ascending numbers in \[0, 3\]. Got \(2, 1\)"),
        ({"last_stage": "dilated"}, "last_stage must be one of stride2, maxpool, stride1. Got 'dilated'"),
        ({"name": "resnet18", "last_stage": "maxpool"}, "resnet18 down-samples in its last stage"),
        ({"name": "mobilenetv2_100_gcp", "last_stage": "stride1"}, "only the resnet"),
        ({"name": "vit_tiny_patch16_224"}, "does not give four feature maps|gives maps at strides"),
        ({"pretrained": True, "checkpoint": "x.pth"}, "both name weights: give one"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        gcp_backbone(**{"name": "resnet18_gcp", **arguments})


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*none\.pth"):
        gcp_backbone("resnet18_gcp", checkpoint=tmp_path / "none.pth")
    with pytest.raises(FileNotFoundError, match="not a weight folder"):
        gcp_backbone(f"local-dir:{tmp_path}")


@pytest.mark.parametrize(
    "source, target, in_chans, message",
    [
        ("resnet34_gcp", "resnet18_gcp", 3, r"foreign: layer1\.2"),
        ("resnet18_gcp", "resnet34_gcp", 3, r"missing: layer1\.2"),
        (
            "resnet18",
            "resnet18_gcp",
            1,
            r"wrongly sized: conv1.weight is \(64, 3, 7, 7\), the backbone has \(64, 1, 7, 7\)",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(source, target, in_chans, message, tmp_path):
    path = save(timm.create_model(source), tmp_path / "c.pth")
    with pytest.raises(ValueError, match=message):
        gcp_backbone(target, checkpoint=path, in_chans=in_chans)


@pytest.mark.parametrize("name", ["shufflenet_v2_x1_0.adju_fmnist", "shufflenet_v2_x1_0_gcp.adju_fmnist"])
def test_weights_of_a_dilated_classifier_give_a_full_pyramid(name):
    backbone = gcp_backbone(name, pretrained=True, in_chans=1)
    assert backbone.strides == (4, 8, 16, 32)
    classifier = timm.create_model(name, pretrained=True).state_dict()
    body = {key: value for key, value in backbone.body.state_dict().items() if "num_batches" not in key}
    assert len(body) > 200 and all(torch.equal(value, classifier[key]) for key, value in body.items())
