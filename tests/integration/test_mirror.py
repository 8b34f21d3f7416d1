"""Tests mirror the source: each module has its test file, or is named here with the file that covers it."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE, TESTS = ROOT / "timm_gcp", ROOT / "tests"

# module: the test file that covers it
COVERED_BY: dict[str, str] = {
    "commands/cost.py": "inference/test_cost.py",
    "commands/data.py": "datasets/test_fashion_mnist.py",
    "commands/demo.py": "inference/test_demo.py",
    "commands/detect.py": "detection/test_run.py",
    "commands/landscape.py": "landscape/test_landscape.py",
    "commands/predict.py": "inference/test_predict.py",
    "commands/release.py": "weights/test_release.py",
    "commands/reproduce.py": "reproduce/test_run.py",
    "commands/robustness.py": "robustness/test_run.py",
    "commands/train.py": "train/test_run.py",
    "commands/validate.py": "inference/test_evaluate.py",
    "common/device.py": "train/test_run.py",
    "common/messages.py": "functional/test_functional.py",
    "common/recipe.py": "integration/test_recipes.py",
    "datasets/digits.py": "commands/test_quickstart.py",
    "detection/checkpoint.py": "detection/test_run.py",
    "detection/coco_masks.py": "detection/test_coco_data.py",
    "detection/description.py": "integration/test_faults_weights.py",
    "detection/inference.py": "detection/test_run.py",
    "detection/loop.py": "detection/test_run.py",
    "detection/weights.py": "detection/test_backbone.py",
    "functional.py": "functional/test_functional.py",
    "inference/export_onnx.py": "commands/test_export.py",
    "inference/model.py": "inference/test_evaluate.py",
    "inference/options.py": "integration/test_round_trip.py",
    "landscape/plot.py": "landscape/test_landscape.py",
    "landscape/point.py": "landscape/test_landscape.py",
    "landscape/probe.py": "landscape/test_landscape.py",
    "landscape/records.py": "landscape/test_landscape.py",
    "models/gcp_model.py": "models/test_own_head.py",
    "models/in_place.py": "models/test_head.py",
    "models/swap_args.py": "models/test_swapped.py",
    "ops/choice.py": "functional/test_functional.py",
    "ops/features.py": "functional/test_functional.py",
    "ops/newton_schulz.py": "functional/test_functional.py",
    "ops/onnx_refusal.py": "integration/test_export.py",
    "ops/pool_options.py": "models/test_pooling.py",
    "ops/precision.py": "functional/test_precision.py",
    "ops/products.py": "functional/test_gradients.py",
    "ops/signed_sqrt.py": "functional/test_functional.py",
    "ops/spectral.py": "functional/test_gradients.py",
    "ops/triangle.py": "functional/test_functional.py",
    "ops/width.py": "models/test_pooling.py",
    "plots/confusion.py": "inference/test_evaluate.py",
    "plots/convergence.py": "commands/test_plot.py",
    "plots/schedules.py": "commands/test_plot.py",
    "plots/style.py": "commands/test_plot.py",
    "reproduce/classification.py": "reproduce/test_run.py",
    "reproduce/cost.py": "reproduce/test_run.py",
    "reproduce/detection.py": "reproduce/test_run.py",
    "reproduce/detectors.py": "reproduce/test_run.py",
    "reproduce/draw.py": "reproduce/test_run.py",
    "reproduce/landscape.py": "reproduce/test_run.py",
    "reproduce/landscape_hook.py": "reproduce/test_run.py",
    "reproduce/published.py": "reproduce/test_run.py",
    "reproduce/runs.py": "reproduce/test_run.py",
    "robustness/figures.py": "robustness/test_run.py",
    "robustness/report.py": "robustness/test_run.py",
    "run/__main__.py": "run/test_launcher.py",
    "train/build.py": "train/test_run.py",
    "train/callback.py": "train/test_run.py",
    "train/checkpoint.py": "train/test_run.py",
    "train/curves.py": "commands/test_plot.py",
    "train/loop.py": "train/test_run.py",
    "train/options.py": "train/test_run.py",
    "train/quickstart.py": "commands/test_quickstart.py",
    "train/summary.py": "train/test_run.py",
    "train/untouched.py": "landscape/test_landscape.py",
    "weights/allowed.py": "integration/test_faults_weights.py",
    "weights/architectures.py": "weights/test_catalog.py",
    "weights/authors.py": "weights/test_catalog.py",
    "weights/backbone_weights.py": "models/test_registered.py",
    "weights/data_config.py": "weights/test_record.py",
    "weights/folder.py": "commands/test_weights.py",
    "weights/card_metadata.py": "weights/test_cards.py",
    "weights/cards_bundled.py": "weights/test_cards.py",
    "weights/cards_page.py": "weights/test_cards.py",
    "weights/classes.py": "integration/test_round_trip.py",
    "weights/container.py": "weights/test_checkpoint.py",
    "weights/fit.py": "integration/test_import.py",
    "weights/hub_errors.py": "weights/test_hub.py",
    "weights/importing.py": "integration/test_import.py",
    "weights/listing.py": "commands/test_weights.py",
    "weights/named.py": "integration/test_faults_weights.py",
    "weights/record_sources.py": "weights/test_record.py",
    "weights/rebuild.py": "integration/test_round_trip.py",
    "weights/resolve.py": "weights/test_store.py",
    "weights/sanity.py": "integration/test_import.py",
    "weights/source.py": "integration/test_round_trip.py",
    "weights/timm_cfgs.py": "weights/test_catalog.py",
    "weights/triangle_order.py": "weights/test_layouts.py",
}


def modules() -> list[str]:
    return sorted(str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if path.name != "__init__.py")


def own_test(module: str) -> Path:
    path = Path(module)
    return TESTS / path.parent / f"test_{path.name}"


@pytest.mark.parametrize("module", modules())
def test_each_module_is_covered(module: str) -> None:
    covering = COVERED_BY.get(module)
    if covering is None:
        assert own_test(module).is_file(), f"{module} has no test file; write one, or name the one that covers it"
    else:
        assert (TESTS / covering).is_file()
        assert not own_test(module).is_file(), f"{module} has a test file of its own: take it out of this table"


def test_no_module_is_named_that_is_gone() -> None:
    assert set(COVERED_BY) <= set(modules())
