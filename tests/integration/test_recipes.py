"""Every recipe: known keys, the paper's constants, and what timm's own functions make of it."""

from __future__ import annotations

import argparse
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml
from timm.data import create_transform, resolve_data_config
from timm.data.transforms import RandomResizedCropAndInterpolation
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2, optimizer_kwargs
from timm.scheduler import create_scheduler_v2, scheduler_kwargs
from torch import nn
from torchvision import transforms

import timm_gcp
from timm_gcp.schedules.curves import TABLE_3
from timm_gcp.schedules.scheduler import create
from timm_gcp.schedules.spec import is_ours, parse
from timm_gcp.weights.authors import ROWS

FOLDER = Path(__file__).parents[2] / "recipes"
OPTIONS = json.loads((Path(__file__).parents[1] / "data" / "train_py_options.json").read_text())
ALL = sorted(path.stem for path in FOLDER.glob("*.yaml"))
PAPER = sorted(
    f"{net}_{rate}" for net in ("resnet", "mobilenetv2", "shufflenetv2") for rate in ("norm", "fast", "adju")
)
FURTHER = [
    "distill_d128",
    "distill_d64",
    "finegrained",
    "finetune",
    "finetune_swap",
    "fmnist_adju",
    "fmnist_fast",
    "fmnist_norm",
]
FURTHER += ["poly_sweep", "resnet_norm_ds", "secondorder_kron"]
WEIGHT_DECAY = {"resnet": 1e-4, "mobilenetv2": 4e-5, "shufflenetv2": 4e-5}


@cache
def text(name: str) -> str:
    return (FOLDER / f"{name}.yaml").read_text()


def recipe(name: str) -> dict[str, Any]:
    return yaml.safe_load(text(name))


def namespace(name: str, **changes: Any) -> argparse.Namespace:
    """What train.py's parser makes of the recipe: its own defaults, the recipe over them."""
    return argparse.Namespace(**{**OPTIONS["defaults"], **recipe(name), **changes})


def small_model(args: argparse.Namespace) -> nn.Module:
    """The recipe's model as train.py creates it."""
    return timm.create_model(
        args.model,
        in_chans=args.in_chans or 3,
        num_classes=args.num_classes or 10,
        drop_rate=args.drop,
        global_pool=args.gp,
        **args.model_kwargs,
    )


def unknown_keys(keys: dict[str, Any]) -> list[str]:
    return [key for key in keys if key not in OPTIONS["defaults"]]


def test_the_recipes_are_all_there():
    assert set(PAPER) | set(FURTHER) <= set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_every_key_is_an_option_of_train_py(name):
    assert unknown_keys(recipe(name)) == []
    assert unknown_keys({**recipe(name), "wieght_decay": 0.1}) == ["wieght_decay"]


def test_the_oldest_timm_is_one_number():
    oldest = re.search(r'"timm>=([\d.]+)"', (FOLDER.parent / "pyproject.toml").read_text()).group(1)
    for name in PAPER + FURTHER:
        assert f"timm's own ({oldest} or newer)" in text(name), name


def test_no_key_has_gone_from_train_py():
    newest = list(OPTIONS["read_from"])[-1]
    for name in PAPER + FURTHER:
        for key in recipe(name):
            assert OPTIONS["versions"][key].endswith(f" to {newest}"), (name, key)


@pytest.mark.parametrize("name", ALL)
def test_recipes_are_flat_and_numbers_are_numbers(name):
    values = recipe(name)
    for key, value in values.items():
        assert not isinstance(value, dict) or key in ("model_kwargs", "opt_kwargs")
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str):  # `1e-4` without a point is text to YAML
                with pytest.raises(ValueError, match="could not convert"):
                    float(item)
        default = OPTIONS["defaults"][key]
        if isinstance(default, bool):
            assert isinstance(value, bool), key


