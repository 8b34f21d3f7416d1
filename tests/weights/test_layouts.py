from __future__ import annotations

import math
from typing import Any

import pytest
import synthetic
import timm
import torch
from torch import nn

import timm_gcp  # noqa: F401
from timm_gcp.weights import layouts
from timm_gcp.weights.architectures import ARCHITECTURES
from timm_gcp.weights.triangle_order import (
    column_to_row,
    diagonal_contrast,
    diagonal_positions,
    triangle_dim,
    triangle_order,
)

SHAPES = synthetic.schema()
GCP = [name for name, facts in ARCHITECTURES.items() if facts.dimension]


def meta(name: str, **kwargs: Any) -> nn.Module:
    with torch.device("meta"):
        return timm.create_model(name, **kwargs)


def empty(arch: str) -> dict[str, torch.Tensor]:
    """State dict in the authors' names, shapes only."""
    return {name: torch.empty(shape, device="meta") for name, shape in SHAPES[arch].items()}


def as_fast_mpn_cov(state_dict: dict[str, torch.Tensor], reduction: tuple[str, str]) -> dict[str, torch.Tensor]:
    """A ResNet of the authors in fast-MPN-COV's names: numbered children, DataParallel around the features."""
    prefixes = {
        "conv1": "features.0",
        "bn1": "features.1",
        "layer_reduce": reduction[0],
        "layer_reduce_bn": reduction[1],
    }
    prefixes |= {f"layer{stage}": f"features.{stage + 3}" for stage in range(1, 5)} | {"fc": "classifier"}
    names = {}
    for name in state_dict:
        head, rest = name.split(".", 1)
        names[name] = f"{prefixes[head]}.{rest}".replace("features.", "features.module.")
    return {names[name]: tensor for name, tensor in state_dict.items()}


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_every_name_and_size_of_the_release(name: str) -> None:
    model = meta(name)
    weights = empty(ARCHITECTURES[name].authors)
    converted = layouts.rename(layouts.unwrap(weights))
    wanted = {key: tensor.shape for key, tensor in model.state_dict().items()}
    assert {key: tensor.shape for key, tensor in converted.items()} == wanted
    for prefix in ("module.", "_orig_mod.module.", "module._orig_mod."):
        wrapped = {"epoch": 90, "state_dict": {prefix + key: tensor for key, tensor in weights.items()}}
        assert layouts.rename(layouts.unwrap(wrapped)).keys() == converted.keys()
    # The renaming loses none; that it swaps none, test_golden shows by value.
    assert len({id(tensor) for tensor in converted.values()}) == len(weights)


@pytest.mark.parametrize("reduction", [("representation.conv_dr_block.0", "representation.conv_dr_block.1"),
                                       ("features.8", "features.9")])  # fmt: skip
def test_fast_mpn_cov_layout_gives_the_same_tensors(reduction: tuple[str, str]) -> None:
    theirs = empty("resnet50_mpncov")
    expected = layouts.rename(theirs)
    converted = layouts.rename(layouts.unwrap(as_fast_mpn_cov(theirs, reduction)))
    assert converted.keys() == expected.keys()
    assert all(converted[name] is expected[name] for name in expected)


def test_own_names_pass_through_unchanged() -> None:
    for name in ("resnet18_gcp", "mobilenetv2_100_gcp", "shufflenet_v2_x1_0_gcp"):
        state_dict = meta(name).state_dict()
        converted = layouts.rename(layouts.unwrap(state_dict))
        assert list(converted) == list(state_dict)
        assert all(converted[key] is state_dict[key] for key in state_dict)


@pytest.mark.parametrize("container", ["state_dict", "model", "state_dict_ema", "model_ema"])
def test_containers(container: str) -> None:
    weight = torch.ones(2)
    assert layouts.unwrap({container: {"module.fc.weight": weight}, "epoch": 1}) == {"fc.weight": weight}


def test_ema_is_taken_when_asked_for() -> None:
    plain, averaged = torch.zeros(1), torch.ones(1)
    checkpoint = {"state_dict": {"a": plain}, "state_dict_ema": {"a": averaged}}
    assert layouts.unwrap(checkpoint)["a"] is plain
    assert layouts.unwrap(checkpoint, use_ema=True)["a"] is averaged
    with pytest.raises(ValueError, match=r"no averaged \(EMA\) weights"):
        layouts.unwrap({"state_dict": {"a": plain}}, use_ema=True)


