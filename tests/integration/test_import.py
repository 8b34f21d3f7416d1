"""What `import timm_gcp` does (registration), what it must not do, what it costs, and which way imports run."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import timm_gcp

PACKAGE = Path(timm_gcp.__file__).parent
MODELS = {
    "resnet18_gcp",
    "resnet34_gcp",
    "resnet50_gcp",
    "resnet50_gcp_d128",
    "resnet101_gcp",
    "mobilenetv2_100_gcp",
    "mobilenetv2_100_gcp_d128",
    "shufflenet_v2_x1_0_gcp",
    "shufflenet_v2_x1_0",
    "gcp_swap",
    "resnet50d_gcp",
    "resnext50_32x4d_gcp",
    "regnety_016_gcp",
    "efficientnet_b0_gcp",
    "tf_efficientnet_lite0_gcp",
    "convnext_tiny_gcp",
    "mobilenetv3_large_100_gcp",
    "mobilenetv4_conv_small_gcp",
    "vit_small_patch16_224_gcp",
    "deit_small_patch16_224_gcp",
    "swin_tiny_patch4_window7_224_gcp",
}
# From the bottom up: a module of the import path may import those of earlier lines and of its own only.
LAYERS = [
    ["common", "common.messages", "common.data_config", "common.program"],
    ["ops", "ops.choice", "ops.constants", "ops.direct", "ops.idle_threads", "ops.precision"],
    ["ops.centring", "ops.eigh", "ops.low_precision", "ops.triangle"],
    ["ops.newton_schulz"],
    ["ops.scalar_functions"],
    ["ops.features", "ops.onnx_refusal", "ops.signed_sqrt", "ops.width"],
    ["ops.products", "ops.spectral", "ops.scalar_check", "ops.dropcov", "ops.sparse_inverse", "ops.singular_power"],
    ["ops.normalization", "ops.cross_covariance"],
    ["ops.pool_options"],
    ["functional"],
    ["models.initial_values", "models.swap_args", "models.swap_check"],
    ["models.last_stage", "models.arrange", "models.in_place"],
    ["models.pooling"],
    ["models.gcp_model", "models.principal"],
    ["models.own_head"],
    ["models.cross_pooling", "models.head", "models.shufflenetv2"],
    ["models.gcp"],
    ["models.swapped"],
    ["models.registered"],
    ["models"],
    ["__init__"],
]
# What models.gcp, models.swapped and models.registered may import beside the layers: weights by name and by layout.
# None of these may import a layer of the models back.
WEIGHTS = {
    "weights",
    "weights.allowed",
    "weights.architectures",
    "weights.authors",
    "weights.backbone_weights",
    "weights.bundled",
    "weights.catalog",
    "weights.checkpoint",
    "weights.classes",
    "weights.container",
    "weights.data_config",
    "weights.fit",
    "weights.hub_errors",
    "weights.layouts",
    "weights.named",
    "weights.record",
    "weights.record_sources",
    "weights.resolve",
    "weights.sanity",
    "weights.store",
    "weights.swap_names",
    "weights.timm_cfgs",
    "weights.triangle_order",
}
# Imported by weights.resolve once weights are to be downloaded, not before; the layers of pyproject.toml hold for them.
LATE = {"weights.download", "weights.fetch"}


def run_python(code: str, *options: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# State that an import must leave alone, by name.
SNAPSHOT = """
import copy, importlib, io, logging, os, random, sys, warnings
from contextlib import redirect_stderr, redirect_stdout
import huggingface_hub, numpy, safetensors, timm, timm.scheduler, torch, torchvision
from timm.models import _registry as registry

def snapshot():
    return dict(
        environment=dict(os.environ), folder=os.getcwd(), path=list(sys.path), filters=list(warnings.filters),
        handlers=list(logging.getLogger().handlers), level=logging.getLogger().level,
        random=(random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),
        threads=torch.get_num_threads(), dtype=torch.get_default_dtype(), grad=torch.is_grad_enabled(),
        tf32=torch.backends.cuda.matmul.allow_tf32, deterministic=torch.are_deterministic_algorithms_enabled(),
        functions=(sys.excepthook, timm.create_model, timm.scheduler.create_scheduler_v2),
    )

def register():
    cfgs = {name: vars(cfg) for name, cfg in registry._model_pretrained_cfgs.items()}
    return dict(models=dict(registry._model_entrypoints), cfgs=copy.deepcopy(cfgs))
