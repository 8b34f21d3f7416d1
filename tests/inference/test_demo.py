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

SAMPLES = Path(__file__).resolve().parents[2] / "samples" / "photos"
NAME = "mobilenetv2_100_gcp_d128.caltech101"


@pytest.fixture(scope="module")
def twins():
    return [load_model(model_arguments(model=name, device="cpu"), pretrained=True) for name in command.TWINS]


def test_look(twins):
    image, side = Image.open(SAMPLES / "coffee.jpg"), twins[0].data_config["input_size"][-1]
    top, drawn, caption = demo.look(twins[0], image)
    assert next(iter(top)) == "cup" and top["cup"] > 3 * list(top.values())[1] and len(top) == demo.TOP
    enlarged = side * -(-320 // side)
    assert drawn.size == (enlarged, enlarged) and caption.startswith("cup, ")
    assert caption.endswith(f"({side // 32}×{side // 32} positions)")
    assert list(top.values()) == sorted(top.values(), reverse=True)
    second = demo.look(twins[0], image, rank=2)
    assert second[2].startswith(list(top)[1]) and second[1].tobytes() != drawn.tobytes()


def test_the_page_answers(twins, monkeypatch):
    gradio = pytest.importorskip("gradio")
    client = pytest.importorskip("gradio_client")
    page = demo.build_page(twins, sorted(SAMPLES.glob("*.jpg"))[:2])
    assert isinstance(page, gradio.Blocks)
    _, url, _ = page.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", server_port=None)
    try:
        found = client.Client(url, verbose=False).predict(
            client.handle_file(str(SAMPLES / "coffee.jpg")), 1, api_name="/look"
        )
    finally:
        page.close()
    assert len(found) == 4 and found[0]["label"] == found[2]["label"] == "cup"


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
