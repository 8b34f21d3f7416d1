"""The cross-covariance layers: projections and heads against plain loops, parameters, ONNX, refusals."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from onnx_errors import refusal
from pooling_oracles import features
from torch import nn

from timm_gcp.functional import CROSS_NORMALIZATIONS, cross_cov_pool
from timm_gcp.models import CrossCovPool2d, MultiheadCrossCovPool


@pytest.mark.parametrize("normalization", CROSS_NORMALIZATIONS)
def test_heads_one_by_one(normalization):
    """Each head is the cross-covariance of its two slices of the projection."""
    pool = MultiheadCrossCovPool(10, 3, 4, normalization, singular_values=2, n_iter=2, bias=True).double()
    tokens = features(2, 10, 7).mT.contiguous()
    weight = pool.proj.weight.view(2, 3, 4, 10)
    bias = pool.proj.bias.view(2, 3, 4, 1)
    heads = []
    for h in range(3):
        x, y = (weight[i, h] @ tokens.mT + bias[i, h] for i in (0, 1))
        heads.append(cross_cov_pool(x, y, normalization, singular_values=2, n_iter=2, start=pool.start))
    torch.testing.assert_close(pool(tokens), torch.cat(heads, 1), rtol=1e-9, atol=1e-11)
    assert pool.out_features == 3 * 16


def test_defaults_are_those_of_sot_small():
    pool = MultiheadCrossCovPool(384)
    assert pool.out_features == 6 * 24**2
    assert sorted(name for name, _ in pool.named_parameters()) == ["proj.weight", "start"]
    assert sum(p.numel() for p in pool.parameters()) == 384 * 2 * 6 * 24 + 24
    assert pool.settings == {"normalization": "power_iteration", "exponent": 0.5, "singular_values": 1, "n_iter": 1}
    assert "num_heads=6, head_dim=24, normalization='power_iteration'" in repr(pool)
    assert MultiheadCrossCovPool(8, normalization="svd").start is None


def test_dropout_in_training_alone():
    pool = MultiheadCrossCovPool(8, 2, 3, drop_rate=0.5)
    tokens = features(2, 5, 8, dtype=torch.float32)
    torch.manual_seed(0)
    assert (pool(tokens) == 0).any()
    pool.eval()
    assert torch.equal(pool(tokens), pool(tokens))
    assert not (pool(tokens) == 0).any()


def test_every_parameter_takes_a_gradient():
    pool = MultiheadCrossCovPool(8, 2, 3, singular_values=2)
    pool(features(2, 5, 8, dtype=torch.float32)).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in pool.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = pool(features(2, 5, 8, dtype=torch.float32))
    assert value.dtype == torch.float32
    assert value.isfinite().all()


@pytest.mark.parametrize("make", [lambda: MultiheadCrossCovPool(8, 2, 3), lambda: CrossCovPool2d((8, 8), 3)])
def test_copies_pickles_and_fx(make):
    pool = make().eval()
    tokens = features(2, 5, 8, dtype=torch.float32)
    inputs = (tokens,) if isinstance(pool, MultiheadCrossCovPool) else (tokens.mT[..., None], tokens.mT[..., None])
    for twin in (copy.deepcopy(pool), pickle.loads(pickle.dumps(pool)), torch.fx.symbolic_trace(pool)):
        assert torch.equal(twin(*inputs), pool(*inputs))


@pytest.mark.parametrize("normalization", CROSS_NORMALIZATIONS)
def test_two_maps(normalization):
    pool = CrossCovPool2d((6, 8), (5, 4), normalization, exponent=0.4).eval()
    x, y = features(2, 6, 4, 4, dtype=torch.float32), features(2, 8, 4, 4, seed=1, dtype=torch.float32)
    wanted = cross_cov_pool(pool.reduction_x(x), pool.reduction_y(y), normalization, exponent=0.4, start=pool.start)
    assert torch.equal(pool(x, y), wanted)
    assert pool(x, y).shape == (2, pool.out_features) == (2, 16)
    assert isinstance(pool.reduction_x[0].act, nn.ReLU)


def test_one_map_for_both():
    pool = CrossCovPool2d((6, 6), None)
    x = features(2, 6, 9)
    assert torch.equal(pool(x), cross_cov_pool(x, x))
    assert "normalization='svd', exponent=0.5, singular_values=1, n_iter=1, out_features=36" in repr(pool)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_onnx(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pool = MultiheadCrossCovPool(8, 2, 3).eval()
    tokens = features(2, 5, 8, dtype=torch.float32)
    path = str(tmp_path / "pool.onnx")
    torch.onnx.export(pool, (tokens,), path, dynamo=True, verbose=False, external_data=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: tokens.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(found), pool(tokens).detach(), rtol=1e-4, atol=1e-5)
    exact = MultiheadCrossCovPool(8, 2, 3, "svd").eval()
    wanted = refusal("'svd' is computed by a singular value decomposition, which has no ONNX form")
    with pytest.raises(Exception, match=wanted):
        torch.onnx.export(exact, (tokens,), path, dynamo=True, verbose=False)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: MultiheadCrossCovPool(0), "in_chans is 0; give a whole number of at least 1"),
        (lambda: MultiheadCrossCovPool(8, 0), "num_heads is 0; give a whole number of at least 1"),
        (lambda: MultiheadCrossCovPool(8, 2, 2.5), r"head_dim is 2\.5; give a whole number of at least 1"),
        (lambda: MultiheadCrossCovPool(8, drop_rate=1), "drop_rate is 1; give a number of at least 0 and below 1"),
        (lambda: MultiheadCrossCovPool(8, normalization="log"), "normalization is 'log'; choose one of 'svd'"),
        (lambda: MultiheadCrossCovPool(8, 1, 2000), "of width 2000 gives 4,000,000 numbers .*; give head_dim=24, or"),
        (lambda: MultiheadCrossCovPool(8)(torch.zeros(2, 8)), r"expected tokens of shape \(B, N, C\), got shape"),
        (lambda: CrossCovPool2d((8, 2048), None), "of width 2048 gives 16,384 numbers .*; give reduce_dim=128, or"),
        (lambda: CrossCovPool2d((8, 8), 0), "reduce_dim is 0; give a width of at least 1"),
        (lambda: CrossCovPool2d((8, 8), init="zeros"), "init is 'zeros'; choose one of 'fan_out'"),
    ],
)
def test_bad_input(make, text):
    with pytest.raises(ValueError, match=text):
        make()
