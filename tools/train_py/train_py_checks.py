"""The checks of check_train_py.py: each takes the bench, and returns a few words on what it saw or fails."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import yaml
from train_py_bench import RECIPES, Bench, CheckFailed, same, summary

from timm_gcp.schedules.spec import is_ours, parse

Check = Callable[[Bench], str]
CHECKS: dict[str, Check] = {}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py")
TWO_CPUS = ("--device-modules", "timm_gcp.train_hook", "cpu_ddp")  # the latter lets train.py's DDP take a CPU
SCALE = ("--model", "resnet18_gcp")  # the smallest ResNet, for ways of training that any model would show


def check(name: str) -> Callable[[Check], Check]:
    """Enter a function into `CHECKS`."""

    def enter(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return enter


def expected_rates(recipe: str, epochs: int, updates: int, start: int = 0) -> list[float] | None:
    """Rates that summary.csv should hold at the end of each epoch, from the closed forms; None for timm's schedules."""
    settings = yaml.safe_load((RECIPES / f"{recipe}.yaml").read_text())
    if not is_ours(settings["sched"]):
        return None
    spec = parse(settings["sched"])
    rates = []
    for epoch in range(start, epochs):
        # Stepped per update, the rate has moved on by the end of the epoch.
        t, ticks = ((epoch + 1) * updates, updates) if settings.get("sched_on_updates") else (epoch, 1)
        scale = (spec.stretch_from, epochs) if spec.stretch_from else (1, 1)
        rates.append(settings["lr"] * spec.shape(t * scale[0], ticks * scale[1]))
    return rates


def run_recipe(bench: Bench, recipe: str) -> str:
    """Two epochs of a few updates, with the rates of the closed form."""
    extra: list[str] = []
    environment = {}
    if recipe in ("finetune", "finegrained"):
        weights = bench.weight_folder("resnet18_gcp", num_classes=7)
        extra = ["--model", "resnet18_gcp", "--pretrained-path", str(weights / "model.safetensors")]
    elif recipe.startswith("distill"):
        teacher = bench.weight_folder("resnet50_gcp", num_classes=4)
        extra = ["--kd-model-name", f"local-dir:{teacher}"]
    elif recipe == "secondorder_kron":
        extra, environment = ["--model", "resnet18"], {"TORCHDYNAMO_DISABLE": "1"}
    elif recipe in ("resnet_norm", "resnet_fast"):
        extra = ["--model", {"resnet_norm": "resnet18", "resnet_fast": "resnet101_gcp"}[recipe]]
    rows = summary(bench.start(*bench.arguments(recipe, *extra), **environment))
    same(len(rows), 2, "epochs in summary.csv")
    updates = 4 if recipe.startswith("fmnist") else 3
    expected = expected_rates(recipe, 2, updates)
    if expected is not None:
        same([row["lr"] for row in rows], expected, "rates")
    return f"loss {rows[0]['train_loss']:.3f}, {rows[1]['train_loss']:.3f}, lr {rows[0]['lr']:.4g}, {rows[1]['lr']:.4g}"


def other_recipes() -> list[str]:
    """Recipes that train.py's image classification can run: those that name the hook."""
    return [path.stem for path in sorted(RECIPES.glob("*.yaml")) if "timm_gcp.train_hook" in path.read_text()]


for _name in other_recipes():
    CHECKS[f"recipe {_name}"] = partial(run_recipe, recipe=_name)


@check("two processes, torchrun")
def two_processes(bench: Bench) -> str:
    """Two gloo processes, stepped per epoch."""
    rows = summary(bench.start(*bench.arguments("resnet_adju", *SCALE, *TWO_CPUS, batch=2), launcher=TORCHRUN))
    same([row["lr"] for row in rows], expected_rates("resnet_adju", 2, 3), "rates")
    return f"gloo, loss {rows[-1]['train_loss']:.3f}"


@check("two processes, per update")
def two_processes_per_update(bench: Bench) -> str:
    """Two gloo processes, stepped per update: each sees half the batches."""
    rows = summary(bench.start(*bench.arguments("fmnist_fast", *TWO_CPUS, batch=4), launcher=TORCHRUN))
    same([row["lr"] for row in rows], expected_rates("fmnist_fast", 2, 2), "rates")
    return f"gloo, lr {rows[0]['lr']:.4g}, {rows[1]['lr']:.4g}"


def resume(bench: Bench, recipe: str, updates: int) -> str:
    """From a mid-run checkpoint on, the rates are the uninterrupted run's, bit for bit."""
    whole = bench.start(*bench.arguments(recipe, *(SCALE if recipe.startswith("resnet") else ()), epochs=4))
    checkpoint = whole / "checkpoint-1.pth.tar"
    rest = bench.start(
        *bench.arguments(recipe, *(SCALE if recipe.startswith("resnet") else ()), "--resume", str(checkpoint), epochs=4)
    )
    same([row["epoch"] for row in summary(rest)], [2, 3], "resumed epochs")
    rates = [row["lr"] for row in summary(rest)]
    same(rates, [row["lr"] for row in summary(whole)][2:], "resumed rates")
    same(rates, expected_rates(recipe, 4, updates, start=2), "closed form")
    return f"epochs 2 and 3 again at lr {rates[0]:.4g}, {rates[1]:.4g}"


