"""The Fashion-MNIST study: its plan, its settings, its tables, and the whole of it on a few images."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import fmnist_tables
import pytest
import reproduce_fmnist
import torch
from timm.optim import create_optimizer_v2, optimizer_kwargs

from timm_gcp import train_hook
from timm_gcp.common.recipe import find_recipe, read_recipe
from timm_gcp.train.build import build_model, build_scheduler
from timm_gcp.train.curves import RunCurve
from timm_gcp.train.in_memory import TensorData
from timm_gcp.train.options import resolve_args

ROOT = Path(__file__).parents[3]


@pytest.fixture
def tool():
    return reproduce_fmnist, fmnist_tables


def test_plan(tool):
    cells = tool[0].plan(tool[0].PARTS, [0, 1, 2], ["resnet18"])
    names = [cell.name for cell in cells]
    assert len(names) == len(set(names)) == 9 + 2 + 6 + 3 + 6 + 12 + 2 + 5 + 2
    kinds = [name.partition("-")[2] for name in names[:3]]
    assert kinds == ["gap-adju-seed0", "gcp-adju-seed0", "gcp-adju-lr0.125-seed0"]
    assert {name.split("-")[-2] for name in names[3:7]} == {"fast", "norm"}
    assert [name.split("-")[-2] for name in names[-21:-9]] == ["adju"] * 4 + ["fast"] * 4 + ["norm"] * 4


def test_other_rates(tool):
    """Half, twice and four times the recipe's, with stronger crops; both twins alike."""
    cells = tool[0].plan(["rates"], [0], [])
    assert [cell.name.partition("-fast-crop0.7-")[2] for cell in cells] == [
        f"lr{rate}-seed0" for rate in ("0.03125", "0.125", "0.25") for _ in range(2)
    ]
    given = [resolve_args(cell.recipe, cell.settings(read_recipe(find_recipe(cell.recipe)))) for cell in cells]
    assert [args.lr for args in given] == [0.03125] * 2 + [0.125] * 2 + [0.25] * 2
    assert {tuple(args.scale) for args in given} == {(0.7, 1.0)}


def test_stronger_crops(tool):
    """The six cells again and the twins on all images, with a wider range of crops than the recipes'."""
    cells = tool[0].plan(["crops", "dims"], [0], [], subset=True)
    assert [cell.name.replace("shufflenet_v2_x1_0-", "").replace("-crop0.7-seed0", "") for cell in cells] == [
        *("gap-adju", "gcp-adju", "gap-fast", "gcp-fast", "gap-norm", "gcp-norm", "gap-adju-all", "gcp-adju-all"),
        *("mobilenetv2_100-gap-adju", "mobilenetv2_100-gcp-adju"),
        *("gcp-d32-adju", "gcp-d64-adju", "gcp-d128-adju"),
    ]
    for cell in cells:
        recipe = read_recipe(find_recipe(cell.recipe))
        args = resolve_args(cell.recipe, cell.settings(recipe))
        assert tuple(args.scale) == (0.7, 1.0) and recipe["scale"] == [0.9, 1.0]
        assert args.lr == (0.06 if cell.backbone == "mobilenetv2_100" else recipe["lr"])


def test_more_weight_decay(tool):
    """The twins on all images, GCP from its own rate, as in the package's weights."""
    cells = tool[0].plan(["decay"], [0], [], subset=True)
    assert [cell.name.partition("-")[2] for cell in cells] == [
        "gap-adju-wd0.0005-seed0-all",
        "gcp-adju-lr0.125-wd0.0005-seed0-all",
    ]
    given = [resolve_args(cell.recipe, cell.settings(read_recipe(find_recipe(cell.recipe)))) for cell in cells]
    assert [(args.lr, args.weight_decay) for args in given] == [(0.0625, 5e-4), (0.125, 5e-4)]


def test_larger_pictures(tool):
    """The same twins, 6x6 positions."""
    cells = tool[0].plan(["resolution"], [0], [], subset=True)
    assert [cell.name.partition("-")[2] for cell in cells] == [
        "gap-adju-px96-seed0-all",
        "gcp-adju-lr0.125-px96-seed0-all",
    ]
    for cell, rate in zip(cells, (0.0625, 0.125), strict=True):
        args = resolve_args(cell.recipe, cell.settings(read_recipe(find_recipe(cell.recipe))))
        assert (args.lr, args.img_size) == (rate, 96)
        with torch.device("meta"):
            model = build_model(args, torch.device("meta"))
        size = model.forward_features(torch.zeros(1, 1, 96, 96, device="meta")).shape[-2:]
        assert size == (6, 6)


