"""Measure how far each corruption is from the benchmark's own code under the same seed.

    python tools/studies/compare_corruptions.py CHECKOUT [--images DIR] [--seeds 2] [--output FILE.md]

CHECKOUT is a clone of https://github.com/hendrycks/robustness. Its `corruptions.py` was written for older releases of
numpy, scipy and scikit-image; the few names that are gone are put back for the time of the comparison. Its motion blur
is ImageMagick's, called through the package Wand: without it motion blur and snow aren't compared, as the table says.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image
from tqdm import tqdm

from timm_gcp.robustness.corruptions import ALL_CORRUPTIONS, REFERENCE_SIZE, SEVERITIES, corrupt, import_package
from timm_gcp.robustness.perturbations import directional_blur

SAMPLE_PICTURES = ("astronaut", "chelsea", "coffee")  # come with scikit-image
BLURS = ((10, 3.0), (15, 8.0), (20, 15.0))  # radius and sigma, as motion blur uses them


class MissingImageMagick(RuntimeError):
    """Raised where the benchmark's code reaches for ImageMagick and there is none."""


def read_images(folder: Path | None) -> list[np.ndarray]:
    """Return images of 224 px, shorter side first brought to 256, as the benchmark prepares them."""
    if folder is None:
        import skimage.data

        pictures = [Image.fromarray(getattr(skimage.data, name)()) for name in SAMPLE_PICTURES]
    else:
        files = sorted(p for p in folder.iterdir() if p.suffix.lower() in {".jpg", ".jpeg", ".png"})
        pictures = [Image.open(path).convert("RGB") for path in files]
    if not pictures:
        raise FileNotFoundError(f"no .jpg or .png files in {folder}")
    from torchvision.transforms import functional as F

    resized = (F.resize(picture, 256) for picture in pictures)
    return [np.asarray(F.center_crop(picture, [REFERENCE_SIZE, REFERENCE_SIZE])) for picture in resized]


def wand_modules() -> dict[str, types.ModuleType]:
    """Return stand-ins for Wand that raise `MissingImageMagick`; empty where the real one works."""
    try:
        importlib.import_module("wand.image")  # fails where the package or ImageMagick's library is missing
        return {}
    except ImportError:

        class NoImage:
            def __init__(self, *args: object, **kwargs: object) -> None:
                raise MissingImageMagick("needs ImageMagick's library and the package Wand")

        package, image, api, color = (types.ModuleType(f"wand{tail}") for tail in ("", ".image", ".api", ".color"))
        image.Image = NoImage  # type: ignore[attr-defined]
        api.library = mock.MagicMock()  # type: ignore[attr-defined]
        package.image, package.api, package.color = image, api, color  # type: ignore[attr-defined]
        return {"wand": package, "wand.image": image, "wand.api": api, "wand.color": color}


@contextlib.contextmanager
def benchmark_code(checkout: Path) -> Iterator[types.ModuleType]:
    """Import the benchmark's corruptions with the names that newer libraries dropped put back."""
    import scipy.ndimage
    import skimage.filters
    import skimage.util

    source = checkout / "ImageNet-C" / "imagenet_c" / "imagenet_c" / "corruptions.py"
    if not source.is_file():
        raise FileNotFoundError(f"{source} isn't there: give the path of a clone of hendrycks/robustness")
    resources = types.ModuleType("pkg_resources")
    resources.resource_filename = lambda _, name: str(source.parent / name)  # type: ignore[attr-defined]
    interpolation = types.ModuleType("scipy.ndimage.interpolation")
    interpolation.map_coordinates = scipy.ndimage.map_coordinates  # type: ignore[attr-defined]

    def gaussian(image: np.ndarray, sigma: float = 1, multichannel: bool = False, **options: Any) -> np.ndarray:
        return skimage.filters.gaussian(image, sigma, channel_axis=-1 if multichannel else None, **options)

    modules = {"pkg_resources": resources, "scipy.ndimage.interpolation": interpolation} | wand_modules()
    spec = importlib.util.spec_from_file_location("benchmark_corruptions", source)
    if spec is None or spec.loader is None:
        raise ImportError(f"can't import {source}")
    module = importlib.util.module_from_spec(spec)
    with (
        mock.patch.dict(sys.modules, modules),
        mock.patch.object(np, "float_", np.float64, create=True),
        mock.patch.object(np, "fromstring", np.frombuffer),
    ):
        spec.loader.exec_module(module)
        module.gaussian = gaussian  # type: ignore[attr-defined]
        yield module


