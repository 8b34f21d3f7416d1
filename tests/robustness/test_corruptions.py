"""Corruptions: repeatable, seeded per image, of the published form."""

from __future__ import annotations

import sys

import numpy as np
import pytest

pytest.importorskip("imagecorruptions", reason="the robustness extra isn't installed")

from timm_gcp.robustness import corruptions


def picture(size: int = 64) -> np.ndarray:
    y, x = np.mgrid[:size, :size]
    smooth = np.stack([x, y, x + y], axis=-1) * (120 / size)
    return (smooth + np.random.RandomState(1).randint(0, 16, size=(size, size, 3))).astype(np.uint8)


@pytest.mark.parametrize("name", corruptions.ALL_CORRUPTIONS)
def test_same_seed_same_picture_whatever_the_global_state(name):
    image = picture()
    before = image.copy()
    np.random.seed(1)
    state = np.random.get_state()[1].copy()
    first = corruptions.corrupt(image, name, 3, seed=7)
    assert (np.random.get_state()[1] == state).all()
    np.random.seed(2)
    assert (corruptions.corrupt(image, name, 3, seed=7) == first).all()
    assert (image == before).all()
    assert first.shape == image.shape and first.dtype == np.uint8
    assert (first != image).any()


RANDOM = set(corruptions.ALL_CORRUPTIONS) - {
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
}


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_another_seed_another_picture(name):
    image = picture()
    assert (corruptions.corrupt(image, name, 5, seed=1) != corruptions.corrupt(image, name, 5, seed=2)).any()


@pytest.mark.parametrize("name", ["gaussian_noise", "defocus_blur", "contrast", "pixelate"])
def test_severity_moves_further_from_the_image(name):
    image = picture()
    gaps = [
        np.abs(corruptions.corrupt(image, name, s, seed=0).astype(int) - image).mean() for s in corruptions.SEVERITIES
    ]
    assert gaps[4] > gaps[2] > gaps[0]


@pytest.mark.parametrize("seed", range(6))
def test_frost_is_a_crop_of_one_of_five_pictures(seed):
    black = np.zeros((224, 224, 3), dtype=np.uint8)
    rng = np.random.RandomState(seed)
    name = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")[rng.randint(5)]
    whole = corruptions._frost_picture(name, 1.0)
    top, left = rng.randint(0, whole.shape[0] - 224), rng.randint(0, whole.shape[1] - 224)
    expected = (0.6 * whole[top : top + 224, left : left + 224]).astype(np.uint8)
    assert (corruptions.corrupt(black, "frost", 2, seed) == expected).all()


@pytest.mark.parametrize("size", [32, 64, 300])
def test_every_size_works_for_the_two_written_here(size):
    image = picture(size)
    for name in ("frost", "elastic_transform"):
        assert corruptions.corrupt(image, name, 1, seed=0).shape == (size, size, 3)
    tall = picture(64)[:, :48]
    assert corruptions.corrupt(tall, "elastic_transform", 2, seed=0).shape == tall.shape
    assert corruptions.corrupt(tall, "frost", 2, seed=0).shape == tall.shape


def test_smoothing_matrix_is_the_gaussian_filter():
    from scipy.ndimage import gaussian_filter

    field = np.random.RandomState(0).uniform(-1, 1, size=(40, 24))
    rows, columns = corruptions._smoothing_matrix(40, 17.0), corruptions._smoothing_matrix(24, 17.0)
    expected = gaussian_filter(field, 17.0, mode="reflect", truncate=3)
    np.testing.assert_allclose(rows @ field @ columns.T, expected, atol=1e-14)


def test_elastic_transform_without_motion_is_the_image(monkeypatch):
    image = picture()

    class Still:
        def uniform(self, low, high, size):
            return np.zeros(size)

    assert np.abs(corruptions.elastic_transform(image, 1, Still()).astype(int) - image).max() <= 1


def test_spatter_without_a_drop_leaves_the_image_as_it_is():
    image = picture(32)
    seed = 35  # makes no drop at this size
    with np.errstate(all="raise"):
        assert (corruptions.corrupt(image, "spatter", 1, seed) == image).all()
        assert (corruptions.corrupt(image, "spatter", 1, seed + 1) != image).any()


@pytest.mark.parametrize("name", sorted(set(corruptions.ALL_CORRUPTIONS) - {"frost", "elastic_transform"}))
def test_same_as_the_package_but_for_the_two_written_here(name):
    import imagecorruptions

    image = picture()
    np.random.seed(9)
    own_seed = {"seed": 9} if name in ("glass_blur", "impulse_noise") else {}
    expected = imagecorruptions.corrupt(image, severity=4, corruption_name=name, **own_seed)
    assert (corruptions.corrupt(image, name, 4, seed=9) == expected).all()


def test_image_seed_depends_on_each_argument():
    base = corruptions.image_seed(0, 5, "snow", 2)
    assert base == corruptions.image_seed(0, 5, "snow", 2)
    others = [(1, 5, "snow", 2), (0, 6, "snow", 2), (0, 5, "fog", 2), (0, 5, "snow", 3)]
    assert len({base, *(corruptions.image_seed(*key) for key in others)}) == 5
    assert 0 <= base < 2**32


@pytest.mark.parametrize(
    ("image", "name", "severity", "message"),
    [
        (picture()[..., 0], "snow", 1, r"takes an \(H, W, 3\) uint8 image; got shape \(64, 64\)"),
        (picture() / 255, "snow", 1, "dtype float64"),
        (picture(28), "snow", 1, "need images of 32 px or more"),
        (picture(), "rain", 1, "unknown corruption 'rain'; choose from gaussian_noise, shot_noise"),
        (picture(), "snow", 6, "severity must be one of .* got 6"),
    ],
)
def test_corrupt_rejects(image, name, severity, message):
    with pytest.raises(ValueError, match=message):
        corruptions.corrupt(image, name, severity, seed=0)


def test_missing_package_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    with pytest.raises(ImportError, match=r"pip install 'timm-gcp\[robustness\]'"):
        corruptions.import_package()
