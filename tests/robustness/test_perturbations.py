"""Perturbation sequences: what is known of single frames."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cv2", reason="the robustness extra isn't installed")

from timm_gcp.robustness import perturbations
from timm_gcp.robustness.perturbations import TEST_PERTURBATIONS, directional_blur, perturb, tilt_matrix

SIZE = 48


@pytest.fixture(scope="module")
def canvas() -> np.ndarray:
    return np.random.RandomState(0).randint(0, 256, size=(56, 56, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def middle(canvas) -> np.ndarray:
    return canvas[4:52, 4:52]


@pytest.mark.parametrize("name", TEST_PERTURBATIONS)
def test_shape_and_repeatability(canvas, name):
    np.random.seed(0)
    first = perturb(canvas, SIZE, name, seed=11)
    np.random.seed(1)
    assert (first == perturb(canvas, SIZE, name, seed=11)).all()
    frames = 41 if name == "translate" else 31
    assert first.shape == (frames, SIZE, SIZE, 3) and first.dtype == np.uint8
    assert all((first[t] != first[t + 1]).any() for t in range(frames - 1))


@pytest.mark.parametrize(
    ("name", "frame"),
    [("gaussian_noise", 0), ("shot_noise", 0), ("translate", 20), ("rotate", 15), ("scale", 24)],
)
def test_frame_without_perturbation(canvas, middle, name, frame):
    assert (perturb(canvas, SIZE, name, seed=0)[frame] == middle).all()


@pytest.mark.parametrize(("name", "frame"), [("zoom_blur", 0), ("brightness", 15)])
def test_frame_without_perturbation_but_for_rounding(canvas, middle, name, frame):
    assert np.abs(perturb(canvas, SIZE, name, seed=0)[frame].astype(int) - middle).max() <= 1


def test_translate_moves_one_pixel_a_frame_and_fills_with_black(canvas):
    clip = perturb(canvas, SIZE, "translate", seed=0)
    for t in (0, 13, 40):
        shift = t - 20
        expected = np.zeros_like(canvas)
        if shift >= 0:
            expected[:, shift:] = canvas[:, : 56 - shift]
        else:
            expected[:, :shift] = canvas[:, -shift:]
        assert (clip[t] == expected[4:52, 4:52]).all()


@pytest.mark.parametrize(("difficulty", "scale"), [(1, 0.03), (2, 0.05), (3, 0.08)])
def test_strength_of_gaussian_noise(difficulty, scale):
    grey = np.full((SIZE, SIZE, 3), 128, dtype=np.uint8)
    clip = perturb(grey, SIZE, "gaussian_noise", seed=0, difficulty=difficulty) / 255
    assert clip[1:].std() == pytest.approx(scale, rel=0.02)


@pytest.mark.parametrize(("difficulty", "count"), [(1, 300), (2, 120), (3, 60)])
def test_strength_of_shot_noise(difficulty, count):
    grey = np.full((SIZE, SIZE, 3), 102, dtype=np.uint8)
    clip = perturb(grey, SIZE, "shot_noise", seed=0, difficulty=difficulty) / 255
    assert clip[1:].var() == pytest.approx(0.4 / count, rel=0.03)  # a Poisson count's variance is its mean


def test_brightness_steps_by_two_percent():
    grey = np.full((SIZE, SIZE, 3), 128, dtype=np.uint8)
    levels = perturb(grey, SIZE, "brightness", seed=0)[:, 0, 0, 0] / 255
    np.testing.assert_allclose(levels, 128 / 255 + 0.02 * (np.arange(31) - 15), atol=1.01 / 255)


def test_scale_shrinks_first_and_leaves_black(canvas):
    clip = perturb(canvas, SIZE, "scale", seed=0)
    assert clip[0, 0].max() == 0 and clip[0, 24].max() > 0
    assert clip[30, 0].max() > 0


def test_snow_only_brightens(canvas, middle):
    clip = perturb(canvas, SIZE, "snow", seed=0).astype(int)
    assert (clip >= middle.astype(int) - 1).all() and (clip > middle.astype(int) + 30).any()


def project(matrix: np.ndarray, x: float, y: float) -> np.ndarray:
    point = matrix @ [x, y, 1]
    return point[:2] / point[2]


@pytest.mark.parametrize("degrees", [0, 12, -15])
def test_tilt_matrix_against_a_pinhole_camera(degrees):
    width, height, angle = 60, 40, np.deg2rad(degrees)
    focal = np.hypot(width, height)
    for x, y in [(0, 0), (60, 0), (30, 20), (7, 33)]:
        point = np.array([x - width / 2, y - height / 2, 1.0])
        # Turn about the y axis, then about the x axis, then look from `focal` pixels away.
        point = np.array(
            [
                np.cos(angle) * point[0] - np.sin(angle) * point[2],
                point[1],
                np.sin(angle) * point[0] + np.cos(angle) * point[2],
            ]
        )
        point = np.array(
            [
                point[0],
                np.cos(angle) * point[1] - np.sin(angle) * point[2],
                np.sin(angle) * point[1] + np.cos(angle) * point[2],
            ]
        )
        expected = focal * point[:2] / (point[2] + focal) + [width / 2, height / 2]
        np.testing.assert_allclose(project(tilt_matrix(degrees, width, height), x, y), expected, atol=1e-10)


def test_tilt_of_zero_only_shrinks_a_little():
    focal = np.hypot(60, 40)
    shrunk = project(tilt_matrix(0, 60, 40), 60, 40)
    np.testing.assert_allclose(shrunk, np.array([30, 20]) * (1 + focal / (focal + 1)), atol=1e-12)


def literal_blur(image: np.ndarray, radius: int, sigma: float, angle: float) -> np.ndarray:
    """Walk along the line, sample the nearest pixel, weigh it by a Gaussian: pixel by pixel."""
    height, width = image.shape[:2]
    weights = [np.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)]
    out = np.zeros(image.shape)
    for y in range(height):
        for x in range(width):
            for i, weight in enumerate(weights):
                dx = int(np.ceil(i * np.cos(np.deg2rad(angle)) - 0.5))
                dy = int(np.ceil(i * np.sin(np.deg2rad(angle)) - 0.5))
                out[y, x] += weight * image[np.clip(y + dy, 0, height - 1), np.clip(x + dx, 0, width - 1)]
    return out / sum(weights)


@pytest.mark.parametrize("angle", [0, 37, -120, 90, 180])
def test_directional_blur_against_a_pixel_loop(canvas, angle):
    image = canvas[:20, :24]
    expected = literal_blur(image, 4, 2.0, angle)
    assert np.abs(directional_blur(image, 4, 2.0, angle) - np.floor(expected + 1e-3)).max() <= 1
    flat = np.full((12, 12), 77, dtype=np.uint8)
    assert (directional_blur(flat, 10, 3.0, angle) == 77).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((40, 40, 3), np.uint8), 48, "snow", 0), "canvas of at least 48 px; got shape"),
        ((np.zeros((56, 56, 3)), 48, "snow", 0), "float64"),
        ((np.zeros((56, 56, 3), np.uint8), 48, "rain", 0), "unknown perturbation 'rain'; choose from gaussian_noise"),
        ((np.zeros((56, 56, 3), np.uint8), 48, "snow", 0, 4), r"difficulty must be one of \(1, 2, 3\); got 4"),
    ],
)
def test_perturb_rejects(arguments, message):
    with pytest.raises(ValueError, match=message):
        perturb(*arguments)


def test_noise_is_told_by_name():
    assert [name for name in TEST_PERTURBATIONS if perturbations.is_noise(name)] == ["gaussian_noise", "shot_noise"]
