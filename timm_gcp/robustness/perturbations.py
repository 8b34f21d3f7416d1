"""The perturbation sequences of ImageNet-P, made from single images.

A sequence shows one image under a perturbation that changes little from frame to frame (Hendrycks and Dietterich, ICLR
2019). The parameters are those published for 224 px. Geometric sequences start from a canvas somewhat larger than the
frames, so that what moves into view is image where there is some, and black where there isn't.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

TEST_PERTURBATIONS = (
    "gaussian_noise",
    "shot_noise",
    "motion_blur",
    "zoom_blur",
    "snow",
    "brightness",
    "translate",
    "rotate",
    "tilt",
    "scale",
)
# Those that the benchmark keeps apart, for tuning.
EXTRA_PERTURBATIONS = ("speckle_noise", "gaussian_blur", "spatter", "shear")
DIFFICULTIES = (1, 2, 3)

FRAMES = 31
TRANSLATE_FRAMES = 41
GAUSSIAN_SCALES = (0.03, 0.05, 0.08)  # by difficulty, on a 0 to 1 scale
SHOT_COUNTS = (300, 120, 60)  # photons per unit of brightness, by difficulty


def is_noise(name: str) -> bool:
    """Return whether frames are noisy versions of the first, not steps of a motion."""
    return "noise" in name


def directional_blur(image: np.ndarray, radius: int, sigma: float, angle: float) -> np.ndarray:
    """Blur along one direction with the falling half of a Gaussian, as ImageMagick's motion blur does.

    Args:
        image: `(H, W)` or `(H, W, C)` uint8.
        radius: `2 * radius + 1` samples are taken.
        sigma: width of the Gaussian in pixels.
        angle: direction in degrees, clockwise from the x axis in image coordinates.

    Returns:
        uint8 of the same shape, rounded down as ImageMagick does; beyond the border the image is continued by its edge.
    """
    import cv2

    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    dx = np.ceil(steps * np.cos(np.deg2rad(angle)) - 0.5).astype(int)
    dy = np.ceil(steps * np.sin(np.deg2rad(angle)) - 0.5).astype(int)
    kernel = np.zeros((np.ptp(dy) + 1, np.ptp(dx) + 1), dtype=np.float32)
    np.add.at(kernel, (dy - dy.min(), dx - dx.min()), weights)
    anchor = (int(-dx.min()), int(-dy.min()))  # the kernel cell that lies on the pixel itself
    blurred = cv2.filter2D(image, cv2.CV_32F, kernel, anchor=anchor, borderType=cv2.BORDER_REPLICATE)
    # Sums that are whole numbers in exact arithmetic must not fall below them.
    return np.clip(blurred + 1e-3, 0, 255).astype(np.uint8)


def perturb(canvas: np.ndarray, size: int, name: str, seed: int, difficulty: int = 1) -> np.ndarray:
    """Return the perturbation sequence of one image.

    Args:
        canvas: `(H, W, 3)` uint8, both sides at least `size`; frames are cut from its middle.
        size: side of the frames in pixels.
        name: one of `TEST_PERTURBATIONS`.
        seed: 32-bit seed, see `corruptions.image_seed`.
        difficulty: 1 to 3; changes the strength of the two noises only (for the others it is the step between the
            frames that are compared).

    Returns:
        `(31, size, size, 3)` uint8; 41 frames for "translate".

    Raises:
        ValueError: A wrong canvas, an unknown name or difficulty.
    """
    if canvas.dtype != np.uint8 or canvas.ndim != 3 or canvas.shape[2] != 3 or min(canvas.shape[:2]) < size:
        raise ValueError(
            f"perturb takes an (H, W, 3) uint8 canvas of at least {size} px; got shape {canvas.shape}, {canvas.dtype}"
        )
    if name not in _SEQUENCES:
        raise ValueError(f"unknown perturbation {name!r}; choose from {', '.join(TEST_PERTURBATIONS)}")
    if difficulty not in DIFFICULTIES:
        raise ValueError(f"difficulty must be one of {DIFFICULTIES}; got {difficulty}")
    rng = np.random.RandomState(seed)
    return np.stack(list(_SEQUENCES[name](Image.fromarray(canvas), size, rng, difficulty)))


def _crop(picture: Image.Image, size: int) -> np.ndarray:
    return np.asarray(F.center_crop(picture, [size, size]))


def _to_bytes(unit: np.ndarray) -> np.ndarray:
    """Bring values of 0 to 1 to bytes; like the benchmark, without rounding up."""
    return (np.clip(unit, 0, 1) * 255).astype(np.uint8)


def _move(
    picture: Image.Image, size: int, angle: float = 0, shift: int = 0, scale: float = 1, smooth: bool = True
) -> np.ndarray:
    mode = InterpolationMode.BILINEAR if smooth else InterpolationMode.NEAREST
    moved = F.affine(picture, angle=angle, translate=[shift, 0], scale=scale, shear=[0.0], interpolation=mode, fill=[0])
    return _crop(moved, size)


Frames = Iterator[np.ndarray]


def _gaussian_noise(picture: Image.Image, size: int, rng: np.random.RandomState, difficulty: int) -> Frames:
    clean = _crop(picture, size)
    yield clean
    for _ in range(FRAMES - 1):
        yield _to_bytes(clean / 255 + GAUSSIAN_SCALES[difficulty - 1] * rng.standard_normal(clean.shape))


def _shot_noise(picture: Image.Image, size: int, rng: np.random.RandomState, difficulty: int) -> Frames:
    clean = _crop(picture, size)
    count = SHOT_COUNTS[difficulty - 1]
    yield clean
    for _ in range(FRAMES - 1):
        yield _to_bytes(rng.poisson(clean / 255 * count) / count)


def _motion_blur(picture: Image.Image, size: int, rng: np.random.RandomState, difficulty: int) -> Frames:
    clean = _crop(picture, size)
    for i in range(FRAMES):
        yield directional_blur(clean, radius=10, sigma=3, angle=(i - (FRAMES - 1)) * 4)


def _zoom_blur(picture: Image.Image, size: int, rng: np.random.RandomState, difficulty: int) -> Frames:
    total = _crop(picture, size) / 255
    yield _to_bytes(total)
    for i in range(1, FRAMES):
        total = total + _move(picture, size, scale=1 + 0.004 * i) / 255
        yield _to_bytes(total / (i + 1))


def _snow(picture: Image.Image, size: int, rng: np.random.RandomState, difficulty: int) -> Frames:
    import cv2
    from scipy.ndimage import zoom

    clean = (_crop(picture, size) / 255).astype(np.float32)
    flakes = rng.normal(loc=0.05, scale=0.3, size=(size, size))
    side = -(-size // 3)  # a third of the layer, magnified three times
    start = (size - side) // 2
    flakes = zoom(flakes[start : start + side, start : start + side], 3, order=1)
    trim = (len(flakes) - size) // 2
    flakes = flakes[trim : trim + size, trim : trim + size]
    flakes[flakes < 0.5] = 0
    flakes = _to_bytes(flakes)
    grey = cv2.cvtColor(clean, cv2.COLOR_RGB2GRAY)[..., None]
    whitened = 0.85 * clean + 0.15 * np.maximum(clean, grey * 1.5 + 0.5)
    for i in range(FRAMES):
        falling = directional_blur(flakes, radius=14, sigma=4, angle=i * 4 - 150) / 255
        yield _to_bytes(whitened + (falling + np.rot90(falling, k=2))[..., None])


def _brightness(picture: Image.Image, size: int, rng: np.random.RandomState, difficulty: int) -> Frames:
    from skimage.color import hsv2rgb, rgb2hsv

    hsv = rgb2hsv(_crop(picture, size))
    for i in range(FRAMES):
        changed = hsv.copy()
        changed[..., 2] = np.clip(hsv[..., 2] + (i - FRAMES // 2) * 0.02, 0, 1)
        yield _to_bytes(hsv2rgb(changed))


def _translate(picture: Image.Image, size: int, rng: np.random.RandomState, difficulty: int) -> Frames:
    for i in range(TRANSLATE_FRAMES):
        yield _move(picture, size, shift=i - TRANSLATE_FRAMES // 2, smooth=False)


def _rotate(picture: Image.Image, size: int, rng: np.random.RandomState, difficulty: int) -> Frames:
    for i in range(FRAMES):
        yield _move(picture, size, angle=i - FRAMES // 2)


def tilt_matrix(degrees: float, width: int, height: int) -> np.ndarray:
    """Return the 3×3 homography of a plane turned by `degrees` about its x axis and about its y axis.

    Focal length and distance of the camera are both the image's diagonal, in pixels. As the benchmark has it, the
    plane lies one pixel behind the axes it turns about, so that 0 degrees shrinks it by f / (f + 1).
    """
    cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    focal = float(np.hypot(width, height))
    to_plane = np.array([[1, 0, -width / 2], [0, 1, -height / 2], [0, 0, 1], [0, 0, 1]])
    about_x = np.array([[1, 0, 0, 0], [0, cos, -sin, 0], [0, sin, cos, 0], [0, 0, 0, 1]])
    about_y = np.array([[cos, 0, -sin, 0], [0, 1, 0, 0], [sin, 0, cos, 0], [0, 0, 0, 1]])
    away = np.eye(4)
    away[2, 3] = focal
    project = np.array([[focal, 0, width / 2, 0], [0, focal, height / 2, 0], [0, 0, 1, 0]])
    return project @ away @ about_x @ about_y @ to_plane


def _tilt(picture: Image.Image, size: int, rng: np.random.RandomState, difficulty: int) -> Frames:
    import cv2

    canvas = np.asarray(picture)
    height, width = canvas.shape[:2]
    for i in range(FRAMES):
        warped = cv2.warpPerspective(canvas, tilt_matrix(i - FRAMES // 2, width, height), (width, height))
        yield _crop(Image.fromarray(warped), size)


def _scale(picture: Image.Image, size: int, rng: np.random.RandomState, difficulty: int) -> Frames:
    for i in range(FRAMES):
        yield _move(picture, size, scale=(40 + 2.5 * i) / 100)


_SEQUENCES: dict[str, Callable[[Image.Image, int, np.random.RandomState, int], Frames]] = {
    "gaussian_noise": _gaussian_noise,
    "shot_noise": _shot_noise,
    "motion_blur": _motion_blur,
    "zoom_blur": _zoom_blur,
    "snow": _snow,
    "brightness": _brightness,
    "translate": _translate,
    "rotate": _rotate,
    "tilt": _tilt,
    "scale": _scale,
}
