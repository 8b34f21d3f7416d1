"""Detectors on GCP backbones: losses, detections, gradients, region levels and pixel statistics."""

from __future__ import annotations

import pytest
import torch
from torchvision.models.detection import FasterRCNN, MaskRCNN, RetinaNet

import timm_gcp  # noqa: F401  registers the models
from timm_gcp.detection.models import (
    ANCHOR_SIZES,
    DETECTORS,
    build_detector,
    fasterrcnn_gcp_fpn,
    maskrcnn_gcp_fpn,
    retinanet_gcp_fpn,
)

SIDE = 64
SMALL = {"min_size": SIDE, "max_size": SIDE, "fpn_channels": 16, "norm": "bn", "trainable_layers": 5}
NARROW = {**SMALL, "head_channels": 32, "rpn_post_nms_top_n_train": 50, "rpn_post_nms_top_n_test": 50}
OPTIONS = {"fasterrcnn": NARROW, "maskrcnn": {**NARROW, "mask_channels": 16}, "retinanet": SMALL}
CLASSES = {"fasterrcnn": FasterRCNN, "maskrcnn": MaskRCNN, "retinanet": RetinaNet}


def targets(count=2):
    masks = torch.zeros(1, SIDE, SIDE, dtype=torch.uint8)
    masks[:, 8:40, 8:48] = 1
    target = {"boxes": torch.tensor([[8.0, 8.0, 48.0, 40.0]]), "labels": torch.tensor([2]), "masks": masks}
    return [dict(target) for _ in range(count)]


@pytest.mark.parametrize("detector", list(DETECTORS))
@pytest.mark.parametrize("name", ["resnet18_gcp", "shufflenet_v2_x1_0"])
def test_a_step_and_a_detection(detector, name):
    torch.manual_seed(0)
    model = build_detector(detector, name, 4, **OPTIONS[detector])
    assert type(model) is CLASSES[detector]
    images = [torch.rand(3, SIDE, SIDE), torch.rand(3, SIDE, SIDE - 16)]
    losses = model.train()(images, targets())
    assert all(torch.isfinite(loss) for loss in losses.values())
    sum(losses.values()).backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]
    with torch.inference_mode():
        outputs = model.eval()(images)
    assert len(outputs) == 2
    for output in outputs:
        assert output["labels"].numel() == 0 or 1 <= output["labels"].min() <= output["labels"].max() <= 3
        assert ("masks" in output) == (detector == "maskrcnn")


def test_an_image_without_objects_trains():
    model = maskrcnn_gcp_fpn("resnet18_gcp", 3, **OPTIONS["maskrcnn"]).train()
    empty = {
        "boxes": torch.zeros(0, 4),
        "labels": torch.zeros(0, dtype=torch.int64),
        "masks": torch.zeros(0, SIDE, SIDE, dtype=torch.uint8),
    }
    losses = model([torch.rand(3, SIDE, SIDE)] * 2, [*targets(1), empty])
    assert all(torch.isfinite(loss) for loss in losses.values())


def side_to_level(model, side):
    pool = model.roi_heads.box_roi_pool
    return int(pool.map_levels([torch.tensor([[0.0, 0.0, side, side]])]))


@pytest.mark.parametrize("last_stage, strides", [("stride2", [4, 8, 16, 32]), ("stride1", [4, 8, 16, 16])])
def test_regions_are_pooled_from_all_four_maps(last_stage, strides):
    model = fasterrcnn_gcp_fpn("resnet18_gcp", 3, last_stage=last_stage, **NARROW).eval()
    pool = model.roi_heads.box_roi_pool
    assert pool.scales == [1 / stride for stride in strides]
    # Lin et al. 2017, equation 1: 224 pixels belong to the third map, and each halving to the next finer one
    assert [side_to_level(model, side) for side in (56.0, 112.0, 224.0, 448.0)] == [0, 1, 2, 3]
    images = [torch.rand(3, SIDE, SIDE)]
    model(images)
    # torchvision would have set the scales by itself from the first images: the same where the strides all differ
    if last_stage == "stride2":
        own = type(pool)(pool.featmap_names, pool.output_size, pool.sampling_ratio)
        maps = model.backbone(torch.zeros(1, 3, SIDE, SIDE))
        boxes = [torch.tensor([[4.0, 4.0, 60.0, 60.0], [0.0, 0.0, 20.0, 30.0]])]
        assert torch.equal(own(maps, boxes, [(SIDE, SIDE)]), pool(maps, boxes, [(SIDE, SIDE)]))
        assert own.scales == pool.scales


def test_the_stride_1_case_detects_and_learns():
    model = maskrcnn_gcp_fpn("resnet18_gcp", 3, last_stage="stride1", **OPTIONS["maskrcnn"]).train()
    sum(model([torch.rand(3, SIDE, SIDE)] * 2, targets()).values()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_pixels_are_normalised_as_the_classifier_was_trained():
    colour = fasterrcnn_gcp_fpn("mobilenetv2_100_gcp", 3, **NARROW)
    cfg = colour.backbone.body.pretrained_cfg
    assert colour.transform.image_mean == list(cfg["mean"]) and colour.transform.image_std == list(cfg["std"])
    grey = fasterrcnn_gcp_fpn("mobilenetv2_100_gcp", 3, in_chans=1, **NARROW).eval()
    assert grey.transform.image_mean == [pytest.approx(sum(cfg["mean"]) / 3)]
    with torch.inference_mode():
        assert len(grey([torch.rand(1, SIDE, SIDE)])) == 1
    given = fasterrcnn_gcp_fpn("mobilenetv2_100_gcp", 3, image_mean=[0.0] * 3, **NARROW)
    assert given.transform.image_mean == [0.0] * 3


def test_anchors_are_those_asked_for():
    sizes = (8, 16, 32, 64, 128)
    two_stage = fasterrcnn_gcp_fpn("resnet18_gcp", 3, anchor_sizes=sizes, **NARROW)
    assert two_stage.rpn.anchor_generator.sizes == tuple((size,) for size in sizes)
    one_stage = retinanet_gcp_fpn("resnet18_gcp", 3, **SMALL)
    assert [octave[0] for octave in one_stage.anchor_generator.sizes] == list(ANCHOR_SIZES)
    assert one_stage.anchor_generator.sizes[0] == (32, 40, 50)  # 32 * 2**(k / 3)


@pytest.mark.parametrize("factory", DETECTORS.values())
@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"num_classes": 1}, "num_classes counts the background and must be at least 2. Got 1"),
        ({"anchor_sizes": (8, 16)}, r"anchor_sizes must be 5 positive numbers, one per map. Got \(8, 16\)"),
        ({"anchor_sizes": (0, 1, 2, 3, 4)}, "anchor_sizes must be 5 positive numbers"),
        ({"last_stage": "x"}, "last_stage must be one of"),
    ],
)
def test_bad_arguments_are_named(factory, arguments, message):
    with pytest.raises(ValueError, match=message):
        factory(**{"name": "resnet18_gcp", "num_classes": 3, **arguments})


def test_an_unknown_detector_is_named():
    with pytest.raises(ValueError, match=r"unknown detector 'ssd'\. Choose one of fasterrcnn, maskrcnn, retinanet"):
        build_detector("ssd", "resnet18_gcp", 3)