def test_one_change_at_a_time(tool):
    """Each run differs from LR_adju's by what its row says, and by nothing else."""
    cells = tool[0].plan(["causes"], [0], [])
    assert [cell.name.partition("-")[2].removesuffix("-seed0") for cell in cells] == [
        *("gcp-adju-head4", "gcp-adju-bn0.01", "gcp-adju-eigh", "gap-adju-px80", "gcp-adju-px80"),
    ]
    plain = vars(resolve_args("fmnist_adju", {}))
    changed = []
    models = {}
    for cell in cells:
        args = resolve_args(cell.recipe, cell.settings(read_recipe(find_recipe(cell.recipe))))
        models[cell.variant] = args, build_model(args, torch.device("cpu"))
        changed.append({key for key, value in vars(args).items() if value != plain[key]} - {"seed", "model"})
    assert changed == [
        {"lr", "layer_decay", "layer_decay_min_scale"}, {"bn_momentum"}, {"model_kwargs"}, {"img_size"}, {"img_size"},
    ]  # fmt: skip
    args, model = models["head4"]
    optimizer = create_optimizer_v2(model, **optimizer_kwargs(cfg=args), **args.opt_kwargs)
    train_hook.install()
    build_scheduler(args, optimizer, 156)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert all(
        rates[id(p)] == pytest.approx(0.25 if name.startswith(("fc.", "global_pool.")) else 0.0625)
        for name, p in model.named_parameters()
    )
    assert models["eigh"][1].global_pool.normalization == "eigh"
    assert models["px80"][1].forward_features(torch.zeros(1, 1, 80, 80)).shape[-2:] == (5, 5)


def test_the_shipped_weights_take_all_images(tool):
    names = [cell.name for cell in tool[0].plan(["weights", "schedules"], [0], [], subset=True)]
    assert len(names) == 3 + 6 and names[1] == "shufflenet_v2_x1_0-gcp-adju-seed0-all" and names[4] == names[1][:-4]
    assert names[2] == "shufflenet_v2_x1_0-gcp-adju-lr0.125-seed0-all"


def test_every_cell_is_a_recipe_and_twins_share_their_map(tool):
    cells = tool[0].plan(["schedules", "dims", "backbones"], [0], list(tool[0].BACKBONES))
    shapes: dict[str, set] = {}
    for cell in cells:
        recipe = read_recipe(find_recipe(cell.recipe))
        args = resolve_args(cell.recipe, cell.settings(recipe, batch_size=recipe["batch_size"] * 2))
        assert args.lr == pytest.approx(2 * cell.settings(recipe).get("lr", recipe["lr"]))
        with torch.device("meta"):
            model = build_model(args, torch.device("meta"))
        features = model.forward_features(torch.zeros(1, 1, args.img_size, args.img_size, device="meta"))
        shapes.setdefault(cell.backbone, set()).add(tuple(features.shape))
        pooling = type(model.global_pool).__name__
        assert (pooling == "GlobalCovPool2d") == (cell.pooling == "GCP")
        assert cell.pooling == "GAP" or model.global_pool.dim == cell.dim
    assert all(len(found) == 1 and next(iter(found))[-2:] == (4, 4) for found in shapes.values())


def curve(*top1: float) -> RunCurve:
    return RunCurve("x", tuple(range(len(top1))), top1, top1)


