from __future__ import annotations

import argparse

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from robustness_sets import classifier, pixels
from torchvision import models
from torchvision.transforms import functional as F

from timm_gcp.commands import robustness as options
from timm_gcp.robustness.inference import Classifier, load_classifiers


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    options.add_arguments(parser)
    return parser.parse_args(["c", "--data-dir", "d", "--device", "cpu", *words])


def save_weights(path, model) -> str:
    torch.save({"state_dict": model.state_dict()}, path)
    return str(path)


def test_logits_are_those_of_the_usual_pipeline(tmp_path):
    model = timm.create_model("test_resnet", num_classes=3).eval()
    file = save_weights(tmp_path / "w.pth", model)
    loaded = load_classifiers(parse("--model", "test_resnet", "--checkpoint", file, "--num-classes", "3"))[0]
    assert loaded.label == "test_resnet" and loaded.num_classes == 3
    images = np.stack([pixels(0), pixels(1)])
    config = timm.data.resolve_model_data_config(model)
    batch = torch.stack([F.normalize(F.to_tensor(Image.fromarray(i)), config["mean"], config["std"]) for i in images])
    with torch.inference_mode():
        expected = model(batch)
    torch.testing.assert_close(loaded.logits(torch.from_numpy(images)), expected, atol=1e-5, rtol=1e-5)


def test_a_grey_model_sees_pillow_s_grey():
    seen = []
    grey = classifier(in_chans=1)
    grey.loaded.model.forward = lambda x: seen.append(x) or torch.zeros(len(x), 2)
    grey.logits(torch.from_numpy(pixels(3))[None])
    expected = np.asarray(Image.fromarray(pixels(3)).convert("L")) / 255
    assert seen[0].shape == (1, 1, 48, 48)
    assert np.abs(seen[0][0, 0].numpy() - expected).max() < 0.6 / 255


def test_statistics_of_another_number_of_channels_are_averaged():
    loaded = classifier(in_chans=1).loaded
    loaded.data_config.update(mean=(0.2, 0.4, 0.6), std=(0.5, 0.5, 0.5))
    assert Classifier("grey", loaded).mean.flatten().tolist() == pytest.approx([0.4])


def test_non_finite_logits_are_an_error():
    broken = classifier("broken")
    broken.loaded.model.forward = lambda x: torch.full((len(x), 2), float("nan"))
    with pytest.raises(RuntimeError, match="broken gave logits that aren't finite: leave out --amp"):
        broken.logits(torch.zeros(1, 48, 48, 3, dtype=torch.uint8))


def test_other_channel_counts_are_refused():
    loaded = classifier().loaded
    loaded.data_config["input_size"] = (4, 48, 48)
    with pytest.raises(ValueError, match="wide takes 4 channels"):
        Classifier("wide", loaded)


def test_torchvision_models(tmp_path):
    model = models.squeezenet1_1(num_classes=2)
    torch.save(model.state_dict(), tmp_path / "w.pth")  # bare, as torchvision's own files are
    words = ("--model", "torchvision:squeezenet1_1", "--checkpoint", str(tmp_path / "w.pth"), "--num-classes", "2")
    loaded = load_classifiers(parse(*words))[0]
    assert loaded.label == "squeezenet1_1" and loaded.num_classes == 2
    assert loaded.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert loaded.logits(torch.zeros(1, 64, 64, 3, dtype=torch.uint8)).shape == (1, 2)
    with pytest.raises(ValueError, match="torchvision has no classifier 'nothing'; it has alexnet"):
        load_classifiers(parse("--model", "torchvision:nothing", "--pretrained"))


def test_mixed_precision_gives_float32_logits(tmp_path):
    file = save_weights(tmp_path / "w.pth", timm.create_model("test_resnet", num_classes=3))
    words = ("--model", "test_resnet", "--checkpoint", file, "--num-classes", "3")
    images = torch.from_numpy(np.stack([pixels(0), pixels(1)]))
    full = load_classifiers(parse(*words))[0].logits(images)
    mixed = load_classifiers(parse(*words, "--amp", "--amp-dtype", "bfloat16"))[0].logits(images)
    assert mixed.dtype == torch.float32 and (mixed != full).any()
    torch.testing.assert_close(mixed, full, atol=0.05, rtol=0.05)


def test_labels(tmp_path):
    model = timm.create_model("test_resnet", num_classes=2)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    files = [save_weights(tmp_path / run / "last.pth", model) for run in ("a", "b")]
    words = ("--model", "test_resnet", "test_resnet", "--num-classes", "2", "--checkpoint", *files)
    assert [c.label for c in load_classifiers(parse(*words))] == ["test_resnet@a-last", "test_resnet@b-last"]
    assert [c.label for c in load_classifiers(parse(*words, "--label", "GAP", "GCP"))] == ["GAP", "GCP"]
    with pytest.raises(ValueError, match="two models share a label"):
        load_classifiers(parse(*words, "--label", "GAP", "GAP"))
    with pytest.raises(ValueError, match="2 models but 1 labels"):
        load_classifiers(parse(*words, "--label", "GAP"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "a", "b", "--checkpoint", "f"), "2 models but 1 checkpoints"),
        (("--model", "a", "--checkpoint", "f", "--pretrained"), "exclude each other"),
        (("--model", "a"), "without weights has nothing to score"),
        ((), "which models"),
    ],
)
def test_load_classifiers_rejects(words, message):
    with pytest.raises(ValueError, match=message):
        load_classifiers(parse(*words))


def test_a_bare_file_does_not_name_its_model(tmp_path):
    torch.save({"state_dict": {"a": torch.ones(1)}}, tmp_path / "w.pth")
    with pytest.raises(ValueError, match="doesn't say which model it holds"):
        load_classifiers(parse("--checkpoint", str(tmp_path / "w.pth")))
