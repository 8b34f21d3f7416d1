"""Compilers, exporters and function transforms: the same numbers, at batch sizes other than the one captured."""

from __future__ import annotations

import copy
import io
import shutil

import pytest
import timm
import torch
import torch._inductor.config
from onnx_errors import refusal
from pooling_oracles import WAYS, features
from timm.models._efficientnet_builder import decode_arch_def
from torch import nn

from timm_gcp import GlobalCovPool2d
from timm_gcp.functional import NORMALIZATIONS, global_cov_pool

# The three architectures with few and narrow blocks: tracing time goes with the number of operations.
SMALL: dict[str, dict] = {
    "resnet18_gcp": {"channels": (8, 8, 16, 16)},
    "mobilenetv2_100_gcp": {"block_args": decode_arch_def([["ds_r1_k3_s1_c16"], ["ir_r2_k3_s2_e6_c24"]])},
    "shufflenet_v2_x1_0_gcp": {"repeats": (2, 2, 2), "channels": (8, 16, 32, 32, 64)},
}


def small(name: str, **kwargs) -> nn.Module:
    """At 64 px with D = 8: maps of 4×4 (ResNet) and 16×16 take the D×D side, the 2×2 of ShuffleNetV2 the N×N side."""
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=10, **{"reduce_dim": 8, **copy.deepcopy(SMALL[name]), **kwargs}).eval()


def images(batch: int) -> torch.Tensor:
    return torch.randn(batch, 3, 64, 64, generator=torch.Generator().manual_seed(batch))


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("name", SMALL)
def test_compile(name):
    """One graph, no break; another batch size recompiles to a dynamic one, which serves every further size."""
    from torch._dynamo.testing import CompileCounterWithBackend

    model = small(name)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    with torch.no_grad():
        for batch in (2, 3, 5):
            close(compiled(images(batch)), model(images(batch)))
    assert counter.frame_count <= 2


def test_compiled_training_step():
    """Gradients of every parameter and running statistics of a network in training mode."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 12, 5, 4), nn.BatchNorm2d(12), nn.ReLU(), GlobalCovPool2d(12, 8), nn.Linear(36, 5)
    )
    twin = copy.deepcopy(network)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    for run in (network, compiled):
        run(images(4)).square().mean().backward()
    for (name, a), b in zip(network.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-5, msg=name)
    for (name, a), b in zip(network.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(b, a, msg=name)


@pytest.mark.parametrize("size", [2, 6])
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile's default backend calls a C++ compiler")
@torch._inductor.config.patch(compile_threads=1)  # no pool of compiling processes in a test run
def test_compile_by_the_default_backend(size):
    """The layer, forward and backward, through the code that Inductor generates."""
    pool = GlobalCovPool2d(12, 8).eval()
    compiled = torch.compile(pool, fullgraph=True, dynamic=True)
    for batch in (2, 3):
        x = features(batch, 12, size, size, dtype=torch.float32)
        grads = []
        for run in (pool, compiled):
            y = x.clone().requires_grad_()
            value = run(y)
            (grad,) = torch.autograd.grad(value.square().sum(), y)
            grads.append((value, grad))
        close(grads[1][0], grads[0][0])
        close(grads[1][1], grads[0][1])


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_compile_every_normalization(normalization):
    compiled = torch.compile(
        lambda y: global_cov_pool(y, normalization), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for batch in (2, 3):
        x = features(batch, 6, 4, 4)
        torch.testing.assert_close(compiled(x), global_cov_pool(x, normalization), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("normalization", "size"), [("eigh", 2), ("power", 4), ("log", 2)])
def test_compiled_gradient_of_an_eigendecomposition(normalization, size):
    def loss(y):
        return global_cov_pool(y, normalization).square().sum()

    x = features(2, 6, size, size).requires_grad_()
    (wanted,) = torch.autograd.grad(loss(x), x)
    (found,) = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(x), x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_torchscript(name):
    model = small(name)
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(model), buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    with torch.no_grad():
        for batch in (1, 3):
            close(loaded(images(batch)), model(images(batch)))


@pytest.mark.parametrize("name", SMALL)
def test_export(name):
    model = small(name)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (images(2),), dynamic_shapes=({0: batch},))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()
    with torch.no_grad():
        for size in (1, 5):
            close(loaded(images(size)), model(images(size)))


@pytest.mark.parametrize("normalization", ["eigh", "power", "log", "none", "signed_sqrt_l2", "dropcov", "isice"])
def test_export_every_normalization(normalization):
    pool = GlobalCovPool2d(6, None, normalization).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(pool, (features(2, 6, 4, 4),), dynamic_shapes=({0: batch},))
    x = features(5, 6, 4, 4)
    torch.testing.assert_close(program.module()(x), pool(x), rtol=0, atol=1e-12)


def dynamic(least: int, most: int) -> tuple[dict[int, object]]:
    """Any batch, height and width."""
    sides = {2: torch.export.Dim("height", min=least, max=most), 3: torch.export.Dim("width", min=least, max=most)}
    return ({0: torch.export.Dim("batch", min=1, max=64), **sides},)


@pytest.mark.parametrize(
    ("normalization", "size", "strict"),
    [(name, 2, False) for name in NORMALIZATIONS]
    + [("newton_schulz", 5, False), ("newton_schulz", 2, True), ("eigh", 5, True)],
)
def test_export_with_any_height_and_width(normalization, size, strict):
    """From fewer positions than channels to more, one position included, whatever the example's side was."""
    pool = GlobalCovPool2d(12, None, normalization).eval()
    example = features(2, 12, size, size + 1)
    program = torch.export.export(pool, (example,), dynamic_shapes=dynamic(1, 64), strict=strict).module()
    for shape in [(1, 12, 1, 1), (3, 12, 2, 2), (2, 12, 3, 4), (2, 12, 7, 7)]:
        x = features(*shape)
        torch.testing.assert_close(program(x), pool(x), rtol=0, atol=1e-11)