CHECKS["resume, per epoch"] = partial(resume, recipe="resnet_fast", updates=3)
CHECKS["resume, per update"] = partial(resume, recipe="fmnist_adju", updates=4)


@check("gradient accumulation")
def accumulation(bench: Bench) -> str:
    """Updates are counted, not batches."""
    arguments = bench.arguments("shufflenetv2_adju", "--grad-accum-steps", "2", batch=3)  # 4 batches, 2 updates
    rows = summary(bench.start(*arguments))
    same([row["lr"] for row in rows], expected_rates("shufflenetv2_adju", 2, 2), "rates")
    return "2 updates of 2 batches an epoch"


@check("warm-up and cool-down")
def warmup_cooldown(bench: Bench) -> str:
    """A warm-up before the curve, and its last rate held after it."""
    extra = ("--warmup-epochs", "1", "--warmup-lr", "0.01", "--warmup-prefix", "--cooldown-epochs", "1")
    rates = [row["lr"] for row in summary(bench.start(*bench.arguments("resnet_adju", *SCALE, *extra)))]
    curve = expected_rates("resnet_adju", 2, 3) or []
    same(rates, [0.01, *curve, curve[-1]], "rates")
    return ", ".join(f"{rate:.4g}" for rate in rates)


def option(bench: Bench, extra: tuple[str, ...]) -> str:
    """One of train.py's ways to run, on the smallest ResNet."""
    rows = summary(bench.start(*bench.arguments("resnet_adju", *SCALE, *extra)))
    same([row["lr"] for row in rows], expected_rates("resnet_adju", 2, 3), "rates")
    return f"loss {rows[0]['train_loss']:.3f}, {rows[1]['train_loss']:.3f}"


CHECKS["--amp bfloat16"] = partial(option, extra=("--amp", "--amp-dtype", "bfloat16"))
CHECKS["--model-ema"] = partial(option, extra=("--model-ema", "--model-ema-decay", "0.5"))
CHECKS["--torchcompile"] = partial(option, extra=("--torchcompile",))
CHECKS["--channels-last"] = partial(option, extra=("--channels-last",))
CHECKS["a swapped model"] = partial(option, extra=("--model", "gcp:resnet18", "--model-kwargs", "reduce_dim=16"))


@check("import train")
def import_train(bench: Bench) -> str:
    """As timm's own tests run it."""
    code = "import sys, train; sys.argv[0] = 'train.py'; train.main()"
    rows = summary(bench.start(*bench.arguments("resnet_adju", *SCALE), launcher=("-c", code)))
    same([row["lr"] for row in rows], expected_rates("resnet_adju", 2, 3), "rates")
    return "the name that `train` had bound was rebound"


@check("hook missing")
def hook_missing(bench: Bench) -> str:
    """Without the hook nothing may train."""
    # A GAP model of timm's own, so that the schedule alone can be missed.
    arguments = bench.arguments("resnet_adju", "--model", "resnet18", "--device-modules", "math")
    told = bench.fails(*arguments, expected="Error")
    if "scheduler" not in told and "t_in_epochs" not in told:
        raise CheckFailed(f"failed for another reason: {told}")
    return f"stops before the first update: {told}"


@check("misspelt schedule")
def misspelt(bench: Bench) -> str:
    """A misspelt schedule of ours is answered with the known ones."""
    told = bench.fails(*bench.arguments("resnet_adju", *SCALE, "--sched", "gcp_resnet_adjust"), expected="Known: gcp_")
    return told[:90] + "…"


@check("per-update schedule without --sched-on-updates")
def per_update_only(bench: Bench) -> str:
    """A per-update curve refuses to be stepped per epoch."""
    arguments = bench.arguments("resnet_adju", *SCALE, "--sched", "gcp_shufflenetv2_adju")
    return bench.fails(*arguments, expected="sched_on_updates: true")[:90] + "…"


def same_as_ours(bench: Bench, recipe: str, extra: tuple[str, ...] = ()) -> str:
    """`timm-gcp train` and train.py write the same summary.csv, digit for digit."""
    arguments = bench.arguments(recipe, *extra)
    theirs = summary(bench.start(*arguments))
    ours = summary(bench.start(*arguments, launcher=("-m", "timm_gcp.cli", "train")))
    same(ours, theirs, "summary.csv")
    return f"{len(theirs)} equal rows, {', '.join(theirs[0])}"


for _recipe in ("resnet_adju", "mobilenetv2_fast", "shufflenetv2_norm", "fmnist_fast"):
    _extra = SCALE if _recipe == "resnet_adju" else ()
    CHECKS[f"timm-gcp train = train.py, {_recipe}"] = partial(same_as_ours, recipe=_recipe, extra=_extra)