def test_what_is_no_state_dict_is_refused() -> None:
    with pytest.raises(ValueError, match="Entry 'epoch' is of type int"):
        layouts.unwrap({"epoch": 3})
    with pytest.raises(ValueError, match=r"Two entries .* 'fc.weight'"):
        layouts.unwrap({"fc.weight": torch.ones(1), "module.fc.weight": torch.ones(1)})
    with pytest.raises(ValueError, match=r"mean the same tensor, 'global_pool\.reduction\.0\.conv\.weight'"):
        layouts.rename({"layer_reduce.weight": torch.ones(1), "global_pool.reduction.0.conv.weight": torch.ones(1)})


def test_one_error_lists_all_that_is_wrong() -> None:
    weights = empty("resnet18_mpncov")
    del weights["layer1.0.bn1.weight"], weights["fc.bias"]
    weights["aux.weight"] = torch.empty(3, device="meta")
    weights["conv1.weight"] = torch.empty(32, 3, 7, 7, device="meta")
    with pytest.raises(ValueError) as caught:
        layouts.checkpoint_filter_fn(weights, meta("resnet18_gcp"))
    text = str(caught.value)
    assert "do not fit resnet18_gcp" in text
    assert "missing: layer1.0.bn1.weight, fc.bias" in text
    assert "foreign: aux.weight" in text
    assert "wrongly sized: conv1.weight is (32, 3, 7, 7), the model has (64, 3, 7, 7)" in text


def test_another_width_is_refused_with_the_remedy() -> None:
    with pytest.raises(
        ValueError, match="covariance is 128 wide, the model's 256: create the model with reduce_dim=128"
    ):
        layouts.checkpoint_filter_fn(empty("resnet50_mpncov_128"), meta("resnet50_gcp"))
    layouts.checkpoint_filter_fn(empty("resnet50_mpncov_128"), meta("resnet50_gcp", reduce_dim=128))


def test_gap_and_gcp_are_told_apart() -> None:
    with pytest.raises(ValueError, match="no covariance head"):
        layouts.checkpoint_filter_fn(empty("resnet18"), meta("resnet18_gcp"))
    with pytest.raises(ValueError, match=r"belongs to a \*_gcp model"):
        layouts.checkpoint_filter_fn(empty("resnet18_mpncov"), meta("resnet18"))
    with pytest.raises(ValueError, match=r"do not fit resnet18_gcp. missing: .* and \d+ more"):
        layouts.checkpoint_filter_fn(empty("mobilenet_v2_mpncov"), meta("resnet18_gcp"))


def test_batch_counters_may_be_absent() -> None:
    weights = {name: tensor for name, tensor in empty("resnet18_mpncov").items() if "num_batches" not in name}
    model = meta("resnet18_gcp")
    assert layouts.checkpoint_filter_fn(weights, model).keys() == model.state_dict().keys()


@pytest.mark.parametrize("name", GCP)
@pytest.mark.parametrize("kwargs", [{"num_classes": 0}, {"num_classes": 0, "global_pool": ""},
                                    {"num_classes": 0, "global_pool": "avg"}])  # fmt: skip
def test_headless_models_take_the_rest(name: str, kwargs: dict[str, Any]) -> None:
    model = meta(name, **kwargs)
    fitted = layouts.checkpoint_filter_fn(empty(ARCHITECTURES[name].authors), model)
    assert fitted.keys() == model.state_dict().keys()


def test_classifier_and_first_convolution_are_left_to_timm_when_it_adapts_them() -> None:
    model = meta("resnet18_gcp", num_classes=7, in_chans=1)
    fitted = layouts.checkpoint_filter_fn(empty("resnet18_mpncov"), model)
    assert fitted["fc.weight"].shape[0] == 1000 and fitted["conv1.weight"].shape[1] == 3
    assert model.pretrained_cfg["num_classes"] == 1000


def test_a_file_of_another_class_count() -> None:
    weights = {**empty("resnet18_mpncov"), "fc.weight": torch.zeros(5, 32896), "fc.bias": torch.zeros(5)}
    with pytest.raises(ValueError, match="The file has 5 classes: pass num_classes=5"):
        layouts.checkpoint_filter_fn(weights, meta("resnet18_gcp"))
    model = meta("resnet18_gcp", num_classes=5)
    layouts.checkpoint_filter_fn(weights, model)
    assert model.pretrained_cfg["num_classes"] == 5, "or timm would throw a classifier that fits away"