def test_export_takes_the_smaller_side_where_it_is_known():
    """A static 2×2 map, and a range that ends below D: the iteration's identity is N×N there."""
    pool = GlobalCovPool2d(12, None).eval()
    for shapes, gram in [(None, True), (dynamic(1, 3), True), (dynamic(1, 4), False)]:
        program = torch.export.export(pool, (torch.randn(2, 12, 2, 3),), dynamic_shapes=shapes)
        graphs = [module.graph for module in program.graph_module.modules() if hasattr(module, "graph")]
        sizes = [node.args[0] for graph in graphs for node in graph.nodes if "eye" in str(node.target)]
        assert sizes
        assert all((size != 12) == gram for size in sizes)


@pytest.mark.parametrize("name", ["resnet18_gcp", "shufflenet_v2_x1_0_gcp"])
def test_export_of_a_model_with_any_height_and_width(name):
    """Last maps from 2×2 to 14×13 at D = 8; a map of one position along a side is a size of its own to torch.export."""
    model = small(name)
    program = torch.export.export(model, (images(2),), dynamic_shapes=dynamic(33, 512)).module()
    with torch.no_grad():
        for height, width in [(33, 33), (64, 96), (224, 200)]:
            x = torch.randn(3, 3, height, width)
            close(program(x), model(x))


def to_onnx(module: nn.Module, example: torch.Tensor, path, names: dict[int, str] | None = None) -> object:
    pytest.importorskip("onnxscript", reason="the exporter's own dependency, in the extra 'onnx'")
    onnxruntime = pytest.importorskip("onnxruntime", reason="in the extra 'onnx'")
    shapes = (names or {0: "batch"},)
    program = torch.onnx.export(module, (example,), dynamo=True, dynamic_shapes=shapes, verbose=False)
    program.save(path)
    return onnxruntime.InferenceSession(path)


