"""`timm-gcp data fashion-mnist`: lay a data set out for timm's readers, checked by checksum."""

from __future__ import annotations

import argparse

from timm_gcp.datasets.fashion_mnist import (
    FASHION_MNIST_CLASSES,
    FASHION_MNIST_FILES,
    FASHION_MNIST_MEAN,
    FASHION_MNIST_STD,
    prepare_fashion_mnist,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `timm-gcp data`."""
    parser.add_argument("name", choices=["fashion-mnist"], help="data set")
    parser.add_argument(
        "--root", required=True, metavar="DIR", help="folder to lay it out in, the --data-dir of training"
    )
    parser.add_argument("--source", metavar="DIR", help="folder of the four .gz files, where they are at hand")


def main(args: argparse.Namespace) -> int:
    """Prepare the data set and print how to use it."""
    folder = prepare_fashion_mnist(args.root, args.source)
    print(f"{len(FASHION_MNIST_FILES)} files in {folder}, checksums right.")
    print(
        f"Use it with: --dataset torch/fashion_mnist --data-dir {args.root} --in-chans 1 --num-classes "
        f"{len(FASHION_MNIST_CLASSES)} --mean {FASHION_MNIST_MEAN} --std {FASHION_MNIST_STD}"
    )
    return 0
