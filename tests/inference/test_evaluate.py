"""Validation: metrics against hand-counted cases, the report, the figure, and refusals."""

from __future__ import annotations

import argparse
import csv
import json

import pytest
import torch
from commands import status_of
from PIL import Image
from toy_images import TINY, image_folder, tiny_settings

from timm_gcp import cli
from timm_gcp.common import device
from timm_gcp.common.paired import Pair
from timm_gcp.inference.evaluate import (
    Evaluation,
    class_table,
    compare,
    confusion_matrix,
    evaluate,
    mean_per_class,
    per_class,
)
from timm_gcp.plots.confusion import draw_confusion
from timm_gcp.train.options import resolve_args
from timm_gcp.train.run import train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Data folder and run folder of a tiny model."""
    root = tmp_path_factory.mktemp("validate")
    data = image_folder(root / "data")
    keys = tiny_settings(data, root, epochs=3, model_ema=True, model_ema_decay=0.0)
    return data, train(resolve_args(None, keys)).folder


def read(path: str) -> dict:
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, weights_only=True)


class Fixed(torch.nn.Module):
    """Logits are the images."""

    def forward(self, x):
        return x.flatten(1)


def test_metrics_by_hand():
    logits = torch.eye(7)[[0, 1, 2, 3]] * 5 + torch.arange(7) * 1e-3
    targets = torch.tensor([0, 1, 0, 6])  # the third is last in its row, the fourth comes second
    batches = [(logits[:3, :, None, None], targets[:3]), (logits[3:, :, None, None], targets[3:])]
    result = evaluate(Fixed().train(), batches, torch.device("cpu"))
    assert result.predictions.shape == (4, 5)
    assert result.accuracy(1) == 50 and result.accuracy(2) == 75 and result.accuracy(5) == 75
    expected = torch.nn.functional.cross_entropy(logits.double(), targets).item()
    assert result.metrics == {"loss": pytest.approx(expected, rel=1e-6), "top1": 50, "top5": 75}


def test_fewer_than_five_classes_and_bad_targets():
    batch = (torch.tensor([[0.0, 1.0]])[..., None, None], torch.tensor([1]))
    result = evaluate(Fixed(), [batch], torch.device("cpu"), channels_last=True)
    assert result.predictions.tolist() == [[1, 0]] and result.metrics["top5"] == 100
    with pytest.raises(ValueError, match=r"has class 1, but the model has 1 classes: choose a model trained"):
        evaluate(Fixed(), [(torch.zeros(1, 1, 1, 1), torch.tensor([1]))], torch.device("cpu"))
    with pytest.raises(ValueError, match="the data set has no images"):
        evaluate(Fixed(), [], torch.device("cpu"))


def test_confusion_by_hand():
    predictions = torch.tensor([[0], [1], [1], [1], [2]])
    confusion = confusion_matrix(Evaluation(0.0, predictions, torch.tensor([0, 0, 0, 1, 1])), 3)
    assert confusion.tolist() == [[1, 2, 0], [0, 1, 1], [0, 0, 0]]
    rows = per_class(confusion, ["a", "b", "c"])
    assert rows[0] == {
        "class": 0,
        "name": "a",
        "images": 3,
        "recall": pytest.approx(100 / 3),
        "precision": 100.0,
        "taken_for": "b (2)",
    }
    assert rows[1]["precision"] == pytest.approx(100 / 3) and rows[1]["taken_for"] == "c (1)"
    assert rows[2]["recall"] is None and rows[2]["precision"] == 0 and rows[2]["taken_for"] == ""


@pytest.mark.parametrize("count", [2, 30])
def test_picture(tmp_path, count):
    draw_confusion(torch.eye(count, dtype=torch.int64) * 5, [f"c{i}" for i in range(count)], "t", tmp_path / "c.png")
    with Image.open(tmp_path / "c.png") as picture:
        assert min(picture.size) > 300
    assert [path.name for path in tmp_path.iterdir()] == ["c.png"]


def test_command_agrees_with_training(trained, tmp_path, capsys):
    data, folder = trained
    last = str(folder / "last.pth.tar")
    common = ["validate", "--checkpoint", last, "--data-dir", str(data), "--workers", "0", "--device", "cpu"]
    assert cli.main([*common, "--use-ema", "--output", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{TINY}: top-1 ") and "on 12 images" in out and "most often taken for" in out
    report = json.loads((tmp_path / "out" / "validate.json").read_text())
    row = list(csv.DictReader((folder / "summary.csv").open(newline="")))[-1]
    assert report["top1"] == pytest.approx(float(row["eval_top1"]))
    assert report["loss"] == pytest.approx(float(row["eval_loss"]), rel=1e-5)
    classes = list(csv.DictReader((tmp_path / "out" / "per_class.csv").open(newline="")))
    assert [entry["images"] for entry in classes] == ["6", "6"]
    assert (tmp_path / "out" / "confusion.png").stat().st_size > 5000
    assert cli.main([*common, "--json", "--amp", "--amp-dtype", "bfloat16"]) == 0
    assert len(json.loads(capsys.readouterr().out)["per_class"]) == 2


def evaluation(predictions: list[int], targets: list[int]) -> Evaluation:
    return Evaluation(0.0, torch.tensor(predictions)[:, None], torch.tensor(targets))


def test_discordant_images_by_hand():
    targets = [0, 1, 2, 0, 1, 2]
    first, second = [0, 1, 2, 1, 0, 2], [0, 0, 0, 0, 2, 2]  # right: 0 1 2 5, and 0 3 5
    assert compare(evaluation(first, targets), evaluation(second, targets)) == Pair(2, 1)
    assert compare(evaluation(second, targets), evaluation(first, targets)) == Pair(1, 2)


@pytest.mark.parametrize("other", [[0, 1], [0, 1, 1]])
def test_other_images_are_refused(other):
    with pytest.raises(ValueError, match="saw different images"):
        compare(evaluation([0, 1, 0], [0, 1, 0]), evaluation(other, other))


def test_comparison_counts_what_each_alone_gets_right(trained, tmp_path, capsys):
    data, folder = trained
    last = str(folder / "last.pth.tar")
    worse = tmp_path / "worse.pth.tar"
    checkpoint = read(last)
    checkpoint["state_dict"]["fc.weight"] *= -1
    torch.save(checkpoint, worse)
    common = ["validate", "--data-dir", str(data), "--workers", "0", "--device", "cpu", "--checkpoint", last]
    assert cli.main([*common, "--compare", last]) == 0
    out = capsys.readouterr().out
    assert f"{last}: top-1 " in out
    assert "right by the first alone: 0 images, by the second alone: 0; McNemar's exact test, two-sided: p = 1" in out
    assert cli.main([*common, "--compare", str(worse), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = report["compare"]
    assert found["model"] == str(worse) and found["top1"] != report["top1"]
    difference = 12 * (report["top1"] - found["top1"]) / 100
    assert found["only_first"] - found["only_second"] == pytest.approx(difference)
    assert found["mcnemar_p"] == Pair(found["only_first"], found["only_second"]).p_value


def test_comparison_refusals(trained, tmp_path, capsys):
    data, folder = trained
    last = str(folder / "last.pth.tar")
    bare, other = tmp_path / "bare.pth", tmp_path / "other.pth.tar"
    checkpoint = read(last)
    torch.save(checkpoint["state_dict"], bare)
    checkpoint["args"].num_classes = 3
    del checkpoint["args"].timm_gcp  # the record, which says 2
    for name in ("fc.weight", "fc.bias"):
        checkpoint["state_dict"][name] = torch.cat([checkpoint["state_dict"][name]] * 2)[:3]
    torch.save(checkpoint, other)
    common = ["validate", "--data-dir", str(data), "--workers", "0", "--device", "cpu", "--checkpoint", last]
    for name, message in (
        (str(bare), "bare.pth' says not which model it is of: give a training checkpoint, or a weight folder"),
        (str(other), "has 3 classes, test_resnet has 2: compare models of the same classes"),
        ("none.pth.tar", "no checkpoint at 'none.pth.tar'"),
        ("no_such_model", "Unknown model"),
    ):
        assert cli.main([*common, "--compare", name]) == 1
        assert message in capsys.readouterr().err


def test_many_classes_are_shortened(tmp_path, capsys):

    rows = per_class(torch.diag(torch.arange(1, 31)), [f"c{i}" for i in range(30)])
    assert "the 20 classes of lowest recall of 30" in class_table(rows)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model", TINY], "untrained weights would be validated: add --pretrained or --checkpoint"),
        (["--model", TINY, "--pretrained", "--batch-size", "0"], "--batch-size: must be at least 1, got 0"),
    ],
)
def test_refusals(more, message, capsys):
    assert status_of("validate", "--data-dir", "nowhere", *more) in (1, 2)
    assert message in capsys.readouterr().err


def test_bad_data(trained, tmp_path, capsys):
    data, folder = trained
    common = ["validate", "--checkpoint", str(folder / "last.pth.tar"), "--device", "cpu", "--workers", "0"]
    assert cli.main([*common, "--data-dir", str(tmp_path / "none")]) == 1
    assert "no folder" in capsys.readouterr().err
    assert cli.main([*common, "--data-dir", str(data), "--dataset", "torch/fashion_mnist"]) == 1
    assert "data set 'torch/fashion_mnist' in" in capsys.readouterr().err


def test_devices_are_picked_as_in_training():
    assert device.pick_device("cpu").type == "cpu"


def test_mean_over_classes_weighs_classes_not_images():
    confusion = torch.tensor([[1, 1, 0], [0, 4, 0], [0, 0, 0]])  # no image of the third
    assert mean_per_class(confusion) == 75