@pytest.mark.parametrize("name", PAPER + FURTHER)
def test_the_opening_comment_says_what_how_where_and_how_well(name):
    opening = text(name).split("\n\n", 1)[0]
    assert all(line.startswith("#") for line in opening.splitlines())
    for command in ("python train.py", "torchrun --nproc-per-node="):
        assert f"{command}" in opening and f"-c recipes/{name}.yaml" in opening
    assert "Hardware" in opening
    assert re.search("Accuracy|accuracy|compare with|measured", opening)


@pytest.mark.parametrize("name", PAPER + FURTHER)
def test_the_torchrun_command_keeps_the_total_batch(name):
    found = re.search(r"torchrun --nproc-per-node=(\d+) .*--batch-size (\d+)", text(name))
    assert int(found.group(1)) * int(found.group(2)) == recipe(name)["batch_size"]


def sched_of(name: str) -> str:
    """MobileNetV2's LR_adju is the released script's curve; docs/recipes.md says why."""
    return "gcp_mobilenetv2_adju_released" if name == "mobilenetv2_adju" else f"gcp_{name}"


@pytest.mark.parametrize("name", PAPER)
def test_constants_are_the_papers(name):
    args, row = namespace(name), TABLE_3[sched_of(name)]
    assert (args.sched, args.lr, args.epochs, args.batch_size) == (
        sched_of(name),
        row.base_lr,
        row.epochs,
        row.batch_size,
    )
    assert args.sched_on_updates == row.per_update == name.startswith("shufflenetv2")
    assert (args.grad_accum_steps, args.epoch_repeats, args.clip_grad, args.model_ema) == (1, 0, None, False)
    assert (args.mixup, args.cutmix, args.aa, args.reprob, args.jsd_loss, args.bce_loss) == (
        0,
        0,
        None,
        0,
        False,
        False,
    )


@pytest.mark.parametrize("name", PAPER)
def test_the_accuracies_are_the_release_s(name):
    suffix = {"norm": "LRnorm", "fast": "LRfast", "adju": "LRadju"}[name.split("_")[1]]
    models = {"resnet": "resnet", "mobilenetv2": "mobilenetv2_100", "shufflenetv2": "shufflenet_v2"}[name.split("_")[0]]
    published = {
        row[0]: f"{row[2]:.2f} / {row[3]:.2f}" for row in ROWS if suffix in row[1] and row[0].startswith(models)
    }
    listed = dict(re.findall(r"^#   (\w+) .*?(\d\d\.\d\d / \d\d\.\d\d)$", text(name), flags=re.MULTILINE))
    assert published and listed == published


PAPER_TABLE_2 = {  # Table 2 and, for the second line of each pair of networks, Table 5
    ("mobilenetv2_norm", "mobilenetv2_100"): "71.58 / 90.30",
    ("mobilenetv2_norm", "mobilenetv2_100_gcp"): "74.36 / 91.90",
    ("mobilenetv2_norm", "mobilenetv2_100_gcp_d128"): "73.28 / 91.30",
    ("mobilenetv2_adju", "mobilenetv2_100_gcp"): "73.97 / 91.54",
    ("mobilenetv2_adju", "mobilenetv2_100_gcp_d128"): "72.58 / 90.90",
    ("shufflenetv2_norm", "shufflenet_v2_x1_0"): "67.96 / 87.84",
    ("shufflenetv2_adju", "shufflenet_v2_x1_0_gcp"): "71.17 / 89.74",
    ("resnet_norm", "resnet18"): "70.47 / 89.62",
    ("resnet_norm", "resnet34"): "74.19 / 91.61",
    ("resnet_norm", "resnet50"): "76.17 / 92.93",
    ("resnet_norm", "resnet50_gcp"): "78.56 / 94.16",
    ("resnet_norm", "resnet50_gcp_d128"): "78.21 / 93.93",
    ("resnet_norm", "resnet101"): "77.67 / 93.89",
    ("resnet_fast", "resnet50_gcp"): "75.31 / 92.15",
    ("resnet_adju", "resnet18_gcp"): "74.86 / 91.81",
    ("resnet_adju", "resnet34_gcp"): "76.81 / 93.09",
    ("resnet_adju", "resnet50_gcp"): "78.03 / 93.95",
    ("resnet_adju", "resnet50_gcp_d128"): "77.64 / 93.67",
    ("resnet_adju", "resnet101_gcp"): "79.18 / 94.51",
}


