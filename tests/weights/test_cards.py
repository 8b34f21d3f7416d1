from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import model_index_to_eval_results

from timm_gcp.weights import card_metadata, cards, cards_page
from timm_gcp.weights import catalog as table

ROOT = Path(__file__).parents[2]


def test_page_is_what_its_command_prints() -> None:
    assert (ROOT / "MODEL_CARDS.md").read_text(encoding="utf-8") == cards_page.model_cards(), (
        f"run `{cards_page.COMMAND}`"
    )
    script = ROOT / cards_page.COMMAND.split()[1]
    assert script.is_file() and "model_cards()" in script.read_text()


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    copy = tmp_path / "tools" / "release" / "make_model_cards.py"
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / "tools" / "release" / "make_model_cards.py").read_text())
    runpy.run_path(str(copy), run_name="__main__")
    assert (tmp_path / "MODEL_CARDS.md").read_text() == cards_page.model_cards()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["MODEL_CARDS.md", "tools"]


@pytest.mark.parametrize("name", list(table.WEIGHTS))
def test_card_is_read_by_the_hub_client(name: str) -> None:
    entry = table.WEIGHTS[name]
    data = ModelCard(cards.card(name)).data
    assert data.library_name == "timm" and data.license == "unknown" and data.datasets == ["imagenet-1k"]
    assert "image-classification" in data.tags and ("global-covariance-pooling" in data.tags) == ("gcp" in name)
    assert [result.metric_value for result in data.eval_results] == [entry.figures[0].top1, entry.figures[0].top5]
    assert {result.metric_type for result in data.eval_results} == {"accuracy"}
    assert {result.dataset_type for result in data.eval_results} == {"imagenet-1k"}


@pytest.mark.parametrize("name", list(table.WEIGHTS))
def test_card_states_source_figures_usage_and_licence(name: str) -> None:
    entry = table.WEIGHTS[name]
    text = cards.card(name, {"source_sha256": "ab" * 32, "triangle_order": "row"})
    figures = [f"| {figure.origin} | {figure.top1:.2f} | {figure.top5:.2f} |" for figure in entry.figures]
    parts = [entry.source_name, entry.google_drive_id, table.NO_LICENCE, "ab" * 32, "## Usage", "## Limits"]
    for part in [*figures, *parts, "create_model"]:
        assert part in text, part
    assert "SHA-256 of the file: not recorded yet" in cards.card(name)
    assert ("local-dir:" in text) == (entry.arch not in table.OURS)


def test_licence_given_with_permission_replaces_the_note() -> None:
    text = cards.card("resnet18_gcp.norm_in1k", licence="MIT")
    assert yaml.safe_load(text.split("---")[1])["license"] == "mit"
    assert "Licence: MIT" in text and table.NO_LICENCE not in text


def test_card_of_weights_outside_the_table() -> None:
    text = cards.card("resnet18_gcp.mine", {"source": "best.pth.tar", "source_sha256": "cd", "dimension": "64"})
    data = yaml.safe_load(text.split("---")[1])
    assert "model-index" not in data and "datasets" not in data
    assert "D = 64" in text and "2,080 features" in text and "`best.pth.tar`, SHA-256 `cd`" in text
    assert table.NO_LICENCE not in text
    assert table.NO_LICENCE in cards.card("resnet18_gcp.mine", {"layout": "authors"})
    assert "Weights of timm's `vgg16`." in cards.card("vgg16.mine")


def test_model_index_survives_the_hub_clients_round_trip() -> None:
    index = card_metadata.front_matter("resnet50_gcp.adju_in1k")["model-index"]
    name, results = model_index_to_eval_results(index)
    assert name == "resnet50_gcp.adju_in1k" and results[0].source_url == table.SOURCE_URL


def test_card_of_bundled_weights_says_where_they_come_from() -> None:
    text = cards.card("mobilenetv2_100_gcp_d128.caltech101")
    data = ModelCard(text).data
    assert data.datasets == ["HuggingFaceM4/Caltech-101"] and data.license == "apache-2.0"
    entry = table.BUNDLED_WEIGHTS["mobilenetv2_100_gcp_d128.caltech101"]
    assert [r.metric_value for r in data.eval_results] == [entry.top1, entry.top5, entry.mean_per_class]
    for part in (
        "Fine-tuned from ImageNet weights on Caltech-101",
        "https://doi.org/10.22002/D1.20086",
        "CC BY 4.0",
        "google-coral/test_data, whose LICENSE is Apache-2.0",
        "measured again on the training images of Imagenette",
        f"classes, by the same command: {entry.mean_per_class:.2f} %",
        "neither a face detector",
    ):
        assert part in text, part
    twin = cards.card("mobilenetv2_100.caltech101")
    assert 'create_model("local-dir:" + str(store.find("mobilenetv2_100.caltech101"))' in twin
    grey = cards.card("shufflenet_v2_x1_0_gcp.adju_fmnist")
    assert "google-coral" not in grey and "Fashion-MNIST (MIT licence), 60,000 training images" in grey
