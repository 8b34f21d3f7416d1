"""The tables of docs/optimization.md are what its tool prints from the CSV files, and what the studies share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fmnist_study as study
import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOL = "tools/studies/second_order_fmnist.py"


def test_tables_are_those_of_the_csv_files():
    content = (ROOT / "docs" / "optimization.md").read_text(encoding="utf-8")
    generated = content.split(f"<!-- begin python {TOOL} -->\n")[1].split(f"<!-- end python {TOOL} -->")[0]
    command = [sys.executable, str(ROOT / TOOL), "--tables"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == generated


def test_filling_a_page_keeps_the_rest(tmp_path):
    page = tmp_path / "a.md"
    page.write_text("before\n<!-- begin x -->\nold\n<!-- end x -->\nafter\n")
    study.fill(page, "x", "new\n")
    assert page.read_text() == "before\n<!-- begin x -->\nnew\n<!-- end x -->\nafter\n"
    with pytest.raises(ValueError, match="needs the lines <!-- begin y -->"):
        study.fill(page, "y", "new\n")


def test_smaller_set_is_the_first_images(tmp_path, monkeypatch):
    raw = tmp_path / "raw"
    raw.mkdir()
    for split in ("train", "t10k"):
        images, labels = bytes(range(256)) * 784, bytes(range(256))
        (raw / f"{split}-images-idx3-ubyte").write_bytes(
            bytes([0, 0, 8, 3, 0, 0, 1, 0, 0, 0, 0, 28, 0, 0, 0, 28]) + images
        )
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 1, 0]) + labels)
    monkeypatch.setattr(study, "prepare_fashion_mnist", lambda root: raw)
    torchvision = pytest.importorskip("torchvision")
    folder = study.smaller_set("unused", tmp_path, 10, 3)
    for train, count in ((True, 10), (False, 3)):
        images = torchvision.datasets.FashionMNIST(str(folder), train=train)
        assert len(images) == count
        assert images.targets.tolist() == list(range(count))
        assert images.data.flatten()[:256].tolist() == list(range(256))
    with pytest.raises(ValueError, match="train-images-idx3-ubyte has 256 items, not 300"):
        study.smaller_set("unused", tmp_path, 300, 3)
