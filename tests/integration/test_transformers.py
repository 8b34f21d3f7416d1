"""transformers loads our weight folders as it loads timm's: with the same logits, images and class names."""

from __future__ import annotations

import argparse

import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config
from transformers import AutoImageProcessor, AutoModelForImageClassification, pipeline

from timm_gcp.cli import main
from timm_gcp.weights.record_sources import record_of, with_record

NAMES = ["church", "golf ball", "tench"]
PREPARED = {"input_size": (3, 64, 64), "interpolation": "bilinear", "mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.25)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A weight folder with class names, as `timm-gcp weights export` makes it of a checkpoint."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("transformers")
    model = timm.create_model("shufflenet_v2_x1_0_gcp", num_classes=3, reduce_dim=16, output_stride=16)
    with torch.no_grad():
        model.fc.weight.normal_(std=0.3)  # at the initial values all images look alike
    record = record_of(model, {**PREPARED, "crop_pct": 0.9, "crop_mode": "center"}, label_names=NAMES)
    args = with_record(argparse.Namespace(model="shufflenet_v2_x1_0_gcp"), record)
    torch.save({"state_dict": model.state_dict(), "args": args}, path / "last.pth.tar")
    assert main(["weights", "export", "--checkpoint", str(path / "last.pth.tar"), "--to", str(path / "folder")]) == 0
    return path / "folder"


def images(count):
    """RGB images of random pixels."""
    pixels = torch.randint(0, 256, (count, 80, 72, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return [Image.fromarray(one.numpy()) for one in pixels]


def test_same_logits_and_names(folder):
    ours = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    theirs = AutoModelForImageClassification.from_pretrained(folder).eval()
    x = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(theirs(x).logits, ours(x))
    assert theirs.config.id2label == dict(enumerate(NAMES))


def test_same_images(folder):
    ours = create_transform(**resolve_model_data_config(timm.create_model(f"local-dir:{folder}")))
    processor = AutoImageProcessor.from_pretrained(folder)
    for image in images(2):
        torch.testing.assert_close(processor(image, return_tensors="pt")["pixel_values"][0], ours(image))


def test_pipeline(folder):
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    transform = create_transform(**resolve_model_data_config(model))
    classify = pipeline("image-classification", model=str(folder))
    for image in images(2):
        with torch.inference_mode():
            expected = model(transform(image)[None]).softmax(-1)[0]
        found = {answer["label"]: answer["score"] for answer in classify(image, top_k=3)}
        assert found == pytest.approx(dict(zip(NAMES, expected.tolist(), strict=True)), abs=1e-5)


def test_another_type(folder):
    half = AutoModelForImageClassification.from_pretrained(folder, dtype=torch.bfloat16)
    assert next(half.parameters()).dtype == torch.bfloat16
    assert half(torch.randn(1, 3, 64, 64, dtype=torch.bfloat16)).logits.isfinite().all()


def test_kept_and_loaded_again(folder, tmp_path):
    model = AutoModelForImageClassification.from_pretrained(folder).eval()
    model.save_pretrained(tmp_path)
    again = AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    x = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(again(x).logits, model(x).logits)