def test_the_accuracies_are_the_papers():
    listed = {
        (name, model): figures
        for name in PAPER
        for model, figures in re.findall(r"^#   (\w+) +(\d\d\.\d\d / \d\d\.\d\d)  +\d", text(name), flags=re.MULTILINE)
    }
    assert listed == PAPER_TABLE_2


@pytest.mark.parametrize("name", PAPER)
def test_optimizer_is_plain_momentum_sgd_with_decay_on_everything(name):
    args = namespace(name)
    model = small_model(args)
    optimizer = create_optimizer_v2(model, **optimizer_kwargs(cfg=args), **args.opt_kwargs)
    assert type(optimizer) is torch.optim.SGD
    expected = WEIGHT_DECAY[name.split("_")[0]]
    decayed = 0
    for group in optimizer.param_groups:
        assert (group["momentum"], group["nesterov"], group["dampening"]) == (0.9, False, 0)
        assert (group["weight_decay"], group["lr"], group.get("lr_scale", 1)) == (expected, args.lr, 1)
        decayed += len(group["params"])
        assert group["fused"] is True
    assert decayed == len(list(model.parameters()))
    # The deviation is needed: by default timm leaves biases and batch-norm alone.
    spared = create_optimizer_v2(small_model(args), **optimizer_kwargs(cfg=args))
    assert {group["weight_decay"] for group in spared.param_groups} == {0.0, expected}


@pytest.mark.parametrize("name", PAPER)
def test_model_has_the_papers_head_and_dropout(name):
    args = namespace(name)
    model = small_model(args)
    assert model.global_pool.out_features == 256 * 257 // 2
    assert model.drop_rate == (0.2 if name.startswith("mobilenetv2") else 0.0)
    if name.startswith("resnet"):
        for variant in ("resnet18", "resnet18_gcp"):
            twin = timm.create_model(variant, **args.model_kwargs)
            assert all(block.bn2.weight.eq(1).all() for block in twin.layer4.children())


@pytest.mark.parametrize("name", PAPER)
def test_loss_has_no_smoothing_and_warm_up_is_off(name):
    args = namespace(name)
    loss = LabelSmoothingCrossEntropy(args.smoothing) if args.smoothing else nn.CrossEntropyLoss()  # as train.py picks
    logits, target = torch.randn(4, 10, dtype=torch.float64), torch.arange(4)
    assert loss(logits, target).item() == pytest.approx(
        -logits.log_softmax(1)[range(4), target].mean().item(), rel=1e-14
    )
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=args.lr)
    scheduler, epochs = create(optimizer, **scheduler_kwargs(args), updates_per_epoch=5)
    row = TABLE_3[sched_of(name)]
    assert (scheduler.warmup_t, epochs, optimizer.param_groups[0]["lr"]) == (0, row.epochs, row.lr(0))


