"""`gcp:NAME` as a registered model and its arguments."""

from __future__ import annotations

import pytest

from timm_gcp.models import swap_args
from timm_gcp.weights import swap_names
from timm_gcp.weights.swap_names import as_swap, plain_name, pooled_name


def test_names():
    assert as_swap("gcp:resnet18.a1_in1k", {"reduce_dim": 8}) == (
        "gcp_swap",
        {"reduce_dim": 8, "backbone": "resnet18.a1_in1k"},
    )
    assert as_swap("resnet18", {"reduce_dim": 8}) == ("resnet18", {"reduce_dim": 8})
    assert as_swap("gcp:resnet18", {"backbone": "resnet18"})[1] == {"backbone": "resnet18"}
    assert plain_name("gcp:resnet18") == "gcp_resnet18" and plain_name("resnet18") == "resnet18"
    assert [pooled_name(name) for name in ("gcp:a", "a_gcp", "a_gcp_d128")] == ["a", "a", "a"]


def test_refusals():
    with pytest.raises(ValueError, match="'gcp:' names no model: give gcp:NAME"):
        as_swap("gcp:", {})
    with pytest.raises(ValueError, match="gcp:resnet18 and backbone=vgg11 name two backbones: give one of them"):
        as_swap("gcp:resnet18", {"backbone": "vgg11"})


def test_one_spelling():
    assert (swap_names.SWAP, swap_names.BACKBONE) == (swap_args.ENTRY_POINT, swap_args.BACKBONE)
