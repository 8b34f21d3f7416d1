"""The quickstart: its data, its table and the whole of it, shortened."""

from __future__ import annotations

import builtins
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from timm_gcp import cli
from timm_gcp.commands import quickstart as command
from timm_gcp.common.recipe import find_recipe, read_recipe
from timm_gcp.datasets.digits import write_digits
from timm_gcp.train import quickstart
from timm_gcp.train.options import resolve_args
from timm_gcp.train.run import Run


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return write_digits(tmp_path_factory.mktemp("digits") / "digits")


def test_digits_are_scikit_learns(digits):
    from sklearn.datasets import load_digits

    train, validation = (sorted((digits / split).rglob("*.png")) for split in ("train", "validation"))
    assert len(train) + len(validation) == 1797
    assert len(validation) / 1797 == pytest.approx(1 / 5, abs=0.003)
    assert len({path.parent.name for path in validation}) == 10
    for path in [*train[::100], *validation[::50]]:
        index = int(path.stem)
        assert path.parent.name == str(load_digits().target[index])
        pixels = np.asarray(Image.open(path)).astype(float) * 16 / 255
        assert np.abs(pixels - load_digits().images[index]).max() < 0.05


def test_recipe_knows_the_statistics_of_its_training_set(digits):
    values = read_recipe(find_recipe("quickstart"))
    pixels = np.stack([np.asarray(Image.open(path)) for path in sorted((digits / "train").rglob("*.png"))]) / 255
    assert values["mean"] == [pytest.approx(pixels.mean(), abs=1e-4)]
    assert values["std"] == [pytest.approx(pixels.std(), abs=1e-4)]


def test_covariance_sees_sixteen_positions():
    values = read_recipe(find_recipe("quickstart"))
    size = (1, values["in_chans"], values["img_size"], values["img_size"])
    for name in quickstart.TWINS.values():
        with torch.device("meta"):
            model = timm.create_model(name, in_chans=1, **values["model_kwargs"])
        assert model.forward_features(torch.zeros(size, device="meta")).shape[-2:] == (4, 4)


def test_without_scikit_learn(tmp_path, monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest, **more):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"pip install 'timm-gcp\[quickstart\]'"):
        write_digits(tmp_path / "digits")


def summary(folder: Path, top1: list[float]) -> Path:
    folder.mkdir()
    rows = [f"{epoch},0.1,0.1,{value},100,0.1" for epoch, value in enumerate(top1)]
    (folder / "summary.csv").write_text("\n".join(["epoch,train_loss,eval_loss,eval_top1,eval_top5,lr", *rows]))
    return folder


@pytest.mark.parametrize(
    ("gcp", "said"),
    [
        ([80.0, 95.0, 99.0], "GCP first reaches it at epoch 2 of 3 and ends at 99.00%."),
        ([1.0, 2.0, 3.0], "GCP does not reach it and ends at 3.00%."),
    ],
)
def test_side_by_side(tmp_path, gcp, said):
    folders = {"GAP": summary(tmp_path / "gap", [50.0, 80.0, 95.0]), "GCP": summary(tmp_path / "gcp", gcp)}
    text = quickstart.side_by_side(folders)
    assert f"| 2 | 80.00 | {gcp[1]:.2f} |" in text and text.endswith(f"GAP ends at 95.00%. {said}")


def test_reload_notices_other_weights(digits, tmp_path):
    args = resolve_args("quickstart", {"data_dir": str(digits), "model": "shufflenet_v2_x1_0"})
    kwargs = {"num_classes": 10, "in_chans": 1, **args.model_kwargs}
    torch.manual_seed(0)
    run = Run(tmp_path, timm.create_model(args.model, **kwargs))
    folder = quickstart.save_weights(run, args, tmp_path / "weights")
    assert {"config.json", "model.safetensors", "README.md"} == {path.name for path in folder.iterdir()}
    assert "355 of 355 predictions agree" in quickstart.check_reload(run, args, folder)
    torch.nn.init.normal_(run.model.fc.weight)
    with pytest.raises(RuntimeError, match=r"predicts otherwise than the one saved: \d+ of 355 classes differ"):
        quickstart.check_reload(run, args, folder)


def test_command(tmp_path, capsys, monkeypatch):
    """The whole, on every twelfth digit for two epochs."""

    def few(folder):
        write_digits(folder)
        for path in sorted(folder.rglob("*.png")):
            if int(path.stem) % 12:
                path.unlink()
        return folder

    monkeypatch.setattr(command, "write_digits", few)
    output = tmp_path / "out"
    assert cli.main(["quickstart", "--output", str(output), "--epochs", "2", "--seed", "1"]) == 0
    out = capsys.readouterr().out
    for expected in (
        "GAP epoch 2/2",
        "GCP epoch 1/2",
        "| epoch | GAP top-1 | GCP top-1 |",
        "predictions agree",
        "Done in",
    ):
        assert expected in out
    assert (output / "curves.png").stat().st_size > 10000
    model = timm.create_model(f"local-dir:{output / 'weights'}", pretrained=True)
    assert model.pretrained_cfg["input_size"] == (1, 64, 64) and model.num_classes == 10
    assert model.pretrained_cfg["label_names"][3] == "3"
    image = next((output / "digits" / "validation").rglob("*.png"))
    assert cli.main(["predict", str(image), "--model", f"local-dir:{output / 'weights'}", "--device", "cpu"]) == 0
    arguments = ["--data-dir", str(output / "digits"), "--device", "cpu", "--workers", "0"]
    assert cli.main(["validate", "--model", f"local-dir:{output / 'weights'}", *arguments]) == 0
    last = (output / "gcp" / "summary.csv").read_text().splitlines()[-1].split(",")[3]
    assert f"top-1 {float(last):.2f}%" in capsys.readouterr().out
