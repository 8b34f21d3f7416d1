"""The pooling layer: its steps, names, settings, refusals, TorchScript and torch.fx."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from pooling_oracles import distance, features
from torch import nn

import timm_gcp
from timm_gcp import GlobalCovPool2d
from timm_gcp.functional import NORMALIZATIONS, global_cov_pool


def layer(*args, **kwargs) -> GlobalCovPool2d:
    """A layer whose batch normalisations are not the identity."""
    torch.manual_seed(0)
    pool = GlobalCovPool2d(*args, **kwargs)
    for module in pool.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                tensor.data.uniform_(0.5, 1.5)
    return pool


@pytest.mark.parametrize("reduce_dim", [5, (7, 5)])
@pytest.mark.parametrize("training", [False, True])
def test_reduction_then_covariance(reduce_dim, training):
    """Convolution without bias, batch normalisation, activation, step by step; then the pooling function."""
    pool = layer(12, reduce_dim).train(training)
    x = features(3, 12, 6, 6, dtype=torch.float32)
    y = x
    for step in copy.deepcopy(pool).reduction:
        y = nn.functional.conv2d(y, step.conv.weight)
        bn = step.bn
        y = nn.functional.batch_norm(
            y, bn.running_mean, bn.running_var, bn.weight, bn.bias, training, bn.momentum, bn.eps
        )
        y = y.relu()
    torch.testing.assert_close(pool(x), global_cov_pool(y), rtol=1e-5, atol=1e-6)
    assert pool(x).shape == (3, pool.out_features) == (3, 15)


def test_state_dict_names():
    names = [f"reduction.{i}.{leaf}" for i in range(2) for leaf in BN_AND_CONV]
    assert list(GlobalCovPool2d(8, (6, 4)).state_dict()) == names
    assert list(GlobalCovPool2d(8, None).state_dict()) == []


BN_AND_CONV = ["conv.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var", "bn.num_batches_tracked"]


@pytest.mark.parametrize(
    ("reduce_dim", "dim"), [(256, 256), (128, 128), ((256, 128), 128), ([9, 4], 4), (None, 320), (1, 1)]
)
def test_sizes(reduce_dim, dim):
    pool = GlobalCovPool2d(320, reduce_dim, device="meta")
    assert pool.dim == dim
    assert pool.out_features == dim * (dim + 1) // 2
    assert pool.feat_mult() == pool.out_features / 320
    assert not pool.is_identity()
    assert pool.pool_type == "gcp"


def test_defaults_are_the_papers():
    pool = GlobalCovPool2d(512)
    assert (pool.dim, pool.normalization, pool.n_iter) == (256, "newton_schulz", 5)
    assert isinstance(pool.reduction[0].act, nn.ReLU)
    assert sum(p.numel() for p in pool.parameters()) == 512 * 256 + 2 * 256


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_settings_reach_the_function(normalization):
    pool = GlobalCovPool2d(6, None, normalization, 3, exponent=0.3, eps=0.5).eval()
    x = features(2, 6, 4, 4)
    assert torch.equal(pool(x), global_cov_pool(x, normalization, 3, exponent=0.3, eps=0.5))


def test_activation():
    pool = GlobalCovPool2d(6, (5, 4), act_layer=nn.ReLU6)
    assert [type(step.act) for step in pool.reduction] == [nn.ReLU6, nn.ReLU6]


def test_device_and_type():
    pool = GlobalCovPool2d(6, 4, device="meta", dtype=torch.bfloat16)
    assert {(p.device.type, p.dtype) for p in pool.parameters()} == {("meta", torch.bfloat16)}
    assert pool(torch.empty(2, 6, 3, 3, device="meta", dtype=torch.bfloat16)).shape == (2, 10)


def test_printed():
    assert "normalization='newton_schulz', n_iter=5, out_features=10" in repr(GlobalCovPool2d(6, 4))


def test_copies_and_pickles():
    pool = layer(6, 4).eval()
    x = features(2, 6, 3, 3, dtype=torch.float32)
    pool(x).sum().backward()
    for twin in (copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))):
        assert torch.equal(twin(x), pool(x))


def test_public_name():
    assert timm_gcp.GlobalCovPool2d is GlobalCovPool2d


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    """Activations of scale 300: under autocast, and with half parameters."""
    pool = layer(32, 16).eval()
    x = 300 * features(2, 32, 7, 7, dtype=torch.float32).relu()
    expected = pool(x)
    with torch.autocast("cpu", dtype=dtype):
        value = pool(x)
    assert value.dtype == torch.float32
    assert distance(value, expected) < 1e-2
    half = copy.deepcopy(pool).to(dtype)(x.to(dtype))
    assert half.dtype == dtype
    assert distance(half, expected) < 1e-2


@pytest.mark.parametrize("reduce_dim", [0, -4, 2.5, True, (), (8, 0), (8, 2.5), "wide"])
def test_bad_widths(reduce_dim):
    with pytest.raises(ValueError, match=r"reduce_dim is .*; give a width of at least 1 \(256\), several for steps"):
        GlobalCovPool2d(16, reduce_dim)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"normalization": "svd"}, "normalization is 'svd'; choose one of 'newton_schulz'"),
        ({"n_iter": 0}, "n_iter is 0; give a whole number"),
        ({"exponent": 3}, r"exponent is 3; give a number in \(0, 2\]"),
        ({"eps": 0}, "eps is 0; give a positive number"),
    ],
)
def test_bad_options(options, text):
    with pytest.raises(ValueError, match=text):
        GlobalCovPool2d(16, 8, **options)


def test_wrong_rank():
    with pytest.raises(ValueError, match=r"expected features of shape \(B, D, H, W\)"):
        GlobalCovPool2d(16, None)(torch.zeros(2, 16))


@pytest.mark.parametrize(
    ("normalization", "options"),
    [
        ("isice", {"sparsity": 0.1, "learning_rate": 0.5, "steps": 3, "inverse_iter": 4, "ridge": 0.01}),
        ("dropcov", {"beta": 2.0, "kernel_size": 5}),
        ("newton_schulz", {"max_dim": 6}),
    ],
)
def test_pool_kwargs(normalization, options):
    """Options of the pooling reach the function; the layer's own mode and filter do for DropCov."""
    x = features(3, 6, 4, 4)
    pool = GlobalCovPool2d(6, None, normalization, dtype=torch.float64, pool_kwargs=options)
    if normalization == "dropcov":
        assert [tuple(p.shape) for p in pool.parameters()] == [(5,)]
        call = {"beta": 2.0, "channel_filter": pool.channel_filter}
        torch.manual_seed(0)
        trained = pool(x)
        torch.manual_seed(0)
        assert torch.equal(trained, global_cov_pool(x, "dropcov", pool_kwargs={**call, "training": True}))
        trained.sum().backward()
        assert pool.channel_filter.grad.abs().sum() > 0
        assert torch.equal(pool.eval()(x), global_cov_pool(x, "none"))
    else:
        call = options if normalization == "isice" else None
        assert torch.equal(pool(x), global_cov_pool(x, normalization, pool_kwargs=call))
        assert list(pool.parameters()) == []
    for twin in (copy.deepcopy(pool), pickle.loads(pickle.dumps(pool)), torch.fx.symbolic_trace(pool.eval())):
        assert torch.equal(twin.eval()(x), pool.eval()(x))