def test_tables_by_hand(tool, tmp_path):
    reproduce, tables = tool
    cell = reproduce.Cell
    curves = {
        cell("shufflenet_v2_x1_0", "GAP", "norm", 0): curve(80.0, 90.0, 92.0),
        cell("shufflenet_v2_x1_0", "GAP", "adju", 0): curve(85.0, 91.0),
        cell("shufflenet_v2_x1_0", "GAP", "adju", 1): curve(85.0, 91.5),
        cell("shufflenet_v2_x1_0", "GCP", "adju", 0): curve(91.0, 93.0),
        cell("shufflenet_v2_x1_0", "GCP", "adju", 1): curve(86.0, 91.2),
        tool[0].plan(["dims"], [0], [])[0]: curve(88.0, 90.5),
    }
    assert tables.weights_table(curves).splitlines()[2:] == [
        "| GAP, seed 0 | 85.00 | 91.00 |",
        "| GAP, seed 1 | 85.00 | 91.50 |",
        "| GCP, seed 0 | 91.00 | 93.00 |",
        "| GCP, seed 1 | 86.00 | 91.20 |",
    ]
    whole = {
        **curves,
        cell("shufflenet_v2_x1_0", "GCP", "adju", 0, all_images=True): curve(92.0, 94.0),
        cell("shufflenet_v2_x1_0", "GCP", "adju", 0, all_images=True, variant="lr0.125"): curve(91.0, 95.0),
    }
    assert tables.weights_table(whole).splitlines()[2:] == [
        "| GCP, seed 0 | 92.00 | 94.00 |",
        "| GCP, rate 0.125, seed 0 | 91.00 | 95.00 |",
    ]
    assert tables.schedules_table(whole) == tables.schedules_table(curves)
    large = {cell("shufflenet_v2_x1_0", "GCP", "adju", 0, all_images=True, variant="lr0.125-px96"): curve(92.0, 94.5)}
    assert tables.resolution_table({**whole, **large}).splitlines()[2:] == [
        "| GCP, 96 px, rate 0.125, seed 0 | 92.00 | 94.50 |",
    ]
    lines = tables.schedules_table(curves).splitlines()
    assert lines[2].startswith("| LR_norm | 3 | 92.00 | - | - | - | - |")
    assert lines[4] == (
        "| LR_adju | 2 | 91.25 (91.00 to 91.50, 2 seeds) | 92.10 (91.20 to 93.00, 2 seeds) "
        "| +0.85 (-0.30 to +2.00) | 1, never | 2 |"
    )
    assert "| 32 | 528 | 90.50 |" in tables.dims_table(curves) and "| 64 | 2,080 | - |" in tables.dims_table(curves)
    others = {cell("mobilenetv2_100", pool, "adju", 0): curve(top1) for pool, top1 in (("GAP", 88.0), ("GCP", 87.5))}
    lines = tables.backbones_table({**curves, **others}).splitlines()
    assert lines[2].startswith("| shufflenet_v2_x1_0 | 91.25") and lines[2].endswith(
        "| +0.85 (-0.30 to +2.00) | 1, never |"
    )
    assert lines[3:] == ["| mobilenetv2_100 | 88.00 | 87.50 | -0.50 | never |"]
    wider = {
        cell("shufflenet_v2_x1_0", pool, "adju", 0, variant="px80"): curve(top1)
        for pool, top1 in (("GAP", 91.5), ("GCP", 92.0))
    }
    lines = tables.causes_table({**curves, **wider}).splitlines()
    assert lines[2:4] == ["| None | 91.00 | 93.00 | +2.00 |", "| Head's learning rate times 4 | - | - | - |"]
    assert lines[6:] == ["| 80 px, 5×5 positions | 91.50 | 92.00 | +0.50 |"]
    hard = {
        cell("shufflenet_v2_x1_0", "GAP", "adju", 0, variant="crop0.7"): curve(90.0),
        cell("shufflenet_v2_x1_0", "GCP", "adju", 0, variant="crop0.7"): curve(90.25),
        cell("shufflenet_v2_x1_0", "GCP", "adju", 0, all_images=True, variant="crop0.7"): curve(92.5),
    }
    assert tables.crops_table({**curves, **hard}).splitlines()[2:] == [
        "| LR_norm | - | - | - | 92.00 | - | - |",
        "| LR_fast | - | - | - | - | - | - |",
        "| LR_adju | 90.00 | 90.25 | +0.25 | 91.00 | 93.00 | +2.00 |",  # of seed 0 alone
        "| LR_adju, all images | - | 92.50 | - | - | - | - |",
        "| LR_adju, MobileNetV2 | - | - | - | - | - | - |",
    ]
    faster = {
        cell("shufflenet_v2_x1_0", "GAP", "fast", 0, variant="crop0.7"): curve(89.0),
        cell("shufflenet_v2_x1_0", "GAP", "fast", 0, variant="crop0.7-lr0.25"): curve(90.0),
        cell("shufflenet_v2_x1_0", "GCP", "fast", 0, variant="crop0.7-lr0.25"): curve(90.5),
    }
    assert tables.rates_table(faster).splitlines()[2:] == [
        "| 0.03125 | - | - | - |",
        "| 0.0625 | 89.00 | - | - |",
        "| 0.125 | - | - | - |",
        "| 0.25 | 90.00 | 90.50 | +0.50 |",
    ]
    decayed = {
        cell("shufflenet_v2_x1_0", "GAP", "adju", 0, all_images=True): curve(92.0),
        cell("shufflenet_v2_x1_0", "GAP", "adju", 0, all_images=True, variant="wd0.0005"): curve(92.5),
        cell("shufflenet_v2_x1_0", "GCP", "adju", 0, all_images=True, variant="lr0.125-wd0.0005"): curve(93.0),
    }
    assert tables.decay_table(decayed).splitlines() == [
        "| Pooling | Rate | Top-1, decay 4e-05 | Top-1, decay 0.0005 |",
        "| --- | ---: | ---: | ---: |",
        "| GAP | 0.0625 | 92.00 | 92.50 |",
        "| GCP | 0.125 | - | 93.00 |",
    ]
    assert tables.draw(curves, tmp_path / "f.png").stat().st_size > 10000