def run_benchmark(module: types.ModuleType, image: np.ndarray, name: str, severity: int, seed: int) -> np.ndarray:
    """Return the benchmark's own image; scikit-image's salt and pepper is given the seed that it would not take."""
    import skimage.util

    def seeded_noise(picture: np.ndarray, **options: Any) -> np.ndarray:
        return random_noise(picture, rng=seed, **options)

    random_noise = skimage.util.random_noise
    np.random.seed(seed)
    with mock.patch.object(skimage.util, "random_noise", seeded_noise):
        return np.uint8(getattr(module, name)(Image.fromarray(image), severity))  # type: ignore[no-any-return]


def run_package(image: np.ndarray, name: str, severity: int, seed: int) -> np.ndarray:
    """Return the corruption package's image, also for those that timm_gcp writes itself."""
    np.random.seed(seed)
    own_seed = {"seed": seed} if name in ("glass_blur", "impulse_noise") else {}
    return import_package().corrupt(image, severity=severity, corruption_name=name, **own_seed)


def distance(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[float, int, float]:
    """Return mean and greatest difference in grey levels, and the share of values more than one level apart."""
    gaps = np.stack([np.abs(a.astype(int) - b.astype(int)) for a, b in pairs])
    return float(gaps.mean()), int(gaps.max()), float((gaps > 1).mean())


def compare_blur(module: types.ModuleType, images: list[np.ndarray], seeds: int) -> tuple[float, int, float]:
    """Compare `directional_blur`, which the perturbation sequences use, with ImageMagick's motion blur."""
    import io

    pairs = []
    for image in images:
        blob = io.BytesIO()
        Image.fromarray(image).save(blob, format="PNG")
        for angle in np.random.RandomState(0).uniform(-180, 180, size=seeds):
            for radius, sigma in BLURS:
                moving = module.MotionImage(blob=blob.getvalue())
                moving.motion_blur(radius=radius, sigma=sigma, angle=angle)
                theirs = np.asarray(Image.open(io.BytesIO(moving.make_blob())).convert("RGB"))
                ours = directional_blur(image, radius, sigma, angle)
                pairs.append((ours, theirs))
    return distance(pairs)


def cells(values: tuple[float, int, float]) -> str:
    """Format one distance as three table cells."""
    return f"{values[0]:.3f} | {values[1]} | {100 * values[2]:.2f}%"


def compare(checkout: Path, images: list[np.ndarray], seeds: int) -> str:
    """Return the table, Markdown, one row per corruption over all images, severities and seeds."""
    lines = [
        "| corruption | mean | max | over 1 | package: mean | max | over 1 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    with benchmark_code(checkout) as module:
        jobs: list[tuple[str, Callable[[], str]]] = []

        def row(name: str) -> str:
            mine, package = [], []
            for image in images:
                for severity in SEVERITIES:
                    for seed in range(seeds):
                        theirs = run_benchmark(module, image, name, severity, seed)
                        mine.append((corrupt(image, name, severity, seed), theirs))
                        package.append((run_package(image, name, severity, seed), theirs))
            return f"{cells(distance(mine))} | {cells(distance(package))}"

        jobs += [(name, lambda name=name: row(name)) for name in ALL_CORRUPTIONS]  # type: ignore[misc]
        jobs += [("motion blur of the sequences", lambda: cells(compare_blur(module, images, seeds)) + " | | |")]
        for name, job in tqdm(jobs, desc="corruptions", file=sys.stderr):
            try:
                lines.append(f"| {name} | {job()} |")
            except MissingImageMagick as error:
                lines.append(f"| {name} | not compared: {error} | | | | | |")
    return "\n".join(lines)


def main() -> int:
    """Parse the arguments, print the table, write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="clone of hendrycks/robustness")
    parser.add_argument("--images", type=Path, help="folder of pictures (three of scikit-image's own otherwise)")
    parser.add_argument("--seeds", type=int, default=2, help="seeds per image and severity")
    parser.add_argument("--output", type=Path, help="Markdown file to write")
    args = parser.parse_args()
    table = compare(args.checkout, read_images(args.images), args.seeds)
    print(table)
    if args.output:
        with tempfile.NamedTemporaryFile("w", dir=args.output.parent, delete=False) as file:
            file.write(table + "\n")
        os.replace(file.name, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
