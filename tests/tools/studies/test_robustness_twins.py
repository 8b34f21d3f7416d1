"""Both benchmarks on the fly for two tiny models and a few images, scored against the first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm
import torch

pytest.importorskip("imagecorruptions", reason="the robustness extra isn't installed")

from robustness_sets import write_images

from timm_gcp.robustness import figures

TOOLS = Path(__file__).parents[3] / "tools" / "studies"
pytestmark = pytest.mark.skipif(not TOOLS.is_dir(), reason="tools/ comes with a checkout, not with the wheel")


def test_scores_of_both_benchmarks_against_the_first_model(run_tool, tmp_path: Path, monkeypatch, capsys) -> None:
    for name in ("draw_c", "draw_p"):  # tested with the command itself
        monkeypatch.setattr(figures, name, lambda results, path: None)
    write_images(tmp_path / "val", per_class=1, seed=0, size=48)
    weights = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        weights.append(tmp_path / f"{seed}.pth")
        torch.save({"state_dict": timm.create_model("test_resnet", num_classes=2).state_dict()}, weights[-1])
    out = tmp_path / "out"
    words = ["--data-dir", tmp_path / "val", "--output", out, "--label", "GAP", "GCP", "--clips", 1]
    words += ["--model", "test_resnet", "test_resnet", "--checkpoint", *weights, "--num-classes", 2]
    words += ["--img-size", 32, "--device", "cpu", "--workers", 0]
    assert run_tool("robustness_twins", *words) == 0
    page = (out / "robustness.md").read_text()
    contents = {benchmark: json.loads((out / f"robustness_{benchmark}.json").read_text()) for benchmark in "cp"}
    assert contents["c"]["models"][0]["scores"]["mCE"] == 100
    for benchmark, key in (("c", "mCE"), ("p", "mT5D")):
        score = contents[benchmark]["models"][1]["scores"].get(key)
        assert f"- GCP, {key}: {'not defined' if score is None else f'{score:.1f}'}" in page
    assert "saturate" in page  # the extra corruptions too
    assert f"{2 * (1 + 19 * 5)} images in" in page
    assert f"{9 * 31 + 41} images in" in page  # one clip a perturbation
    assert "written: " in capsys.readouterr().out
