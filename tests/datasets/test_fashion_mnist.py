"""Fashion-MNIST's layout, from a folder of .gz files, Debian's folder or a download; checksums."""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
import torchvision
from timm.data import create_dataset

from timm_gcp import cli
from timm_gcp.datasets import fashion_mnist

NAMES = list(fashion_mnist.FASHION_MNIST_FILES)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype("uint8").tobytes()


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """A small stand-in for the set, in a folder of .gz files, with its own checksums."""
    generator = np.random.default_rng(0)
    folder = tmp_path / "source"
    folder.mkdir()
    digests = {}
    for name in NAMES:
        count = 20 if name.startswith("train") else 10
        array = generator.integers(0, 255, (count, 28, 28)) if "images" in name else np.arange(count) % 10
        content = idx(array)
        digests[name] = hashlib.sha256(content).hexdigest()
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    monkeypatch.setattr(fashion_mnist, "FASHION_MNIST_FILES", digests)
    monkeypatch.setattr(fashion_mnist, "DEBIAN_FOLDER", tmp_path / "no-debian")
    return folder


def test_layout_that_timm_reads(packed, tmp_path, capsys):
    root = tmp_path / "root"
    assert cli.main(["data", "fashion-mnist", "--root", str(root), "--source", str(packed)]) == 0
    out = capsys.readouterr().out
    assert "checksums right" in out and f"--data-dir {root} --in-chans 1 --num-classes 10" in out
    train = create_dataset("torch/fashion_mnist", root=str(root), split="train")
    test = create_dataset("torch/fashion_mnist", root=str(root), split="validation")
    assert (len(train), len(test)) == (20, 10)
    image, label = train[3]
    assert image.mode == "L" and image.size == (28, 28) and label == 3


def test_debian_folder_is_used_without_being_named(packed, tmp_path, monkeypatch):
    monkeypatch.setattr(fashion_mnist, "DEBIAN_FOLDER", packed)
    raw = fashion_mnist.prepare_fashion_mnist(tmp_path / "root")
    assert sorted(path.name for path in raw.iterdir()) == sorted(NAMES)


def test_what_is_there_is_left_alone(packed, tmp_path):
    raw = fashion_mnist.prepare_fashion_mnist(tmp_path / "root", packed)
    before = {path: path.stat().st_mtime_ns for path in raw.iterdir()}
    assert fashion_mnist.prepare_fashion_mnist(tmp_path / "root", tmp_path / "nowhere") == raw
    assert {path: path.stat().st_mtime_ns for path in raw.iterdir()} == before


def test_missing_source_file(packed, tmp_path):
    (packed / f"{NAMES[2]}.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"t10k-images.*is missing\. Install Debian's package"):
        fashion_mnist.prepare_fashion_mnist(tmp_path / "root", packed)


def test_damaged_file(packed, tmp_path):
    (packed / f"{NAMES[0]}.gz").write_bytes(gzip.compress(b"something else"))
    with pytest.raises(RuntimeError, match=r"train-images-idx3-ubyte' is damaged \(sha256 .*delete it"):
        fashion_mnist.prepare_fashion_mnist(tmp_path / "root", packed)


@pytest.mark.parametrize("cut", [slice(None, 60), slice(5, None)], ids=["truncated", "not gzip"])
def test_broken_gzip_leaves_nothing_half_written(packed, tmp_path, cut):
    path = packed / f"{NAMES[0]}.gz"
    path.write_bytes(path.read_bytes()[cut])
    with pytest.raises(RuntimeError, match="is not a complete gzip file"):
        fashion_mnist.prepare_fashion_mnist(tmp_path / "root", packed)
    assert list((tmp_path / "root" / "FashionMNIST" / "raw").iterdir()) == []


def test_download(packed, tmp_path, monkeypatch):
    def fetch(root, download):
        raw = Path(root) / "FashionMNIST" / "raw"
        for name in NAMES:
            (raw / name).write_bytes(gzip.decompress((packed / f"{name}.gz").read_bytes()))

    monkeypatch.setattr(torchvision.datasets, "FashionMNIST", fetch)
    assert fashion_mnist.prepare_fashion_mnist(tmp_path / "root").is_dir()

    def fail(root, download):
        raise RuntimeError("no route to host")

    monkeypatch.setattr(torchvision.datasets, "FashionMNIST", fail)
    with pytest.raises(RuntimeError, match=r"could not be downloaded \(no route to host\)\. Install Debian's package"):
        fashion_mnist.prepare_fashion_mnist(tmp_path / "other")


@pytest.mark.skipif(
    not Path("/usr/share/datasets/fashion-mnist").is_dir(), reason="needs Debian's dataset-fashion-mnist"
)
def test_the_real_set(tmp_path):
    fashion_mnist.prepare_fashion_mnist(tmp_path)
    sets = [torchvision.datasets.FashionMNIST(str(tmp_path), train=train) for train in (True, False)]
    assert [len(part) for part in sets] == [60000, 10000]
    assert tuple(sets[0].classes) == fashion_mnist.FASHION_MNIST_CLASSES
    pixels = sets[0].data.double() / 255
    assert pixels.mean().item() == pytest.approx(fashion_mnist.FASHION_MNIST_MEAN, abs=1e-4)
    assert pixels.std().item() == pytest.approx(fashion_mnist.FASHION_MNIST_STD, abs=1e-4)