@pytest.mark.parametrize("name", PAPER)
def test_training_images_are_torchvisions(name):
    args = namespace(name)
    config = resolve_data_config(vars(args), model=timm.create_model("resnet50", num_classes=2), verbose=False)
    assert config["input_size"] == (3, 224, 224)
    built = create_transform(
        config["input_size"],
        is_training=True,
        no_aug=args.no_aug,
        train_crop_mode=args.train_crop_mode,
        scale=args.scale,
        ratio=args.ratio,
        hflip=args.hflip,
        vflip=args.vflip,
        color_jitter=args.color_jitter,
        auto_augment=args.aa,
        interpolation=args.train_interpolation,
        mean=config["mean"],
        std=config["std"],
        re_prob=args.reprob,
    ).transforms
    kinds = [type(step) for step in built]
    jitter = [transforms.ColorJitter] if name.startswith("shufflenetv2") else []
    assert kinds[:-2] == [RandomResizedCropAndInterpolation, transforms.RandomHorizontalFlip, *jitter]
    reference = transforms.RandomResizedCrop(224)
    assert tuple(built[0].scale) == reference.scale
    assert tuple(built[0].ratio) == pytest.approx(reference.ratio)
    assert built[0].interpolation == reference.interpolation == transforms.InterpolationMode.BILINEAR
    assert built[1].p == 0.5
    for step in built:
        if isinstance(step, transforms.ColorJitter):
            expected = transforms.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4)
            for part in ("brightness", "contrast", "saturation", "hue"):
                assert getattr(step, part) == getattr(expected, part)
    assert torch.equal(built[-1].mean.flatten(), torch.tensor([0.485, 0.456, 0.406]))
    assert torch.equal(built[-1].std.flatten(), torch.tensor([0.229, 0.224, 0.225]))


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("model", ["resnet50", "mobilenetv2_100", "resnet18_gcp"])
def test_validation_images_are_torchvisions_whatever_the_model_says(name, model):
    args = namespace(name, model=model)
    config = resolve_data_config(vars(args), model=timm.create_model(model, num_classes=2), verbose=False)
    built = create_transform(
        config["input_size"], interpolation=config["interpolation"], crop_pct=config["crop_pct"], mean=config["mean"]
    ).transforms
    assert (built[0].size, built[1].size) == (256, (224, 224))
    assert built[0].interpolation == transforms.InterpolationMode.BILINEAR


@pytest.mark.parametrize("name", ALL)
def test_schedules_are_built_by_the_factory(name):
    args = namespace(name)
    assert args.device_modules and args.device_modules[0] == "timm_gcp.train_hook"
    if not is_ours(args.sched):
        return
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=args.lr)
    scheduler, epochs = create(optimizer, **scheduler_kwargs(args), updates_per_epoch=5)
    assert epochs == args.epochs
    assert scheduler.t_in_epochs != parse(args.sched).per_update


@pytest.mark.parametrize(("rate", "epochs"), [("norm", 24), ("fast", 6), ("adju", 10)])
def test_fashion_mnist_is_one_tenth_of_the_paper(rate, epochs):
    args, row = namespace(f"fmnist_{rate}"), TABLE_3[f"gcp_shufflenetv2_{rate}"]
    assert args.epochs == epochs == row.epochs // 10
    assert args.lr == row.base_lr * args.batch_size / row.batch_size
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=args.lr)
    scheduler, _ = create(optimizer, **scheduler_kwargs(args), updates_per_epoch=5)
    assert [scheduler._get_lr(t)[0] for t in range(5 * epochs)] == pytest.approx(
        [args.lr * (1 - t / (5 * epochs)) for t in range(5 * epochs)], rel=1e-12
    )
    model = small_model(args).eval()
    with torch.inference_mode():
        assert model.forward_features(torch.zeros(1, 1, args.img_size, args.img_size)).shape[-2:] == (4, 4)


def test_finetuning_slows_the_backbone_down():
    args = namespace("finetune", model="resnet18_gcp", num_classes=3)
    model = small_model(args)
    optimizer = create_optimizer_v2(model, **optimizer_kwargs(cfg=args), **args.opt_kwargs)
    create(optimizer, "gcp_exp:rate=0.9", num_epochs=3)
    rate = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rate[id(model.fc.weight)] == args.lr
    assert rate[id(model.conv1.weight)] == pytest.approx(args.lr / 25, rel=0.02)
    assert len(set(rate.values())) > 5