@pytest.mark.parametrize("normalization", ["newton_schulz", "isice"])
@pytest.mark.parametrize("size", [1, 3])
def test_average_beside_the_covariance(normalization, size):
    """GAP of the unreduced map, then the covariance: one linear layer is the sum of two classifiers' logits."""
    pool = layer(12, 5, normalization, pool_kwargs={"concat_average": True}).eval()
    x = features(3, 12, size, size, dtype=torch.float32)
    found = pool(x)
    assert found.shape == (3, pool.out_features) == (3, 12 + 15)
    torch.testing.assert_close(found[:, :12], x.mean((2, 3)))
    assert torch.equal(found[:, 12:], global_cov_pool(pool.reduction(x), normalization))
    fc = nn.Linear(27, 4)
    both = x.mean((2, 3)) @ fc.weight[:, :12].T + found[:, 12:] @ fc.weight[:, 12:].T + fc.bias
    torch.testing.assert_close(fc(found), both)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert pool(x).dtype == torch.float32
    assert pool.bfloat16()(x.bfloat16()).dtype == torch.bfloat16
    assert "concat_average=True, out_features=27" in repr(pool)


def test_average_in_torchscript():
    pool = layer(12, 5, pool_kwargs={"concat_average": True}).eval()
    x = features(3, 12, 3, 3, dtype=torch.float32)
    torch.testing.assert_close(torch.jit.script(pool)(x), pool(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"pool_kwargs": {"steps": 3}},
            r"has 'steps', which normalization 'newton_schulz' does not know; it takes conc",
        ),
        (
            {"normalization": "isice", "pool_kwargs": {"step": 3}},
            r"it takes sparsity, .*max_dim\. Did you mean 'steps'\?",
        ),
        (
            {"normalization": "dropcov", "pool_kwargs": {"training": True}},
            "has 'training', which normalization 'dropcov'",
        ),
        ({"normalization": "isice", "pool_kwargs": {"steps": 0}}, "steps is 0; give a whole number"),
        ({"normalization": "dropcov", "pool_kwargs": {"beta": -1}}, "beta is -1; give a number of at least 0"),
        ({"normalization": "dropcov", "pool_kwargs": {"kernel_size": 2}}, "kernel_size is 2; give an odd whole number"),
        ({"pool_kwargs": {"concat_average": 1}}, "concat_average is 1; give True or False"),
        ({"pool_kwargs": {"max_dim": 0}}, "max_dim is 0; give a whole number of at least 1"),
        ({"pool_kwargs": "steps=3"}, "pool_kwargs is 'steps=3'; give a mapping of names to values"),
    ],
)
def test_bad_pool_kwargs(options, text):
    with pytest.raises(ValueError, match=text):
        GlobalCovPool2d(16, 8, **options)