def run_onnx(session, x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_onnx(tmp_path):
    """Exported at two images, run by onnxruntime at others."""
    model = small("shufflenet_v2_x1_0_gcp")
    session = to_onnx(model, images(2), tmp_path / "model.onnx")
    with torch.no_grad():
        for batch in (1, 2, 5):
            close(run_onnx(session, images(batch)), model(images(batch)))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_onnx_with_any_height_and_width(tmp_path):
    """The same with images of other sizes: last maps of 2×2, N < D, to 14×13."""
    model = small("resnet18_gcp")
    session = to_onnx(model, images(2), tmp_path / "model.onnx", {0: "batch", 2: "height", 3: "width"})
    with torch.no_grad():
        for shape in [(1, 3, 32, 32), (5, 3, 64, 96), (2, 3, 224, 200)]:
            x = torch.randn(shape)
            close(run_onnx(session, x), model(x))


@pytest.mark.parametrize("size", [2, 6])
@pytest.mark.parametrize("normalization", ["newton_schulz", "none", "signed_sqrt_l2", "dropcov", "isice"])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_onnx_layer(normalization, size, tmp_path):
    """Both sides; a dead sample gives zeros there too."""
    pool = GlobalCovPool2d(12, 8, normalization).eval()
    session = to_onnx(pool, features(2, 12, size, size, dtype=torch.float32), tmp_path / "pool.onnx")
    x = features(3, 12, size, size, dtype=torch.float32)
    x[1] = 0.5
    with torch.no_grad():
        close(run_onnx(session, x), pool(x))
    assert torch.count_nonzero(run_onnx(session, x)[1]) == 0


@pytest.mark.parametrize("normalization", ["eigh", "power", "log"])
def test_onnx_of_an_eigendecomposition(normalization, tmp_path):
    pool = GlobalCovPool2d(6, None, normalization).eval()
    with pytest.raises(
        Exception, match=refusal(rf"'{normalization}' is computed by an eigendecomposition, which has no ONNX")
    ):
        to_onnx(pool, torch.randn(2, 6, 4, 4), tmp_path / "pool.onnx")
    assert torch.export.export(pool, (torch.randn(2, 6, 4, 4),))  # the refusal is ONNX's, not export's


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_vmap_and_grad_by_normalization(normalization):
    x = features(5, 2, 4, 9)

    def pool(y):
        return global_cov_pool(y, normalization)

    wanted = torch.stack([pool(y) for y in x])
    torch.testing.assert_close(torch.func.vmap(pool)(x), wanted, rtol=0, atol=1e-12)
    check_per_sample_gradients(pool, x)


@pytest.mark.parametrize(("form", "side"), WAYS)
def test_vmap_and_grad_by_form(form, side):
    check_per_sample_gradients(lambda y: global_cov_pool(y, form=form, side=side), features(3, 2, 4, 6))


def check_per_sample_gradients(pool, x: torch.Tensor) -> None:
    """vmap over grad, and jacrev, against autograd one by one."""

    def loss(y):
        return pool(y).square().sum()

    wanted = []
    for y in x:
        y = y.clone().requires_grad_()
        loss(y).backward()
        wanted.append(y.grad)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(x), torch.stack(wanted), rtol=0, atol=1e-11)
    jacobian = torch.func.jacrev(pool)(x[0])
    by_autograd = torch.autograd.functional.jacobian(pool, x[0])
    torch.testing.assert_close(jacobian, by_autograd, rtol=0, atol=1e-11)


@pytest.mark.parametrize("form", ["spectral", "products", "compose"])
def test_second_derivatives_by_transforms(form):
    x = features(1, 3, 4)

    def loss(y):
        return global_cov_pool(y, form=form).square().sum()

    hessian = torch.func.jacrev(torch.func.jacrev(loss))(x)
    torch.testing.assert_close(hessian, torch.autograd.functional.hessian(loss, x), rtol=0, atol=1e-10)


def test_per_sample_gradients_of_a_model():
    """What second-order methods and privacy tools do: functional_call under vmap over grad."""
    model = small("shufflenet_v2_x1_0_gcp", reduce_dim=4)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def loss(params, image):
        return torch.func.functional_call(model, (params, buffers), (image[None],)).square().sum()

    x = images(2)
    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for i in range(2):
        model.zero_grad()
        model(x[i : i + 1]).square().sum().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(grads[name][i], parameter.grad, rtol=1e-3, atol=1e-5, msg=name)


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_deterministic_algorithms(deterministic, normalization):
    """No operation without a deterministic form, and the same bits twice."""
    torch.manual_seed(0)
    model = small("shufflenet_v2_x1_0_gcp", normalization=normalization).train()
    twin = copy.deepcopy(model)
    for run in (model, twin):
        run(images(4)).square().sum().backward()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
