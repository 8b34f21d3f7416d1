"""scikit-learn's bundled digits (1,797 scans of 8×8 pixels) as an image folder."""

from __future__ import annotations

import shutil
from pathlib import Path

FOLDS = 5  # one fifth is held out


def write_digits(folder: Path) -> Path:
    """Write the digits as an image folder: every fifth scan of each class to `validation`, the others to `train`."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    partial = folder.with_name(folder.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    seen: dict[int, int] = {}
    for index, (pixels, label) in enumerate(zip(digits.images, digits.target.tolist(), strict=True)):
        seen[label] = seen.get(label, 0) + 1
        split = "train" if seen[label] % FOLDS else "validation"
        path = partial / split / str(label) / f"{index:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * (255 / 16)).round().astype("uint8")).save(path)  # 17 grey levels
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return folder