def upper_by_columns(matrix: torch.Tensor) -> torch.Tensor:
    return torch.cat([matrix[..., : column + 1, column] for column in range(matrix.shape[-1])], -1)


def upper_by_rows(matrix: torch.Tensor) -> torch.Tensor:
    return torch.cat([matrix[..., row, row:] for row in range(matrix.shape[-1])], -1)


@pytest.mark.parametrize("dim", [1, 2, 5, 16])
def test_triangle_index(dim: int) -> None:
    matrix = torch.randn(3, dim, dim)
    assert torch.equal(upper_by_columns(matrix)[..., column_to_row(dim)], upper_by_rows(matrix))
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    assert torch.equal(upper_by_rows(matrix)[..., diagonal_positions(dim, "row")], diagonal)
    assert torch.equal(upper_by_columns(matrix)[..., diagonal_positions(dim, "column")], diagonal)
    assert triangle_dim(dim * (dim + 1) // 2) == dim


def trained_classifier(dim: int = 24) -> torch.Tensor:
    """A classifier trained on square-rooted covariances of two-layer features, rows order: (classes, D(D+1)/2)."""
    torch.manual_seed(0)
    classes, per_class, n = 10, 40, 49
    mixing = torch.randn(classes, dim, dim) / math.sqrt(dim)
    features = torch.relu(mixing[:, None] @ torch.randn(classes, per_class, dim, n) + 0.3)
    centred = features - features.mean(-1, keepdim=True)
    values, vectors = torch.linalg.eigh(centred @ centred.mT / n)
    root = vectors * values.clamp(min=0).sqrt()[..., None, :] @ vectors.mT
    x = upper_by_rows(root).flatten(0, 1)
    y = torch.arange(classes).repeat_interleave(per_class)
    classifier = nn.Linear(x.shape[1], classes)
    optimizer = torch.optim.SGD(classifier.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-4)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(classifier(x), y).backward()
        optimizer.step()
    assert (classifier(x).argmax(1) == y).float().mean() > 0.9
    return classifier.weight.detach()


def test_triangle_order_of_a_trained_classifier_is_recognised_and_converted() -> None:
    weight = trained_classifier()
    dim = triangle_dim(weight.shape[1])
    assert dim is not None
    assert triangle_order(weight) == ("row", True)
    old = torch.empty_like(weight)
    old[:, column_to_row(dim)] = weight  # the same classifier over the old order
    assert triangle_order(old) == ("column", True)
    reduction = {"global_pool.reduction.0.conv.weight": torch.ones(1)}
    converted, found = layouts.to_row_order({"fc.weight": old, **reduction})
    assert found == "column (converted)" and torch.equal(converted["fc.weight"], weight)
    untouched, found = layouts.to_row_order({"fc.weight": weight, **reduction})
    assert found == "row" and untouched["fc.weight"] is weight


def test_triangle_order_is_never_guessed_from_noise() -> None:
    for seed in range(20):
        weight = torch.randn(10, 300, generator=torch.Generator().manual_seed(seed))
        assert triangle_order(weight) == ("row", False)
    assert triangle_order(torch.zeros(3, 6)) == ("row", False)
    assert triangle_order(torch.zeros(3, 1)) == ("row", False)
    assert layouts.to_row_order({"fc.weight": torch.randn(4, 6)})[1] == "", "a GAP classifier has no triangle"
    with pytest.raises(ValueError, match=r"Got a weight of shape \(2, 7\)"):
        diagonal_contrast(torch.zeros(2, 7), "row")


def test_loading_an_authors_file_in_the_old_order_converts_it(caplog: pytest.LogCaptureFixture) -> None:
    model = timm.create_model("shufflenet_v2_x1_0_gcp", num_classes=10, reduce_dim=24)
    weight = trained_classifier()
    old = torch.empty_like(weight)
    old[:, column_to_row(24)] = weight
    weights = {**model.state_dict(), "fc.weight": old}
    theirs = {
        name.replace("global_pool.reduction.0.conv", "dimension_reduction.0").replace(
            "global_pool.reduction.0.bn", "dimension_reduction.1"
        ): tensor
        for name, tensor in weights.items()
    }
    assert torch.equal(layouts.checkpoint_filter_fn(theirs, model)["fc.weight"], weight)
    assert "column-major triangle order; converted" in caplog.text
    assert torch.equal(layouts.checkpoint_filter_fn(weights, model)["fc.weight"], old), "our own files are in our order"
