"""What the tools that bundle weights share."""

from __future__ import annotations

import json

import bundling
import pytest
import torch


def test_float16_where_it_costs_next_to_nothing():
    assert bundling.chosen_dtype(80.0, 79.96) is bundling.chosen_dtype(80.0, 80.1) is torch.float16
    assert bundling.chosen_dtype(80.0, 79.9) is torch.float32


def test_what_takes_too_much_is_left_out(tmp_path, monkeypatch):
    """The limit holds for all weights together; those that are replaced don't count."""
    monkeypatch.setattr(bundling, "LIMIT", 3e6)
    new = tmp_path / "new.safetensors"
    new.write_bytes(bytes(2_000_000))
    bundled = tmp_path / "bundled"
    assert bundling.left_out(new, "b.tag", bundled) == ""
    for name in ("a.tag", "b.tag"):
        (bundled / name).mkdir(parents=True)
        (bundled / name / "model.safetensors").write_bytes(bytes(1_000_000))
    assert bundling.left_out(new, "b.tag", bundled) == ""
    told = bundling.left_out(new, "c.tag", bundled)
    assert told == "# c.tag is left out: 2.0 MB beside 2.0 MB of others, 3 at most"
    assert bundling.told_size(bundled) == "2.0 MB in all"


def test_a_folder_is_put_in_the_place_of_another(tmp_path):
    made, target = tmp_path / "made", tmp_path / "bundled" / "a.tag"
    made.mkdir()
    (made / "config.json").write_text(json.dumps({"pretrained_cfg": {}}))
    target.mkdir(parents=True)
    (target / "old").touch()
    bundling.put(made, target)
    assert [path.name for path in target.iterdir()] == ["config.json"]
    assert json.loads((target / "config.json").read_text())["pretrained_cfg"] == {"license": "apache-2.0"}
    assert [path.name for path in target.parent.iterdir()] == ["a.tag"]


def test_failed_validation(tmp_path, capsys):
    with pytest.raises(SystemExit, match="timm-gcp validate failed on "):
        bundling.validated(tmp_path / "none", ["--data-dir", str(tmp_path)])
    assert "is not a weight folder" in capsys.readouterr().err


def test_a_row_can_be_read_back():
    fields = {"first": 'a "b"', "images": 3, "study": "a command of some length, " * 9}
    row = bundling.written("dict", fields)
    assert eval(row.strip().rstrip(",")) == fields and max(map(len, row.splitlines())) <= 120
