"""timm's own tests of forward_intermediates and of pruning, applied to the models of this package.

timm picks the models for these tests by the names of its own modules, so that run as they are they never see a model
registered from outside. Here the same functions are called with ours. Nothing is skipped but what they skip themselves.
"""

from __future__ import annotations

import os
from types import ModuleType

import pytest
import timm
import timm_sdist

import timm_gcp
from timm_gcp.models.registered import READY

MODELS = sorted({name.split(".")[0] for name in timm_gcp.models.default_cfgs} | {"gcp_swap"})
# Pruning at every feature index is what timm's own CI leaves out for its time; one model of each family shows it.
PRUNED = ["mobilenetv2_100_gcp_d128", "resnet18_gcp", "shufflenet_v2_x1_0", "shufflenet_v2_x1_0_gcp"]


@pytest.fixture(scope="module")
def timm_tests(request) -> ModuleType:
    for mark in timm_sdist.MARKS:
        request.config.addinivalue_line("markers", f"{mark}: of timm's tests")
    try:
        return timm_sdist.load_test_models()
    except RuntimeError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"timm's tests can't be had here: {error}")


def test_every_model_is_here():
    ours = {name for name in timm.list_models() if timm.models.model_entrypoint(name).__module__.startswith("timm_gcp")}
    assert set(MODELS) == ours - {f"{base}_gcp" for base in READY}  # whose maps are the base's, which timm tests
    assert set(PRUNED) <= ours


def test_timm_does_not_see_them(timm_tests):
    """Why this file exists; if timm's own selection ever takes ours in, the file can go."""
    seen = timm.list_models(module=timm_tests.FEAT_INTER_FILTERS)
    assert len(seen) > 500
    assert not set(seen) & set(MODELS)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("function", ["test_model_forward_intermediates", "test_model_forward_intermediates_features"])
def test_forward_intermediates(timm_tests, function, name):
    getattr(timm_tests, function)(model_name=name, batch_size=1)


@pytest.mark.parametrize("name", PRUNED)
def test_pruning(timm_tests, name):
    contract = getattr(timm_tests, "test_prune_intermediate_layers_contract", None)
    if contract is None:
        pytest.skip(f"the tests of timm {timm.__version__} hold no pruning contract")
    contract(model_name=name)
