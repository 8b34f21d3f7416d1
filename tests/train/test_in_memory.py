"""Images held as a tensor: crops against Pillow's, validation against timm's transform, order, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform

from timm_gcp.train.in_memory import TensorData, TensorLoader, crop_resize, random_crops
from timm_gcp.train.options import resolve_args

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 28, 28), dtype="uint8")
CONFIG = {"input_size": (1, 64, 64), "mean": (0.3,), "std": (0.4,), "crop_pct": 0.9, "interpolation": "bilinear"}
PLAIN = {"color_jitter": None, "train_interpolation": "bilinear", "scale": [0.5, 1.0], "batch_size": 3}


def loader(training: bool, config=CONFIG, count=10, **keys) -> TensorLoader:
    images = torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 28, 28) * 10
    return TensorLoader(images, torch.arange(count), resolve_args(None, {**PLAIN, **keys}), config, training)


def test_crops_are_pillows():
    boxes = torch.tensor([[0, 0, 28, 28], [3, 5, 20, 17], [10, 0, 9, 28], [27, 27, 1, 1]])
    flip = torch.tensor([False, True, False, True])
    ours = crop_resize(torch.tensor(PIXELS)[:, None].double(), boxes, flip, 64)[:, 0]
    for index, (top, left, high, wide) in enumerate(boxes.tolist()):
        image = Image.fromarray(PIXELS[index]).crop((left, top, left + wide, top + high))
        image = image.resize((64, 64), Image.BILINEAR)
        expected = np.asarray(image.transpose(Image.FLIP_LEFT_RIGHT) if flip[index] else image).astype(float)
        assert np.abs(ours[index].numpy() - expected).max() <= 1.0  # Pillow rounds, twice


def test_boxes_are_inside_and_in_range():
    generator = torch.Generator().manual_seed(0)
    boxes = random_crops(20000, 28, 28, (0.3, 1.0), (0.5, 2.0), generator)
    top, left, high, wide = boxes.double().unbind(1)
    assert (top >= 0).all() and (left >= 0).all() and (top + high <= 28).all() and (left + wide <= 28).all()
    area, aspect = high * wide / 28**2, wide / high
    assert area.min() > 0.25 and aspect.min() > 0.45 and aspect.max() < 2.2
    assert aspect.log().mean().abs() < 0.02  # wide as often as high
    assert top.max() > 10 and left.max() > 10
    never = random_crops(5, 28, 28, (3.0, 4.0), (1.0, 1.0), generator)  # nothing that large is inside
    assert never.tolist() == [[0, 0, 28, 28]] * 5


def test_area_is_uniform():
    boxes = random_crops(20000, 1000, 1000, (0.2, 0.4), (0.9, 1 / 0.9), torch.Generator().manual_seed(0)).double()
    area = boxes[:, 2] * boxes[:, 3] / 1e6
    assert area.mean().item() == pytest.approx(0.3, abs=2e-3)
    assert area.std().item() == pytest.approx(0.2 / math.sqrt(12), abs=2e-3)


@pytest.mark.parametrize("crop_pct", [1.0, 0.9])
def test_validation_is_timms(crop_pct):
    config = {**CONFIG, "crop_pct": crop_pct}
    transform = create_transform(**config, is_training=False)
    expected = torch.stack([transform(Image.fromarray(image)) for image in PIXELS])
    part = TensorLoader(torch.tensor(PIXELS)[:, None], torch.arange(4), resolve_args(None, PLAIN), config, False)
    ours = torch.cat([images for images, _ in part])
    assert (ours - expected).abs().max() * 0.4 * 255 <= 1.01


def test_an_epoch():
    training, validation = loader(True), loader(False, validation_batch_size=4)
    assert (len(training), len(validation)) == (3, 3)
    seen = [target.tolist() for _, target in training]
    assert [len(batch) for batch in seen] == [3, 3, 3] and len({i for batch in seen for i in batch}) == 9
    assert [target.tolist() for _, target in validation] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    images, target = next(iter(training))
    assert images.shape == (3, 1, 64, 64)
    torch.testing.assert_close(images.amax((1, 2, 3)), (target * 10 / 255 - 0.3) / 0.4)  # its own image


def test_epochs_differ_and_repeat():
    training = loader(True)
    first = torch.cat([target for _, target in training])
    training.set_epoch(1)
    second = torch.cat([target for _, target in training])
    training.set_epoch(0)
    assert not torch.equal(first, second) and torch.equal(first, torch.cat([target for _, target in training]))
    other = torch.cat([target for _, target in loader(True, seed=7)])
    assert not torch.equal(first, other)


def test_no_augmentation():
    plain = loader(True, no_aug=True)
    images, target = next(iter(plain))
    assert torch.equal(images.amin((1, 2, 3)), images.amax((1, 2, 3))) and images.shape[-1] == 64
    assert len(target) == 3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"vflip": 0.5, "mixup": 0.2}, "not augmented by vflip, mixup: train with timm's loader"),
        ({"color_jitter": 0.4}, "color_jitter"),
        ({"train_interpolation": "random"}, "train_interpolation"),
        ({"batch_size": 16}, "10 training images make no batch of 16"),
    ],
)
def test_refusals(keys, message):
    with pytest.raises(ValueError, match=message):
        loader(True, **keys)


def test_data_moves_once():
    data = TensorData(
        (torch.zeros(4, 1, 8, 8).byte(), torch.arange(4)), (torch.zeros(2, 1, 8, 8).byte(), torch.arange(2))
    )
    made = data.loaders(resolve_args(None, PLAIN), CONFIG, torch.device("cpu"))
    assert len(made.train) == 1 and len(list(made.val)) == 1 and made.mixup is None
