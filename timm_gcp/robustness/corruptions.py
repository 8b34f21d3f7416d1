"""The nineteen image corruptions of ImageNet-C, each from an explicit seed.

Seventeen come from the package `imagecorruptions-imaug`; frost and the elastic transform, where that package departs
from the benchmark's published definition (Hendrycks and Dietterich, ICLR 2019), are written here.
`tools/studies/compare_corruptions.py` measures how far every one is from the benchmark's own code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import lru_cache
from importlib import resources
from types import ModuleType

import numpy as np
from PIL import Image

TEST_CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
ALL_CORRUPTIONS = TEST_CORRUPTIONS + EXTRA_CORRUPTIONS
SEVERITIES = (1, 2, 3, 4, 5)
MIN_SIZE = 32  # the smallest side that the corruption package takes

REFERENCE_SIZE = 224  # the image side for which the benchmark publishes its parameters
# The benchmark ships six frost images and draws among the first five.
FROST_FILES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
FROST_BLEND = ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))  # weight of image, weight of frost
# Displacement, its smoothing, and jitter of the affine map, as shares of 244: the benchmark's own constant at 224 px.
ELASTIC_UNIT = 244
ELASTIC_SHARES = ((2.0, 0.7, 0.1), (2.0, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))


def image_seed(seed: int, index: int, name: str, severity: int) -> int:
    """Return the 32-bit seed of one image under one corruption: it depends on nothing but the four arguments.

    Args:
        seed: seed of the whole run, not negative.
        index: position of the image in its data set.
        name: corruption (or perturbation) name.
        severity: severity (or difficulty).
    """
    key = [seed, index, severity, *name.encode()]
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def corrupt(image: np.ndarray, name: str, severity: int, seed: int) -> np.ndarray:
    """Return `image` under one corruption of ImageNet-C.

    Args:
        image: `(H, W, 3)` uint8, RGB, both sides at least 32.
        name: one of `ALL_CORRUPTIONS`.
        severity: 1 to 5.
        seed: 32-bit seed; the same seed gives the same image, whatever numpy's global state is (which is kept).

    Returns:
        `(H, W, 3)` uint8.

    Raises:
        ValueError: A wrong shape or dtype, a side under 32, an unknown name or severity.
        ImportError: `imagecorruptions-imaug` isn't installed.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"corrupt takes an (H, W, 3) uint8 image; got shape {image.shape}, dtype {image.dtype}")
    if min(image.shape[:2]) < MIN_SIZE:
        raise ValueError(f"corruptions need images of {MIN_SIZE} px or more; got {image.shape[:2]}. Enlarge them first")
    if name not in ALL_CORRUPTIONS:
        raise ValueError(f"unknown corruption {name!r}; choose from {', '.join(ALL_CORRUPTIONS)}")
    if severity not in SEVERITIES:
        raise ValueError(f"severity must be one of {SEVERITIES}; got {severity}")
    if name == "frost":
        return frost(image, severity, np.random.RandomState(seed))
    if name == "elastic_transform":
        return elastic_transform(image, severity, np.random.RandomState(seed))
    function = import_package().corruption_dict[name]
    # These two draw from generators of their own, which numpy's global seed doesn't reach.
    own_seed = {"seed": seed} if name in ("glass_blur", "impulse_noise") else {}
    with _numpy_seed(seed), np.errstate(divide="ignore", invalid="ignore"):
        corrupted = np.asarray(function(Image.fromarray(image), severity, **own_seed))
    if corrupted.dtype != np.uint8:
        # On small images spatter may find no drop at all and divides 0 by 0: nothing has fallen on those.
        corrupted = np.where(np.isfinite(corrupted), corrupted, image).astype(np.uint8)
    return corrupted


