"""The notebook docs/tour.ipynb: run from its first cell to its last, in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

TOUR = Path(__file__).resolve().parents[2] / "docs" / "tour.ipynb"


def test_the_tour_runs(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(TOUR, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", {}) for output in shown) == 2
    printed = "".join(output.get("text", "") for output in shown)
    assert "(1, 10) GlobalCovPool2d D = 256" in printed
    assert "epoch 4/4" in printed and "onnxruntime's logits are torch's to" in printed
    assert "ImageNet-C, in part" in printed


def test_no_output_names_a_machine():
    text = TOUR.read_text(encoding="utf-8")
    assert "/tmp/" not in text and "/home/" not in text and "/root/" not in text and "/work/" not in text
