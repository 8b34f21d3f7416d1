"""Which runs of the Fashion-MNIST study become weights of the package."""

from __future__ import annotations

from pathlib import Path

import bundle_fmnist as tool


def run(folder: Path, name: str, epochs: int) -> None:
    (folder / name).mkdir()
    (folder / name / "args.yaml").write_text("epochs: 2\n")
    (folder / name / "summary.csv").write_text("epoch,eval_top1\n" + "".join(f"{k},90\n" for k in range(epochs)))


def test_the_run_on_all_images_is_taken_where_it_is_complete(tmp_path):
    """And GCP's own rate before the recipe's, larger images before either."""
    assert tool.finished_cells(tmp_path) == []
    for name, epochs in {
        "shufflenet_v2_x1_0-gap-adju-seed0": 2,
        "shufflenet_v2_x1_0-gap-adju-seed0-all": 1,
        "shufflenet_v2_x1_0-gcp-adju-seed0": 2,
        "shufflenet_v2_x1_0-gcp-adju-seed0-all": 2,
        "shufflenet_v2_x1_0-gcp-adju-lr0.125-seed0-all": 1,
        "mobilenetv2_100-gcp-adju-seed0": 2,
    }.items():
        run(tmp_path, name, epochs)
    assert [cell.name for cell in tool.finished_cells(tmp_path)] == [
        "shufflenet_v2_x1_0-gcp-adju-seed0-all",
        "shufflenet_v2_x1_0-gap-adju-seed0",
        "mobilenetv2_100-gcp-adju-seed0",
    ]
    with (tmp_path / "shufflenet_v2_x1_0-gcp-adju-lr0.125-seed0-all" / "summary.csv").open("a") as file:
        file.write("1,93\n")
    assert tool.finished_cells(tmp_path)[0].name == "shufflenet_v2_x1_0-gcp-adju-lr0.125-seed0-all"
    for name in ("shufflenet_v2_x1_0-gcp-adju-lr0.125-px96-seed0-all", "shufflenet_v2_x1_0-gap-adju-px96-seed0-all"):
        run(tmp_path, name, 2)
        assert name in [cell.name for cell in tool.finished_cells(tmp_path)[:2]]


def test_what_takes_too_much_is_left_out(tmp_path, monkeypatch):
    """The limit holds for all weights together; those that are replaced don't count."""
    monkeypatch.setattr(tool, "LIMIT", 3e6)
    new = tmp_path / "new.safetensors"
    new.write_bytes(bytes(2_000_000))
    bundled = tmp_path / "bundled"
    assert tool.left_out(new, "b.tag", bundled) == ""
    for name in ("a.tag", "b.tag"):
        (bundled / name).mkdir(parents=True)
        (bundled / name / "model.safetensors").write_bytes(bytes(1_000_000))
    assert tool.left_out(new, "b.tag", bundled) == ""
    assert tool.left_out(new, "c.tag", bundled) == "# c.tag is left out: 2.0 MB beside 2.0 MB of others, 3 at most"
