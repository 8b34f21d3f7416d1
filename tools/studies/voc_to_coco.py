"""A detection set in Pascal VOC's layout -> COCO's, as `timm-gcp detect` reads it.

    python tools/studies/voc_to_coco.py --data-dir BCCD --output DATA --train trainval --val test

BCCD is a folder with Annotations/NAME.xml, JPEGImages/NAME.jpg and ImageSets/Main/SPLIT.txt (a name a line). DATA
receives annotations/instances_{train,val}.json and the images in train/ and val/.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

from coco_split import CocoSplit
from PIL import Image
from tqdm import tqdm

_SUFFIXES = (".jpg", ".jpeg", ".png")


def read_names(data_dir: Path, split: str) -> list[str]:
    """Names of a split's images.

    Raises:
        FileNotFoundError: No such split.
    """
    path = data_dir / "ImageSets" / "Main" / f"{split}.txt"
    if not path.is_file():
        raise FileNotFoundError(f"no {path}: give a folder in Pascal VOC's layout and one of its splits.")
    return [line.split()[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def read_boxes(path: Path) -> list[tuple[str, list[float]]]:
    """Classes and boxes of an annotation file: left, top, width, height in pixels.

    VOC counts pixels from 1 and includes the last: columns 3 to 5 are the pixels from 2 to 5 (exclusive) here.

    Raises:
        FileNotFoundError: No such file.
        ValueError: It can't be read, or a box lacks a side.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no annotation {path}.")
    try:
        tree = ElementTree.fromstring(path.read_text(encoding="utf-8"))
        found = []
        for item in tree.iter("object"):
            sides = {key: float(item.find(f"bndbox/{key}").text) for key in ("xmin", "ymin", "xmax", "ymax")}
            left, top = sides["xmin"] - 1, sides["ymin"] - 1
            found.append((item.find("name").text, [left, top, sides["xmax"] - left, sides["ymax"] - top]))
    except (ElementTree.ParseError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no annotation in Pascal VOC's form: {error}.") from error
    return found


def convert(data_dir: Path, output: Path, splits: dict[str, str]) -> None:
    """Write the set: from the name of each new split to that of VOC's.

    Raises:
        FileNotFoundError: A split, an annotation or an image is missing.
        ValueError: An annotation can't be read.
    """
    names = {new: read_names(data_dir, old) for new, old in splits.items()}
    boxes = {name: read_boxes(data_dir / "Annotations" / f"{name}.xml") for part in names.values() for name in part}
    classes = sorted({label for found in boxes.values() for label, _ in found})
    for split, members in names.items():
        made = CocoSplit(output, split, classes)
        made.folder.mkdir(parents=True, exist_ok=True)
        for name in tqdm(members, desc=split, disable=None):
            source = _image(data_dir, name)
            with Image.open(source) as image:
                made.add_image(source.name, *image.size)
            shutil.copyfile(source, made.folder / source.name)
            for label, box in boxes[name]:
                made.add_object(classes.index(label), {"bbox": box, "area": box[2] * box[3]})
        made.write()


def _image(data_dir: Path, name: str) -> Path:
    for suffix in _SUFFIXES:
        path = data_dir / "JPEGImages" / f"{name}{suffix}"
        if path.is_file():
            return path
    raise FileNotFoundError(f"no image {name} in {data_dir / 'JPEGImages'} ({', '.join(_SUFFIXES)}).")


def main() -> int:
    """Parse the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="folder in Pascal VOC's layout")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to write to")
    parser.add_argument("--train", default="trainval", metavar="SPLIT", help="split to train on (default: trainval)")
    parser.add_argument("--val", default="test", metavar="SPLIT", help="split to evaluate on (default: test)")
    args = parser.parse_args()
    try:
        convert(args.data_dir, args.output, {"train": args.train, "val": args.val})
    except (ValueError, FileNotFoundError) as error:
        print(f"voc_to_coco.py: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
