"""`timm-gcp export --onnx`: the file, what stands beside it, the comparison with torch, every refusal."""

from __future__ import annotations

import importlib.util
import json

import pytest
import timm
import torch
from torch import nn

from timm_gcp import cli
from timm_gcp.inference import export_onnx as exporter

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def save(path, **kwargs):
    model = timm.create_model("shufflenet_v2_x1_0_gcp", num_classes=3, in_chans=1, reduce_dim=8, **kwargs).eval()
    torch.save({"state_dict": model.state_dict()}, path)
    return model


def options(checkpoint, *more):
    model = ["--model", "shufflenet_v2_x1_0_gcp", "--model-kwargs", "reduce_dim=8", "--num-classes", "3"]
    model += ["--in-chans", "1", "--img-size", "64", "--mean", "0.3", "--std", "0.4"]
    return ["export", *model, "--checkpoint", str(checkpoint), *more]


def test_checkpoint_to_onnx(tmp_path, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = save(tmp_path / "w.pth")
    file = tmp_path / "m.onnx"
    assert cli.main(options(tmp_path / "w.pth", "--onnx", str(file), "--batch-sizes", "1", "3")) == 0
    assert "in batches of 1, 3 onnxruntime's logits are torch's to" in capsys.readouterr().out
    x = torch.randn(7, 1, 64, 64)  # a size that the command did not try
    session = onnxruntime.InferenceSession(file)
    with torch.inference_mode():
        torch.testing.assert_close(
            torch.from_numpy(session.run(None, {"images": x.numpy()})[0]), model(x), rtol=1e-3, atol=1e-4
        )
    facts = json.loads((tmp_path / "m.json").read_text())
    assert facts["input_size"] == [1, 64, 64] and facts["mean"] == [0.3] and facts["std"] == [0.4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.json", "m.onnx", "w.pth"]


def test_an_eigendecomposition_is_refused(tmp_path, capsys):
    save(tmp_path / "w.pth")
    arguments = options(tmp_path / "w.pth", "--onnx", str(tmp_path / "m.onnx"))
    arguments.insert(arguments.index("reduce_dim=8"), "normalization=eigh")
    assert cli.main(arguments) == 1
    assert "normalization='eigh' is an eigendecomposition, which ONNX lacks" in capsys.readouterr().err
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--onnx", "m.pt"], "--onnx names the file to write and must end in .onnx, got 'm.pt'"),
        (["--onnx", "m.onnx", "--amp"], "the export runs on the CPU in float32: drop --amp"),
        (["--onnx", "m.onnx", "--pretrained"], "--pretrained and --checkpoint name two sources of weights"),
    ],
)
def test_refusals(more, message, capsys):
    assert cli.main(options("w.pth", *more)) == 1
    assert message in capsys.readouterr().err


def test_missing_extra(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "onnxscript" else find(name, *a))
    with pytest.raises(ImportError, match=r"the ONNX export needs onnxscript: pip install 'timm-gcp\[onnx\]'"):
        exporter.check_exportable(nn.Linear(1, 1))


class Moody(nn.Module):
    """A model whose answer depends on how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += not torch.compiler.is_compiling()
        return x.flatten(1).sum(1, keepdim=True) + 1000.0 * self.calls


class Unexportable(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_a_file_that_answers_otherwise_does_not_appear(tmp_path):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    with pytest.raises(RuntimeError, match=r"the ONNX file's logits differ from torch's by up to"):
        exporter.export_onnx(Moody(), (1, 4, 4), tmp_path / "m.onnx")
    with pytest.raises(RuntimeError, match="torch can't export Unexportable to ONNX: "):
        exporter.export_onnx(Unexportable(), (1, 4, 4), tmp_path / "m.onnx")
    with pytest.raises(ValueError, match=r"batch sizes must be at least 1, got \[0\]"):
        exporter.export_onnx(nn.Flatten(), (1, 4, 4), tmp_path / "m.onnx", batch_sizes=[0])
    assert list(tmp_path.iterdir()) == []