def import_package() -> ModuleType:
    """Return the module `imagecorruptions`.

    Raises:
        ImportError: It is not installed; says the command that installs it.
    """
    try:
        import imagecorruptions
    except ImportError as error:
        raise ImportError(
            "corrupting images needs the package imagecorruptions-imaug: pip install 'timm-gcp[robustness]' "
            f"(the older package named imagecorruptions doesn't import any more): {error}"
        ) from error
    return imagecorruptions


@contextlib.contextmanager
def _numpy_seed(seed: int) -> Iterator[None]:
    """Seed numpy's global generator, which the package draws from, and put its state back afterwards."""
    state = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(state)


@lru_cache(maxsize=16)
def _frost_picture(file_name: str, scale: float) -> np.ndarray:
    import cv2

    import_package()
    with resources.as_file(resources.files("imagecorruptions") / "frost" / file_name) as path:
        picture = np.asarray(cv2.imread(str(path)))[..., ::-1]  # OpenCV reads blue first
    if scale == 1:
        return picture
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    return cv2.resize(picture, None, fx=scale, fy=scale, interpolation=method)


def frost(image: np.ndarray, severity: int, rng: np.random.RandomState) -> np.ndarray:
    """Blend the image with a random crop of a random image of frost.

    At 224 px the crop is at the image's own resolution, as the benchmark defines it; at other sizes the image is
    scaled with the image, so that the ice crystals keep their size relative to it.
    """
    height, width = image.shape[:2]
    file_name = FROST_FILES[rng.randint(len(FROST_FILES))]
    picture = _frost_picture(file_name, max(height, width) / REFERENCE_SIZE)
    top = rng.randint(0, picture.shape[0] - height)
    left = rng.randint(0, picture.shape[1] - width)
    keep, ice = FROST_BLEND[severity - 1]
    blend = keep * image + ice * picture[top : top + height, left : left + width]
    return np.clip(blend, 0, 255).astype(np.uint8)


@lru_cache(maxsize=32)
def _smoothing_matrix(size: int, sigma: float) -> np.ndarray:
    """Gaussian smoothing of a length-`size` signal as a matrix.

    The benchmark's widest kernel spans 1,025 samples; as a matrix it costs no more than a narrow one.
    """
    from scipy.ndimage import gaussian_filter1d

    return gaussian_filter1d(np.eye(size), sigma, axis=0, mode="reflect", truncate=3)


def elastic_transform(image: np.ndarray, severity: int, rng: np.random.RandomState) -> np.ndarray:
    """Jitter the image by a random affine map, then shift every pixel by a smooth random field.

    The benchmark's lengths are scaled with the image's shorter side and equal its own at 224 px.
    """
    import cv2
    from scipy.ndimage import map_coordinates

    height, width = image.shape[:2]
    unit = ELASTIC_UNIT * min(height, width) / REFERENCE_SIZE
    amplitude, sigma, jitter = (unit * share for share in ELASTIC_SHARES[severity - 1])
    middle = np.array([height // 2, width // 2], dtype=np.float32)
    arm = min(height, width) // 3
    directions = np.array([[1, 1], [1, -1], [-1, -1]])
    corners = (middle + arm * directions).astype(np.float32)
    moved = corners + rng.uniform(-jitter, jitter, size=corners.shape).astype(np.float32)
    matrix = cv2.getAffineTransform(corners, moved)
    unit_image = image.astype(np.float32) / 255
    pixels = cv2.warpAffine(unit_image, matrix, (width, height), borderMode=cv2.BORDER_REFLECT_101)

    rows, columns = _smoothing_matrix(height, sigma), _smoothing_matrix(width, sigma).T
    shift_x, shift_y = (
        (rows @ rng.uniform(-1, 1, size=(height, width)) @ columns * amplitude).astype(np.float32) for _ in range(2)
    )
    y, x = np.mgrid[:height, :width]
    place = np.stack([y + shift_y, x + shift_x])
    warped = [map_coordinates(pixels[..., c], place, order=1, mode="reflect") for c in range(3)]
    return (np.clip(np.stack(warped, axis=-1), 0, 1) * 255).astype(np.uint8)