def test_fine_grained_training_is_the_head_first_and_then_all_layers():
    args = namespace("finegrained", model="resnet18_gcp", num_classes=3)
    model = small_model(args)
    optimizer = create_optimizer_v2(model, **optimizer_kwargs(cfg=args), **args.opt_kwargs)
    scheduler, epochs = create_scheduler_v2(optimizer, **scheduler_kwargs(args), updates_per_epoch=5)
    factor = {id(p): group["lr_scale"] for group in optimizer.param_groups for p in group["params"]}
    assert factor[id(model.fc.weight)] == factor[id(next(model.global_pool.parameters()))] == 1
    assert {factor[id(p)] for p in model.layer4.parameters()} == {factor[id(model.conv1.weight)]} == {0.2}
    assert {scheduler._get_lr(epoch)[0] for epoch in range(epochs)} == {args.lr}

    option, value = re.search(r"--(layer-decay-no-opt-scale) (\S+)", text("finegrained")).groups()
    first = argparse.Namespace(**{**vars(args), option.replace("-", "_"): float(value)})
    create_optimizer_v2(model, **optimizer_kwargs(cfg=first), **first.opt_kwargs)
    assert {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad} == {"global_pool", "fc"}


def test_a_new_head_is_trained_first_and_then_with_all_layers():
    args = namespace("finetune_swap")
    backbone = args.model.removeprefix("gcp:")
    model = timm.create_model("gcp_swap", backbone=backbone, num_classes=3, **args.model_kwargs)
    assert isinstance(model.global_pool.reduction[0].act, nn.Identity)
    optimizer = create_optimizer_v2(model, **optimizer_kwargs(cfg=args), **args.opt_kwargs)
    factor = {id(p): group["lr_scale"] for group in optimizer.param_groups for p in group["params"]}
    assert factor[id(model.classifier.weight)] == factor[id(model.global_pool.reduction[0].conv.weight)] == 1
    assert {factor[id(p)] for p in model.blocks.parameters()} == {args.layer_decay_min_scale}

    value = re.search(r"--layer-decay-no-opt-scale (\S+)", text("finetune_swap")).group(1)
    first = argparse.Namespace(**{**vars(args), "layer_decay_no_opt_scale": float(value)})
    create_optimizer_v2(model, **optimizer_kwargs(cfg=first), **first.opt_kwargs)
    trained = {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {"global_pool", "classifier"}


@pytest.mark.parametrize(("name", "dimension"), [("distill_d128", 128), ("distill_d64", 64)])
def test_distillation_students_are_compact(name, dimension):
    args = namespace(name)
    assert small_model(args).global_pool.out_features == dimension * (dimension + 1) // 2
    teacher = timm.create_model(args.kd_model_name, num_classes=2)
    assert teacher.global_pool.out_features == 256 * 257 // 2
    assert timm_gcp is not None


def test_the_recipe_of_table_8_keeps_the_stride_of_the_last_stage_and_changes_nothing_else():
    args = namespace("resnet_norm_ds", model="resnet18_gcp")
    model = small_model(args).eval()
    with torch.inference_mode():
        assert model.forward_features(torch.zeros(1, 3, 224, 224)).shape[-2:] == (7, 7)
    kept = {key: value for key, value in recipe("resnet_norm_ds").items() if key != "model_kwargs"}
    assert kept == {key: value for key, value in recipe("resnet_norm").items() if key != "model_kwargs"}
    assert {**args.model_kwargs} == {**recipe("resnet_norm")["model_kwargs"], "last_stage": "stride2"}


def test_second_order_recipe_is_gap_with_kron():
    pytest.importorskip("opt_einsum", reason="timm's kron optimizer needs opt_einsum")
    args = namespace("secondorder_kron", model="resnet18")
    optimizer = create_optimizer_v2(small_model(args), **optimizer_kwargs(cfg=args), **args.opt_kwargs)
    assert type(optimizer).__name__ == "Kron"
    assert recipe("secondorder_kron")["model"] == "resnet50"
    for needed in ("opt_einsum", "TORCHDYNAMO_DISABLE=1"):
        assert needed in text("secondorder_kron")
