"""The command `timm-gcp weights`, and the checks that a file passes before it is accepted."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest
import timm
import tiny
import torch
from safetensors.torch import load_file, save_file

from timm_gcp.cli import main
from timm_gcp.common.files import file_sha256
from timm_gcp.weights import catalog as table
from timm_gcp.weights import store
from timm_gcp.weights.checkpoint import safetensors_metadata
from timm_gcp.weights.importing import guess_name, import_file
from timm_gcp.weights.listing import rows
from timm_gcp.weights.sanity import fixed_image
from timm_gcp.weights.triangle_order import column_to_row

KWARGS = ["--model-kwargs", "reduce_dim=8"]


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMM_GCP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIMM_GCP_HUB_ORG", raising=False)


def changed(path: Path, **tensors: torch.Tensor | None) -> Path:
    """A state dict of the tiny model with some entries replaced, or removed where None is given."""
    state_dict = {**tiny.model().state_dict(), **tensors}
    torch.save({key: value for key, value in state_dict.items() if value is not None}, path)
    return path


def importing(path: Path, **kwargs: Any) -> Any:
    return import_file(path, tiny.NAME, **{"model_args": {"reduce_dim": 8}, **kwargs})


def test_list(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["weights", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 40 + len(table.BUNDLED_WEIGHTS) + 2 and table.NO_LICENCE in lines[-1]
    line = next(line for line in lines if line.startswith("shufflenet_v2_x1_0_gcp.adju_fmnist "))
    assert line.split()[1:4] == ["bundled", "256", "1.84M"] and line.split()[-1] == "Apache-2.0"
    line = next(line for line in lines if line.startswith("resnet50_gcp.norm_in1k "))
    assert line.split() == [
        "resnet50_gcp.norm_in1k", "from", "the", "authors'", "file", "256", "56.93M", "6.46", "78.56", "94.09",
        "none", "stated",
    ]  # fmt: skip
    assert main(["weights", "list", "*d128*", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"].split(".")[1] for row in found] == ["norm_in1k", "adju_in1k"] * 2 + ["caltech101"]
    assert len(found[0]["figures"]) == 2 and found[0]["licence"] is None and found[0]["google_drive_id"]
    importing(tiny.checkpoint(tmp_path / "x.pth"))
    assert main(["weights", "list", "tiny"]) == 0
    out = capsys.readouterr().out
    assert "stored" in out and table.NO_LICENCE not in out
    assert rows(tiny.NAME)[0]["folder"] == str(store.find(tiny.NAME))
    assert main(["weights", "list", "nothing"]) == 1
    assert "No weights match 'nothing'" in capsys.readouterr().err


def test_import_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny.checkpoint(tmp_path / "best.pth.tar")
    arguments = ["weights", "import", str(path), "--as", tiny.NAME, *KWARGS]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert f'timm.create_model("{tiny.NAME}", pretrained=True)' in out and "naming: timm, triangle order row" in out
    assert main(arguments) == 1
    assert "exists already. Add --force to replace it" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0
    assert main(["weights", "import", str(path)]) == 1
    assert "'best.pth.tar' is none of the authors' file names" in capsys.readouterr().err
    assert main([*arguments[:-1], "reduce_dim"]) == 1
    assert "--model-kwargs takes KEY=VALUE" in capsys.readouterr().err


def test_names_told_by_file_names() -> None:
    for entry in table.WEIGHTS.values():
        for ending in (".pth.tar", ".pth", ".safetensors", " (1).pth.tar", ".PTH.TAR"):
            assert guess_name(Path("some") / f"{entry.source_name}{ending}") == entry.name
    with pytest.raises(ValueError, match=r"say which weights it holds: --as ARCH\.TAG"):
        guess_name("ResNet50_GCP.pth.tar")


def test_metadata(tmp_path: Path) -> None:
    path = tiny.checkpoint(tmp_path / "x.pth")
    metadata = safetensors_metadata(importing(path).folder / "model.safetensors")
    assert metadata["arch"] == tiny.ARCH and metadata["tag"] == "tiny" and metadata["source"] == "x.pth"
    assert metadata["source_sha256"] == file_sha256(path) and metadata["dimension"] == "8"
    assert metadata["triangle_order"] == "row (assumed)" and metadata["timm_gcp_version"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_export_in_every_precision(tmp_path: Path, dtype: torch.dtype, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny.model()
    state_dict = {
        key: value.to(dtype) if value.is_floating_point() else value for key, value in model.state_dict().items()
    }
    run = argparse.Namespace(model=tiny.ARCH, img_size=96, mean=[0.1, 0.2, 0.3], std=None, interpolation="bicubic",
                             crop_pct=0.9, input_size=None, in_chans=None)  # fmt: skip
    torch.save({"state_dict": {}, "state_dict_ema": state_dict, "args": run, "epoch": 1}, tmp_path / "last.pth.tar")
    (tmp_path / "labels.txt").write_text("\n".join(f"kind {i}" for i in range(7)) + "\n")
    target = tmp_path / "exported"
    arguments = ["weights", "export", tiny.ARCH, str(tmp_path / "last.pth.tar"), "--to", str(target), "--ema", *KWARGS]
    assert main([*arguments, "--label-names", str(tmp_path / "labels.txt")]) == 0
    assert f'"local-dir:{target}"' in capsys.readouterr().out
    loaded = timm.create_model(f"local-dir:{target}", pretrained=True)
    rounded = tiny.model()
    rounded.load_state_dict(state_dict)
    assert torch.equal(tiny.logits(loaded), tiny.logits(rounded))
    assert load_file(target / "model.safetensors")["fc.weight"].dtype == dtype
    cfg = loaded.pretrained_cfg
    assert cfg["input_size"][1:] == (96, 96) or list(cfg["input_size"]) == [3, 96, 96]
    assert list(cfg["mean"]) == [0.1, 0.2, 0.3] and cfg["interpolation"] == "bicubic" and cfg["crop_pct"] == 0.9
    assert cfg["label_names"][6] == "kind 6"
    assert main(arguments) == 1 and "exists already" in capsys.readouterr().err


def test_export_narrows_parameters_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny.model()
    path, target = tmp_path / "x.pth", tmp_path / "half"
    model.conv1[1].running_var.fill_(1e-9)  # zero in float16
    torch.save(model.state_dict(), path)
    feed = ["--img-size", "64", "--mean", "0.5", "--std", "0.25"]
    command = ["weights", "export", tiny.ARCH, str(path), *KWARGS, *feed, "--to"]
    assert main([*command, str(target), "--dtype", "float16"]) == 0
    found = load_file(target / "model.safetensors")
    assert found["fc.weight"].dtype == torch.float16 and found["conv1.1.running_var"].dtype == torch.float32
    assert torch.equal(found["conv1.1.running_var"], model.conv1[1].running_var)
    loaded = timm.create_model(f"local-dir:{target}", pretrained=True)
    assert loaded.fc.weight.dtype == torch.float32
    assert torch.equal(loaded.fc.weight, model.fc.weight.half().float())
    with torch.no_grad():
        model.fc.weight[0, 0] = 1e5
    torch.save(model.state_dict(), path)
    assert main([*command, str(tmp_path / "none"), "--dtype", "float16"]) == 1
    assert "values of fc.weight are beyond the range of torch.float16" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "wide"), "--dtype", "bfloat16"]) == 0


def test_push_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    importing(tiny.checkpoint(tmp_path / "x.pth"))
    push = ["weights", "push", tiny.NAME, "--repo-org", "me", "--private", "--dry-run"]
    assert main(push) == 1 and "Give --licence SPDX-ID" in capsys.readouterr().err
    assert main([*push, "--licence", "mit"]) == 1
    assert "doesn't state how its images were prepared" in capsys.readouterr().err
    assert main([*push, "--licence", "mit", "--img-size", "64", "--mean", "0.5", "--std", "0.25"]) == 0
    out = capsys.readouterr().out
    assert f"me/{tiny.NAME} (private" in out and "model.safetensors" in out and "library_name: timm" in out


def test_push_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from hub_server import point_to, running

    importing(tiny.checkpoint(tmp_path / "x.pth"))
    with running(tmp_path / "hub") as server:
        point_to(server.url, tmp_path / "hf", monkeypatch)
        (tmp_path / "data.yaml").write_text("input_size: [3, 64, 64]\nmean: [0.5, 0.4, 0.3]\nstd: [0.2, 0.2, 0.2]\n")
        push = ["weights", "push", tiny.NAME, "--repo-org", "me", "--licence", "mit"]
        assert main([*push, "--data-config", str(tmp_path / "data.yaml")]) == 0
        assert f'timm.create_model("hf-hub:me/{tiny.NAME}", pretrained=True)' in capsys.readouterr().out
        config = json.loads((server.root / "me" / tiny.NAME / "config.json").read_text())
        assert config["pretrained_cfg"]["mean"] == [0.5, 0.4, 0.3]
        assert config["pretrained_cfg"]["input_size"] == [3, 64, 64]


def test_stock_architectures_become_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = timm.create_model("resnet18").eval()
    path = tiny.checkpoint(tmp_path / "ResNet18_GAP_LRadju.pth.tar", model)
    assert main(["weights", "import", str(path)]) == 0
    out = capsys.readouterr().out
    folder = store.find("resnet18.adju_in1k")
    assert f'timm.create_model("local-dir:{folder}", pretrained=True)' in out
    loaded = timm.create_model(f"local-dir:{folder}", pretrained=True)
    assert torch.equal(tiny.logits(loaded), tiny.logits(model)) and loaded.pretrained_cfg["interpolation"] == "bilinear"


def test_published_digest_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    name = "shufflenet_v2_x1_0.norm_in1k"
    path = tiny.checkpoint(tmp_path / "x.pth", timm.create_model("shufflenet_v2_x1_0"))
    monkeypatch.setitem(table.WEIGHTS, name, dataclasses.replace(table.WEIGHTS[name], sha256="00" * 32))
    with pytest.raises(
        ValueError, match=f"is not the published file of {name}: its SHA-256 is {file_sha256(path)}, not 00"
    ):
        import_file(path, name)
    monkeypatch.setitem(table.WEIGHTS, name, dataclasses.replace(table.WEIGHTS[name], sha256=file_sha256(path)))
    assert import_file(path, name).sha256 == file_sha256(path)


def test_triangle_order_as_told(tmp_path: Path) -> None:
    weight = tiny.model().state_dict()["fc.weight"]
    path = tiny.checkpoint(tmp_path / "x.pth")
    told = importing(path, triangle_order="column")
    assert told.triangle_order == "column (converted, as told)"
    assert torch.equal(load_file(told.folder / "model.safetensors")["fc.weight"], weight[:, column_to_row(8)])
    told = importing(path, triangle_order="row", replace=True)
    assert told.triangle_order == "row (as told)"
    assert torch.equal(load_file(told.folder / "model.safetensors")["fc.weight"], weight)
    with pytest.raises(ValueError, match=r"`triangle_order` must be one of auto, row, column. Got 'diagonal'"):
        importing(path, triangle_order="diagonal", replace=True)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"fc.bias": None}, r"do not fit shufflenet_v2_x1_0_gcp\. missing: fc\.bias"),
        ({"conv9.weight": torch.ones(3)}, "foreign: conv9.weight"),
        (
            {"conv5.0.weight": torch.ones(3)},
            r"wrongly sized: conv5\.0\.weight is \(3,\), the model has \(1024, 464, 1, 1\)",
        ),
        ({"fc.bias": torch.full((7,), float("nan"))}, r"NaN or infinite values in fc\.bias"),
        (
            {"conv5.1.running_mean": torch.full((1024,), float("inf"))},
            r"NaN or infinite values in conv5\.1\.running_mean",
        ),
        ({"conv5.1.running_var": torch.zeros(1024)}, r"variances that are not positive in conv5\.1\.running_var"),
        ({"conv1.0.weight": torch.full((24, 3, 3, 3), 3e38)}, "gives NaN or infinite logits on a plain image"),
        ({"fc.weight": torch.zeros(7, 36), "fc.bias": torch.zeros(7)}, "gives every class the same logit"),
        ({"fc.weight": None, "fc.bias": None}, r"missing: fc\.weight, fc\.bias"),
    ],
)
def test_unusable_weights_are_refused(tmp_path: Path, tensors: dict[str, Any], message: str) -> None:
    path = changed(tmp_path / "x.pth", **tensors)
    with pytest.raises(ValueError, match=f"x.pth: .*{message}"):
        importing(path)
    assert store.find(tiny.NAME) is None and not any((tmp_path / "home").glob("weights/*"))


def test_wrong_architecture_and_width(tmp_path: Path) -> None:
    path = tiny.checkpoint(tmp_path / "x.pth")
    with pytest.raises(ValueError, match=r"do not fit resnet18_gcp. missing: conv1\.weight.* and \d+ more"):
        import_file(path, "resnet18_gcp.x")
    with pytest.raises(ValueError, match="covariance is 8 wide, the model's 256: create the model with reduce_dim=8"):
        import_file(path, tiny.NAME)
    with pytest.raises(ValueError, match=r"Unknown architecture 'resnet19'. Here: resnet18_gcp, "):
        import_file(path, "resnet19.x")
    with pytest.raises(ValueError, match="The file has 7 classes"):
        import_file(path, f"{tiny.ARCH}.norm_in1k", model_args={"reduce_dim": 8})


def test_bad_files_never_reach_the_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {tmp_path}/ran",)

    path = tmp_path / "x.safetensors"
    arguments = ["weights", "import", str(path), "--as", tiny.NAME, *KWARGS]

    def refused() -> str:
        assert main(arguments) == 1
        assert store.find(tiny.NAME) is None and not any((tmp_path / "home").glob("weights/*"))
        return capsys.readouterr().err

    assert "does not exist" in refused()
    save_file(tiny.model().state_dict(), path)
    path.write_bytes(path.read_bytes()[:-10])
    assert "is cut short" in refused()
    path.write_bytes(b"<!doctype html>")
    assert "is a web page, not weights" in refused()
    torch.save({"state_dict": Payload()}, path)
    assert "asks to run posix.system" in refused()
    assert not (tmp_path / "ran").exists()
    torch.save({"epoch": 3}, path)
    assert "Entry 'epoch' is of type int" in refused()


def test_fixed_image_is_fixed() -> None:
    image = fixed_image((3, 32, 48))
    assert image.shape == (1, 3, 32, 48) and torch.equal(image, fixed_image((3, 32, 48)))
    assert image.std() > 0.5 and not torch.equal(image[:, 0], image[:, 1])


def test_nothing_is_assumed_in_silence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny.checkpoint(tmp_path / "x.pth")
    assert main(["weights", "import", str(path), "--as", tiny.NAME, *KWARGS]) == 0
    assert "states no preprocessing: taking input 3×224×224, mean 0.485, 0.456, 0.406" in capsys.readouterr().err
    export = ["weights", "export", tiny.ARCH, str(path), "--to", str(tmp_path / "out"), *KWARGS]
    assert main(export) == 1
    assert "does not state how its images were prepared" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert main(["weights", "export", "--to", str(tmp_path / "out")]) == 1
    assert "which checkpoint?" in capsys.readouterr().err
    assert main(["weights", "export", str(path), "--to", str(tmp_path / "out")]) == 1
    assert "which model?" in capsys.readouterr().err
    assert main(["weights", "import"]) == 1 and "which checkpoint?" in capsys.readouterr().err


def test_a_folder_that_answers_otherwise_never_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from timm_gcp.weights import importing as module

    path = tiny.checkpoint(tmp_path / "x.pth")
    real = module.write_folder

    def spoilt(folder: Path, model: Any, state_dict: Any, *more: Any, **kwargs: Any) -> None:
        real(folder, model, {**state_dict, "fc.bias": state_dict["fc.bias"] + 1}, *more, **kwargs)

    monkeypatch.setattr(module, "write_folder", spoilt)
    with pytest.raises(ValueError, match=r"x\.pth: the reloaded model gives other logits, by up to 1"):
        importing(path)
    assert store.find(tiny.NAME) is None and not any((tmp_path / "home").glob("weights/*"))