def test_the_whole_resumes_and_fills_the_page(tool, tmp_path, monkeypatch, capsys):
    reproduce, _ = tool
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (64, 1, 28, 28), dtype=torch.uint8, generator=generator)
    few = TensorData((images, torch.arange(64) % 10), (images[:20], torch.arange(20) % 10))
    monkeypatch.setattr(reproduce, "prepare_fashion_mnist", lambda root: Path(root))
    monkeypatch.setattr(reproduce.TensorData, "fashion_mnist", classmethod(lambda cls, root, count: few))
    page = tmp_path / "docs" / "fashion_mnist.md"
    page.parent.mkdir()
    before = (ROOT / "docs" / "fashion_mnist.md").read_text()
    page.write_text(before)
    arguments = ["x", "--data-dir", str(tmp_path), "--output", str(tmp_path / "runs"), "--docs", str(page.parent)]
    arguments += ["--parts", "dims", "--seeds", "0", "--epochs", "1", "--batch-size", "32", "--amp"]
    monkeypatch.setattr(reproduce, "plan", lambda *given, real=reproduce.plan, **options: real(["dims"], [0], [])[:1])
    monkeypatch.setattr(sys, "argv", arguments)
    assert reproduce.main() == 0
    assert "== 1/1 shufflenet_v2_x1_0-gcp-d32-adju-crop0.7-seed0" in capsys.readouterr().out
    top1 = (
        (tmp_path / "runs" / "shufflenet_v2_x1_0-gcp-d32-adju-crop0.7-seed0" / "summary.csv").read_text().split(",")[-3]
    )
    assert f"| 32 | 528 | {float(top1):.2f} |" in page.read_text()
    assert page.read_text().split("<!-- begin dims -->")[0] == before.split("<!-- begin dims -->")[0]  # not asked for
    assert reproduce.main() == 0 and "==" not in capsys.readouterr().out  # complete: not run again
    monkeypatch.setattr(sys, "argv", [*arguments, "--list"])
    assert reproduce.main() == 0 and capsys.readouterr().out == "done shufflenet_v2_x1_0-gcp-d32-adju-crop0.7-seed0\n"


def test_runs_side_by_side(tool, tmp_path, capfd):
    reproduce, _ = tool
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for split, count in (("train", 64), ("t10k", 20)):
        images, labels = (f"{split}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1"))
        shape = b"".join(side.to_bytes(4, "big") for side in (count, 28, 28))
        (raw / images).write_bytes(b"\0\0\x08\x03" + shape + bytes(range(196)) * 4 * count)
        (raw / labels).write_bytes(b"\0\0\x08\x01" + shape[:4] + bytes(i % 10 for i in range(count)))
    args = argparse.Namespace(data_dir=str(tmp_path), output=str(tmp_path / "runs"), jobs=2, train_images=32, epochs=1,
                              batch_size=32, device="cpu", amp=False)  # fmt: skip
    cells = [reproduce.Cell("shufflenet_v2_x1_0", *kind) for kind in (("GAP", "adju", 0), ("GCP", "adju", 0, 32))]
    reproduce.run_all(cells, args)
    printed = capfd.readouterr().out
    for cell in cells:
        assert len((tmp_path / "runs" / cell.name / "summary.csv").read_text().splitlines()) == 2
        assert f"{cell.name}, epoch 1/1: " in printed and f"{cell.name} is complete" in printed
    args.data_dir = str(tmp_path / "nowhere")
    with pytest.raises(RuntimeError, match="not found"):
        reproduce.run_all(cells[:1], args)