"""


def test_only_registers():
    """timm's own names, entry points and configurations stay as they were, ours are new, and nothing else happens."""
    code = (
        SNAPSHOT
        + """
state, before, modules, listed = snapshot(), register(), set(sys.modules), set(timm.list_models())
pretrained = set(timm.list_models(pretrained=True))
printed = io.StringIO()
with redirect_stdout(printed), redirect_stderr(printed):
    import timm_gcp
assert printed.getvalue() == ""
now = snapshot()
assert [key for key in state if state[key] != now[key]] == []
after = register()
for kind, entries in before.items():
    assert [name for name in entries if after[kind][name] != entries[name]] == []
assert not torch.cuda.is_initialized()
assert listed < set(timm.list_models())
assert pretrained <= set(timm.list_models(pretrained=True))
new = set(timm.list_models()) - listed
assert {name.split(".")[0] for name in set(timm.list_models(pretrained=True)) - pretrained} <= new
print(*new)
print(*{name.split(".")[0] for name in set(sys.modules) - modules})
print(*(name.removeprefix("timm_gcp.") for name in sys.modules if name.startswith("timm_gcp.")))
"""
    )
    new, packages, ours = (set(line.split()) for line in run_python(code).splitlines())
    assert new == MODELS
    heavy = {"matplotlib", "sklearn", "scipy", "pandas", "onnx", "onnxruntime", "av", "imagecorruptions", "tqdm", "cv2"}
    assert not packages & heavy
    assert ours - WEIGHTS == {name for layer in LAYERS for name in layer} - {"__init__"}


def test_twice_reloaded_and_anew():
    """Under warnings as errors: a second import, a reload and an import from nothing register anew without doubling."""
    code = (
        SNAPSHOT
        + """
def check():
    assert (timm.list_models(), timm.list_models(pretrained=True)) == once
    model = timm.create_model("resnet18_gcp", num_classes=3, reduce_dim=4).eval()
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 3)

warnings.simplefilter("error")
import timm_gcp
once = timm.list_models(), timm.list_models(pretrained=True)
import timm_gcp
check()
importlib.reload(timm_gcp.models.gcp)
importlib.reload(timm_gcp.models)
importlib.reload(timm_gcp)
check()
for name in [name for name in sys.modules if name.split(".")[0] == "timm_gcp"]:
    del sys.modules[name]
import timm_gcp
check()
"""
    )
    run_python(code)


def test_whole_interpreter_under_error():
    """`python -W error` with nothing imported before, where timm itself survives that."""
    try:
        run_python("import timm_gcp", "-W", "error")
    except AssertionError:
        with pytest.raises(AssertionError):
            run_python("import timm", "-W", "error")


def test_adds_nothing_but_itself():
    """What `import timm_gcp` imports beyond `import timm`: modules of its own and of the standard library."""
    code = """
import sys
import timm
before = set(sys.modules)
import timm_gcp
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""
    added = set(run_python(code).split()) - set(sys.stdlib_module_names)
    assert added - {"timm", "torch"} == {"timm_gcp"}  # parts of these two that `import timm` leaves out


def source(name: str) -> Path:
    """File of a module given by its name within the package; a package's is its `__init__`."""
    path = PACKAGE / name.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imported_modules(name: str) -> set[str]:
    """Modules of the package that `name` imports anywhere in its source, functions included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source(name).read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            module = f"{node.module}."
            if module.startswith("timm_gcp."):
                base = module.removeprefix("timm_gcp.")
                inside = {base + alias.name for alias in node.names if source(base + alias.name).is_file()}
                found |= inside or {base.rstrip(".") or "__init__"}
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("timm_gcp").lstrip(".") or "__init__"
                for alias in node.names
                if alias.name.split(".")[0] == "timm_gcp"
            }
    return found


def test_imports_run_one_way():
    height = {name: level for level, names in enumerate(LAYERS) for name in names}
    for name, level in height.items():
        for other in imported_modules(name):
            if other in height:
                assert height[other] <= level, f"{name} (layer {level}) imports {other} (layer {height[other]})"
            else:
                assert name in ("models.gcp", "models.swapped", "models.registered") and other in WEIGHTS, (
                    f"{name} imports {other}"
                )
    for name in WEIGHTS:
        late = LATE if name == "weights.resolve" else set()
        assert imported_modules(name) <= WEIGHTS | {"common.messages"} | late, name
    loaded = set(run_python("import sys, timm_gcp; print(*sys.modules)").split())
    assert "timm_gcp.weights.resolve" in loaded and not {f"timm_gcp.{name}" for name in LATE} & loaded


def test_no_cycle():
    """Following imports from a module, those inside functions too, never leads back to it."""
    files = [path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py")]
    names = {".".join(path.parts).removesuffix(".__init__") for path in files}
    graph = {name: imported_modules(name) - {name} for name in names}
    for start in names - {"__init__"}:
        seen, front = set(), {*graph[start]}
        while front:
            name = front.pop()
            seen.add(name)
            front |= graph.get(name, set()) - seen
        assert start not in seen, f"{start} imports itself, by way of {sorted(seen)}"


def test_every_listed_module_exists():
    listed = {name for layer in LAYERS for name in layer} | WEIGHTS
    assert {name for name in listed if not source(name).is_file()} == set()
