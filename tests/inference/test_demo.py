"""The page of `timm-gcp demo`: its answers, the server, refusals."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from PIL import Image

from timm_gcp import cli
from timm_gcp.commands import demo as command
from timm_gcp.inference import demo
from timm_gcp.inference.model import load_model
from timm_gcp.inference.options import model_arguments

SAMPLES = Path(__file__).resolve().parents[2] / "samples" / "fashion_mnist"
NAME = "shufflenet_v2_x1_0_gcp.adju_fmnist"


@pytest.fixture(scope="module")
def twins():
    return [load_model(model_arguments(model=name, device="cpu"), pretrained=True) for name in command.TWINS]


def test_look(twins):
    image = Image.open(SAMPLES / "trouser_0002.png")
    top, drawn, caption = demo.look(twins[0], image)
    assert next(iter(top)) == "Trouser" and top["Trouser"] > 0.5 and len(top) == demo.TOP
    assert drawn.size == (384, 384) and caption.startswith("Trouser, ") and caption.endswith("(6×6 positions)")
    assert list(top.values()) == sorted(top.values(), reverse=True)
    second = demo.look(twins[0], image, rank=2)
    assert second[2].startswith(list(top)[1]) and second[1].tobytes() != drawn.tobytes()


def test_the_page_answers(twins, monkeypatch):
    gradio = pytest.importorskip("gradio")
    client = pytest.importorskip("gradio_client")
    page = demo.build_page(twins, sorted(SAMPLES.glob("*.png"))[:2])
    assert isinstance(page, gradio.Blocks)
    _, url, _ = page.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", server_port=None)
    try:
        found = client.Client(url, verbose=False).predict(
            client.handle_file(str(SAMPLES / "bag_0018.png")), 1, api_name="/look"
        )
    finally:
        page.close()
    assert len(found) == 4 and found[0]["label"] == found[2]["label"] == "Bag"


def test_unknown_options_of_a_model():
    with pytest.raises(ValueError, match="'modell' is not an option of a model; there are model, checkpoint, "):
        model_arguments(modell=NAME)


def test_without_gradio(twins, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ImportError, match=r"pip install 'timm-gcp\[demo\]'"):
        demo.build_page(twins)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["no_such_model"], "no_such_model"),
        (["--images", "nowhere"], "'nowhere' names no file"),
        (["shufflenet_v2_x1_0"], "pretrained"),
    ],
)
def test_refusals(arguments, told, capsys):
    assert cli.main(["demo", *arguments]) == 1
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1, error


def test_the_command_serves(monkeypatch, capsys):
    launched = {}
    pytest.importorskip("gradio")
    monkeypatch.setattr("gradio.Blocks.launch", lambda self, **options: launched.update(options))
    assert cli.main(["demo", "--images", str(SAMPLES), "--port", "0", "--device", "cpu"]) == 0
    assert launched["server_port"] is None and launched["share"] is False
    assert launched["allowed_paths"] == [str(SAMPLES)]
    assert "2 models" in capsys.readouterr().out
