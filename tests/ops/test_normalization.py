"""Normalisations of your own: values and gradients, what is refused, registered names."""

from __future__ import annotations

import copy
import functools
import pickle

import numpy as np
import pooling_oracles as oracles
import pytest
import timm
import torch
from onnx_errors import refusal
from pooling_oracles import features, value_and_grad
from saturate import Saturate
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

from timm_gcp import GlobalCovPool2d, swap_pooling
from timm_gcp.functional import NORMALIZATIONS, global_cov_pool, register_normalization, triu_vector
from timm_gcp.ops import normalization as table
from timm_gcp.ops.normalization import Held, describe_normalization, resolve_normalization, try_normalization


def shrink(covariance: torch.Tensor) -> torch.Tensor:
    """Half way to the multiple of the identity that has the same trace."""
    identity = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    trace = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    return 0.5 * covariance + 0.5 * trace * identity


class Scale(nn.Module):
    """A weight for each channel, learned."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, dim))

    def forward(self, covariance: torch.Tensor) -> torch.Tensor:
        return covariance * self.weight * self.weight[:, None]


OWN = [shrink, Saturate(), Scale(6)]


@pytest.fixture(autouse=True)
def own_names(monkeypatch):
    monkeypatch.setattr(table, "_registered", {})


@pytest.mark.parametrize("shape", [(2, 5, 4, 4), (2, 9, 2, 2), (1, 1, 4)])
def test_value_is_the_triangle_of_what_it_returns(shape):
    x = features(*shape)
    wanted = triu_vector(shrink(torch.from_numpy(oracles.covariance(x))))
    torch.testing.assert_close(global_cov_pool(x, shrink), wanted, rtol=0, atol=1e-14)


def test_derivatives():
    assert gradcheck(lambda x: global_cov_pool(x, shrink), features(2, 4, 3, 2).requires_grad_())
    assert gradgradcheck(lambda x: global_cov_pool(x, lambda a: a @ a), features(1, 3, 4).requires_grad_())


def test_an_upper_triangular_matrix_will_do():
    def cholesky(covariance):
        return torch.linalg.cholesky(covariance).mT

    pool = GlobalCovPool2d(4, None, cholesky).double()
    x = features(2, 4, 5, 5)
    wanted = np.stack([np.linalg.cholesky(a).T for a in oracles.covariance(x)])
    torch.testing.assert_close(pool(x), oracles.triangle(wanted), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("autocast", [False, True])
def test_covariances_come_in_float32_or_float64(dtype, autocast):
    seen = []

    def keep(covariance):
        seen.append((covariance.dtype, torch.is_autocast_enabled("cpu")))
        return covariance

    x = 300 * features(2, 6, 4, 4, dtype=dtype)
    with torch.autocast("cpu", enabled=autocast):
        value = global_cov_pool(x, keep)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert seen == [(wide, False)]
    assert value.dtype == (wide if autocast else dtype)


def test_what_comes_back_in_another_type_is_converted():
    x = features(2, 4, 3, 3, dtype=torch.float32)
    assert global_cov_pool(x, lambda a: a.double()).dtype == torch.float32


@pytest.mark.parametrize(
    "function", [torch.linalg.inv, torch.linalg.cholesky, lambda a: a / a.norm(dim=(1, 2), keepdim=True)]
)
def test_constant_and_broken_samples(function):
    """Zeros without gradient, NaN in its own sample, for functions that raise or divide by zero there."""
    x = features(4, 3, 6, dtype=torch.float32)
    expected, wanted = value_and_grad(lambda y: global_cov_pool(y, function), x)
    x[1], x[2, 0, 0] = 1.5, torch.inf
    value, grad = value_and_grad(lambda y: global_cov_pool(y, function), x)
    assert torch.count_nonzero(value[1]) == torch.count_nonzero(grad[1]) == 0
    assert value[2].isnan().all()
    for i in (0, 3):
        torch.testing.assert_close(value[i], expected[i])
        torch.testing.assert_close(grad[i], wanted[i])


def test_a_module_is_trained_moved_and_saved_with_the_layer():
    torch.manual_seed(0)
    module = Scale(6)
    model = swap_pooling(timm.create_model("test_resnet", num_classes=3).double(), 6, module)
    assert module.weight.dtype == torch.float64
    assert "global_pool.normalization.weight" in model.state_dict()
    model(torch.randn(2, 3, 64, 64, dtype=torch.float64)).sum().backward()
    assert module.weight.grad.abs().min() > 0
    twin = copy.deepcopy(model)
    assert twin.global_pool.normalization is not module
    twin.reset_classifier(3, "avg")
    twin.reset_classifier(3, "gcp")
    assert torch.equal(twin.global_pool.normalization.weight, module.weight)
    assert model.to(torch.float32).global_pool.normalization.weight.dtype == torch.float32


@pytest.mark.parametrize("own", OWN, ids=describe_normalization)
def test_models_take_it(own):
    for model in (
        timm.create_model("shufflenet_v2_x1_0_gcp", reduce_dim=6, num_classes=3, normalization=own),
        swap_pooling(timm.create_model("test_resnet", num_classes=3), 6, own),
    ):
        model.eval()
        x = torch.randn(2, 3, 64, 64)
        pool = model.global_pool
        with torch.no_grad():
            reduced = pool.reduction(model.forward_features(x))
            torch.testing.assert_close(model(x), model.fc(global_cov_pool(reduced, own)))
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(twin(x), model(x))
        model.reset_classifier(2, "avg")
        model.reset_classifier(2, "gcp")
        assert type(model.global_pool.normalization) is type(own)


@pytest.mark.parametrize(
    ("own", "text"), [(shrink, "shrink"), (Saturate(), r"Saturate\(c=0\.5\)"), (Scale(4), "Scale"), ("log", "'log'")]
)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_torchscript_is_refused_at_once(own, text):
    model = nn.Sequential(GlobalCovPool2d(4, None, own))
    with pytest.raises(
        RuntimeError, match=rf"supports normalization 'newton_schulz' only, not {text}; use torch\.compile"
    ):
        torch.jit.script(model)


@pytest.mark.parametrize("own", OWN, ids=describe_normalization)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_fx_compile_export_and_trace(own):
    pool = GlobalCovPool2d(6, None, own).eval()
    x, other = features(2, 6, 3, 3, dtype=torch.float32), features(5, 6, 2, 2, dtype=torch.float32)
    traced = torch.fx.symbolic_trace(pool)
    assert [node.target.__name__ for node in traced.graph.nodes if node.op == "call_function"] == ["global_cov_pool"]
    sides = {2: torch.export.Dim("height", max=64), 3: torch.export.Dim("width", max=64)}
    exported = torch.export.export(pool, (x,), dynamic_shapes=({0: torch.export.Dim("batch", max=64), **sides},))
    scripted = torch.jit.trace(pool, (x,), check_trace=False)
    for run in (traced, exported.module(), scripted):
        torch.testing.assert_close(run(other), pool(other), rtol=1e-5, atol=1e-6)
    torch.compiler.reset()
    compiled = torch.compile(pool, fullgraph=True, backend="aot_eager")
    grads = [torch.autograd.grad(run(y).square().sum(), y)[0] for run in (pool, compiled) for y in [x.requires_grad_()]]
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("own", OWN, ids=describe_normalization)
def test_vmap_and_grad(own):
    x = features(3, 6, 4, dtype=torch.float32)

    def loss(y):
        return global_cov_pool(y[None], own).square().sum()

    wanted = torch.stack([torch.func.grad(loss)(y) for y in x])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(x), wanted)


def test_onnx_of_a_scalar_function(tmp_path):
    pytest.importorskip("onnxscript", reason="the exporter's own dependency, in the extra 'onnx'")
    pool = GlobalCovPool2d(6, None, Saturate()).eval()
    wanted = refusal(r"Saturate\(c=0\.5\) is computed by an eigendecomposition, which has no ONNX")
    with pytest.raises(Exception, match=wanted):
        torch.onnx.export(pool, (torch.randn(2, 6, 3, 3),), dynamo=True, verbose=False)


def test_printed():
    assert "normalization=shrink, n_iter=5" in repr(GlobalCovPool2d(4, None, shrink))
    assert "normalization=Saturate(c=0.5), n_iter=5" in repr(GlobalCovPool2d(4, None, Saturate()))
    assert "normalization=Scale, n_iter=5" in repr(GlobalCovPool2d(4, None, Scale(4)))
    assert "partial" in describe_normalization(functools.partial(shrink))


NAMES = (
    "choose one of 'newton_schulz', 'eigh', 'power', 'log', 'none', 'signed_sqrt_l2', 'dropcov', 'isice', "
    "or give a ScalarFunction or a"
)


@pytest.mark.parametrize("given", ["svd", None, 3, ["log"], torch.eye(2)])
def test_not_a_normalization(given):
    for use in (lambda: global_cov_pool(torch.zeros(1, 2, 3), given), lambda: GlobalCovPool2d(4, 2, given)):
        with pytest.raises(ValueError, match=f"normalization is .*; {NAMES} callable"):
            use()


def test_a_class_in_place_of_an_instance():
    for given in (Saturate, Scale):
        with pytest.raises(ValueError, match=rf"is the class {given.__name__}; give an instance, {given.__name__}\("):
            GlobalCovPool2d(4, 2, given)


BAD = {
    "no tensor": (lambda a: None, TypeError, r"must return a floating-point tensor of .* shape .*, not NoneType"),
    "two tensors": (torch.linalg.eigh, TypeError, r"linalg_eigh must return .*, not linalg_eigh"),
    "integers": (lambda a: a.int(), TypeError, r"must return a floating-point tensor .*, not torch\.int32"),
    "vectors": (lambda a: a.flatten(1), ValueError, r"must return .* shape \(2, 3, 3\), not \(2, 9\)"),
    "one matrix": (lambda a: a.mean(0), ValueError, r"must return .* shape \(2, 3, 3\), not \(3, 3\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_returns(case):
    """When the layer is made, and at each call of the function."""
    function, error, text = BAD[case]
    for use in (lambda: GlobalCovPool2d(3, None, function), lambda: global_cov_pool(torch.randn(2, 3, 5), function)):
        with pytest.raises(error, match=text) as caught:
            use()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (torch.linalg.cholesky, r"linalg_cholesky returns a matrix that is not symmetric; the upper triangle alone is"),
        (lambda a: a / 0, r"<lambda> gives NaN or Inf for a well-conditioned covariance"),
        (lambda a: a @ torch.ones(7, 7), r"fails for covariances \(2, 3, 3\): .*7"),
        (lambda a, b: a, r"fails for covariances \(2, 3, 3\): .*missing 1 required positional argument"),
        (Scale(4), r"Scale fails for covariances \(2, 3, 3\)"),
        (Saturate(-1.0), r"Saturate\(c=-1\.0\)"),
    ],
)
def test_tried_out_when_the_layer_is_made(function, text):
    model = timm.create_model("test_resnet", num_classes=3)
    layers = repr(model)
    for use in (lambda: GlobalCovPool2d(5, 3, function), lambda: swap_pooling(model, 3, function)):
        with pytest.raises(ValueError, match=text) as caught:
            use()
        assert "\n" not in str(caught.value)
    assert repr(model) == layers


def test_trying_out_leaves_no_trace():
    class Counting(Scale):
        modes: list = []  # noqa: RUF012

        def forward(self, covariance):
            self.modes.append((self.training, torch.is_grad_enabled()))
            covariance.mul_(1)
            return super().forward(covariance)

    module = Counting(3)
    state = torch.get_rng_state()
    try_normalization(module, 3)
    assert module.modes == [(False, False)]
    assert module.training
    assert torch.equal(torch.get_rng_state(), state)


def test_meta_device():
    pool = GlobalCovPool2d(6, 4, Scale(4), device="meta")
    assert pool.normalization.weight.device.type == "meta"
    with torch.device("meta"):
        pool = GlobalCovPool2d(6, 4, shrink)
    assert pool(torch.empty(2, 6, 3, 3, device="meta")).shape == (2, 10)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"iteration_dtype": "bfloat16"},
            r"iteration_dtype is for normalization 'newton_schulz'; shrink has no iteration",
        ),
        ({"form": "spectral"}, "form is 'spectral'; choose one of 'auto'"),
        ({"side": "left"}, "side is 'left'"),
    ],
)
def test_options_of_a_callable(options, text):
    with pytest.raises(ValueError, match=text):
        global_cov_pool(torch.zeros(1, 3, 4), shrink, **options)
    if "form" in options:
        with pytest.raises(ValueError, match="form is 'products'; choose one of 'auto', 'spectral'"):
            global_cov_pool(torch.zeros(1, 3, 4), Saturate(), form="products")


@pytest.mark.parametrize("own", OWN, ids=describe_normalization)
def test_a_registered_name_stands_for_it(own):
    register_normalization("mine", own)
    x = features(2, 6, 4, dtype=torch.float32)
    assert torch.equal(global_cov_pool(x, "mine"), global_cov_pool(x, own))
    pool = GlobalCovPool2d(6, None, "mine")
    assert torch.equal(pool(x.unflatten(2, (2, 2))), global_cov_pool(x, own))
    assert "normalization='mine'" in repr(pool)
    assert table.registered_name(own) == "mine"
    assert table.registered_name(sum) is sum
    with pytest.raises(ValueError, match=r"'isice', 'mine', or give a ScalarFunction"):
        resolve_normalization("yours")


def test_registered_again():
    """The same definition, as when a module is imported anew; another one is refused."""
    register_normalization("mine", Saturate(0.5))
    register_normalization("mine", Saturate(0.5))
    for other in (Saturate(0.1), shrink):
        with pytest.raises(
            ValueError, match="the name 'mine' stands for another normalization; choose one beside 'newton"
        ):
            register_normalization("mine", other)
    register_normalization("other", shrink)
    again = type(shrink)(shrink.__code__, shrink.__globals__)
    register_normalization("other", again)
    assert resolve_normalization("other") is again


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("log", shrink, "the name 'log' stands for another normalization; choose one beside 'newton_schulz'"),
        ("my root", shrink, "is registered under an identifier such as 'my_root', got 'my root'"),
        (3, shrink, "is registered under an identifier such as 'my_root', got 3"),
        ("mine", "log", "'mine' must stand for a ScalarFunction or a callable, got the name 'log'"),
        ("mine", Saturate, "is the class Saturate; give an instance"),
        ("mine", 3, "normalization is 3; choose one of"),
    ],
)
def test_bad_registrations(name, given, text):
    with pytest.raises(ValueError, match=text):
        register_normalization(name, given)
    assert table._registered == {}


def test_names_that_come_with_the_package_need_no_trial():
    for name in NORMALIZATIONS:
        assert resolve_normalization(name) == name
        try_normalization(name, 4)
    assert resolve_normalization(Held(shrink)) is shrink
