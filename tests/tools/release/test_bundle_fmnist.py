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
    }.items():
        run(tmp_path, name, epochs)
    assert [cell.name for cell in tool.finished_cells(tmp_path)] == [
        "shufflenet_v2_x1_0-gcp-adju-seed0-all",
        "shufflenet_v2_x1_0-gap-adju-seed0",
    ]
    with (tmp_path / "shufflenet_v2_x1_0-gcp-adju-lr0.125-seed0-all" / "summary.csv").open("a") as file:
        file.write("1,93\n")
    assert tool.finished_cells(tmp_path)[0].name == "shufflenet_v2_x1_0-gcp-adju-lr0.125-seed0-all"
    for name in ("shufflenet_v2_x1_0-gcp-adju-lr0.125-px96-seed0-all", "shufflenet_v2_x1_0-gap-adju-px96-seed0-all"):
        run(tmp_path, name, 2)
        assert name in [cell.name for cell in tool.finished_cells(tmp_path)[:2]]
