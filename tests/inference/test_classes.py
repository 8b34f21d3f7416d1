"""A classifier of another size is never measured, and names are the weights' own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from timm_gcp import cli
from timm_gcp.inference.classes import check_classifier, check_num_classes, check_order, own_names

BUNDLED = "shufflenet_v2_x1_0_gcp.adju_fmnist"


def loaded(num_classes, stored, names=None):
    cfg = {"num_classes": stored, "label_names": names}
    return SimpleNamespace(model=SimpleNamespace(num_classes=num_classes, pretrained_cfg=cfg), name="net")


def test_sizes():
    check_num_classes(None), check_num_classes(1)
    with pytest.raises(ValueError, match="--num-classes must be at least 1, got 0"):
        check_num_classes(0)
    for fitting in (loaded(10, 10), loaded(12, -1), loaded(12, None)):
        check_classifier(fitting)
    check_classifier(loaded(12, 10), "file.pth")
    with pytest.raises(ValueError, match="--num-classes 12, but the weights of net have 10 classes"):
        check_classifier(loaded(12, 10))


def test_names():
    assert own_names(loaded(2, 2, ["a", "b"])) == own_names(loaded(2, 2, {"0": "a", "1": "b"})) == ("a", "b")
    assert own_names(loaded(3, 2, ["a", "b"])) is None and own_names(loaded(2, 2)) is None
    stated = loaded(2, 2, ["a", "b"])
    stated.stated_names = ("c", "d")
    assert own_names(stated, "file.pth") == ("c", "d")


def test_a_class_map_in_another_order():
    for fine in (None, {"a": 0, "b": 1}, {"x": 0, "y": 1}, {"a": 1}):
        check_order(fine, ("a", "b"))
    check_order({"b": 0, "a": 1}, None)
    with pytest.raises(ValueError, match=r"--class-map has 'a' as class 1, but .* as class 0: .* in the order a, b"):
        check_order({"b": 0, "a": 1}, ("a", "b"))


@pytest.mark.parametrize("command", [["validate", "--data-dir", ".", "--pretrained"], ["predict", __file__]])
def test_commands_refuse_another_size(command, capsys):
    assert cli.main([*command, "--model", BUNDLED, "--num-classes", "12", "--device", "cpu"]) == 1
    assert "--num-classes 12, but the weights of" in capsys.readouterr().err