def test_bad_pool_kwargs_of_the_function():
    x = features(2, 4, 9)
    with pytest.raises(
        ValueError, match=r"has 'step', which normalization 'isice' does not know; it takes sparsity, lea"
    ):
        global_cov_pool(x, "isice", pool_kwargs={"step": 3})
    with pytest.raises(ValueError, match=r"which normalization 'eigh' does not know; it takes none\."):
        global_cov_pool(x, "eigh", pool_kwargs={"steps": 3})


def test_a_wide_covariance_says_its_memory_first():
    text = (
        r"width 2048 gives 2,098,176 numbers an image: in float32 16\.8 MB for the matrix, 8\.4 MB for the vector, and "
        r"8\.4 GB for a classifier of 1000 classes; give reduce_dim=256, or raise the limit with "
        r"pool_kwargs=\{'max_dim': 2048\}"
    )
    with pytest.raises(ValueError, match=text):
        GlobalCovPool2d(2048, None)
    for limit in (2048, None):
        assert GlobalCovPool2d(2048, None, pool_kwargs={"max_dim": limit}).out_features == 2048 * 2049 // 2
    assert GlobalCovPool2d(1024, None).dim == 1024
    with pytest.raises(ValueError, match="width 9 gives 45 numbers an image: in float32 324 bytes for the matrix"):
        GlobalCovPool2d(9, None, pool_kwargs={"max_dim": 8})


@pytest.mark.parametrize("size", [2, 6])
def test_torchscript(size):
    """Scripted Newton–Schulz on either side, saved, loaded, run at another batch size."""
    pool = layer(12, 8).eval()
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(pool), buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    x = features(3, 12, size, size, dtype=torch.float32)
    torch.testing.assert_close(loaded(x), pool(x), rtol=1e-5, atol=1e-6)
    half = x.to(torch.bfloat16)
    assert loaded.to(torch.bfloat16)(half).dtype == torch.bfloat16


def test_torchscript_of_another_normalization():
    with pytest.raises(RuntimeError, match=r"script supports normalization 'newton_schulz' only, not 'eigh'; use"):
        torch.jit.script(GlobalCovPool2d(6, None, "eigh"))


def test_fx_takes_the_pooling_as_one_node():
    pool = layer(6, 4).eval()
    traced = torch.fx.symbolic_trace(pool)
    assert [node.target.__name__ for node in traced.graph.nodes if node.op == "call_function"] == ["global_cov_pool"]
    x = features(2, 6, 3, 3, dtype=torch.float32)
    assert torch.equal(traced(x), pool(x))


def test_fake_tensors_leave_no_trace():
    """A run without data (memory estimates, graph capture) and a real one after it, at a size new to the process."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    with FakeTensorMode():
        assert global_cov_pool(torch.randn(2, 19, 3, 3)).shape == (2, 190)
    x = features(2, 19, 3, 3)
    expected = global_cov_pool(x)
    for mode in ("real", "fake", "symbolic"):
        graph = make_fx(lambda y: global_cov_pool(y), tracing_mode=mode)(x)
        torch.testing.assert_close(graph(x), expected)
    torch.testing.assert_close(global_cov_pool(x), expected, rtol=0, atol=0)


def test_inference_mode_leaves_no_trace():
    with torch.inference_mode():
        global_cov_pool(features(2, 17, 3, 3))
    x = features(2, 17, 3, 3).requires_grad_()
    global_cov_pool(x).sum().backward()
    assert x.grad.isfinite().all()
