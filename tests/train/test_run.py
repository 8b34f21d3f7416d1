"""Training by recipe: keys, losses against a plain loop, resuming, hooks, and every refusal."""

from __future__ import annotations

import argparse
import csv
import json
import math
from pathlib import Path

import pytest
import timm
import torch
import yaml
from torch import nn
from torch.nn import functional as F
from toy_images import TINY, image_folder, tiny_settings

from timm_gcp import cli
from timm_gcp.common import device, recipe
from timm_gcp.train import build, options
from timm_gcp.train import checkpoint as train_task
from timm_gcp.train.callback import Callback
from timm_gcp.train.in_memory import TensorData
from timm_gcp.train.options import resolve_args
from timm_gcp.train.run import train

OPTION_FILE = Path(__file__).parents[1] / "data" / "train_py_options.json"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return image_folder(tmp_path_factory.mktemp("toy"))


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "summary.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def run(data, output, callbacks=(), loaders=build.build_loaders, **keys):
    return train(resolve_args(None, tiny_settings(data, output, **keys)), callbacks, loaders)


# recipes and keys


def test_recipe_by_path_and_by_name(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("epochs: 3\n")
    assert recipe.find_recipe(tmp_path / "mine.yaml") == tmp_path / "mine.yaml"
    assert recipe.find_recipe("quickstart") == recipe.find_recipe("quickstart.yaml")
    assert recipe.read_recipe(recipe.find_recipe("quickstart"))["num_classes"] == 10
    monkeypatch.setattr(recipe, "_SHIPPED", (tmp_path / "wheel", tmp_path))
    assert recipe.list_recipes() == ["mine"]
    with pytest.raises(FileNotFoundError, match=r"no recipe 'min'.*\(mine\)\. Did you mean 'mine'\?"):
        recipe.find_recipe("min")


@pytest.mark.parametrize(
    ("text", "message"), [("- a\n- b\n", "got list"), ("a: [1", "is not a YAML file"), ("1: 2", "flat")]
)
def test_broken_recipe(tmp_path, text, message):
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        recipe.read_recipe(tmp_path / "r.yaml")


def test_empty_recipe_is_the_defaults(tmp_path):
    (tmp_path / "r.yaml").write_text("# nothing\n")
    assert resolve_args(tmp_path / "r.yaml") == resolve_args()


def test_later_wins_and_text_is_read_as_train_py_reads_it(tmp_path):
    (tmp_path / "r.yaml").write_text("lr: 1e-3\nepochs: 7\ncolor_jitter: null\ninput_size: [1, 8, 8]\n")
    args = resolve_args(tmp_path / "r.yaml", {"epochs": "9", "mean": ["0.5"]})
    assert (args.lr, args.epochs, args.color_jitter, args.input_size, args.mean) == (1e-3, 9, None, [1, 8, 8], [0.5])
    assert args.smoothing == 0.1  # train.py's default


def test_defaults_are_not_shared():
    resolve_args().model_kwargs["reduce_dim"] = 1
    resolve_args().scale.append(2)
    assert resolve_args().model_kwargs == {} and len(resolve_args().scale) == 2


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("log_wandb", True, r"timm's train.py has the key 'log_wandb', timm-gcp train does not"),
        ("epocs", 3, r"neither timm-gcp train nor timm's train.py has the key 'epocs'. Did you mean 'epochs'\?"),
        ("epochs", "ten", "epochs must be int, got 'ten'"),
        ("epochs", 2.5, "epochs must be int, got 2.5"),
        ("epochs", 0, "epochs must be at least 1, got 0"),
        ("epochs", None, "epochs must be int, got None"),
        ("amp", "yes", "amp must be a switch, got 'yes'"),
        ("model_kwargs", "reduce_dim", "model_kwargs must be a mapping"),
        ("lr", [1], r"lr must be float, got \[1\]"),
        ("amp_dtype", "float8", "amp_dtype must be one of 'float16', 'bfloat16', got 'float8'"),
    ],
)
def test_bad_keys(key, value, message):
    with pytest.raises(ValueError, match=message):
        resolve_args(None, {key: value})


def test_the_table_is_train_pys():
    """Every key of the newest train.py is implemented or refused by name, with train.py's default."""
    theirs = json.loads(OPTION_FILE.read_text())["defaults"]
    aliases = {"train_steps_per_epoch"}
    assert (set(options.OPTIONS) | options.TRAIN_PY_ONLY) - aliases == set(theirs)
    assert not set(options.OPTIONS) & options.TRAIN_PY_ONLY
    ours = {key: option.default for key, option in options.OPTIONS.items()}
    assert {key: value for key, value in ours.items() if value != theirs[key]} == {"device": None}  # picked at run time


# the numbers


def test_losses_of_a_plain_loop(data, tmp_path):
    """Same seed, same loader, torch's own SGD and cross-entropy: the same losses to the last digit that float32 has."""
    keys = {"opt": "momentum", "weight_decay": 0.0, "smoothing": 0.0, "sched": "none"}
    result = run(data, tmp_path, **keys)
    args = resolve_args(None, tiny_settings(data, tmp_path, **keys))
    torch.manual_seed(args.seed)
    torch.cuda.manual_seed_all(args.seed)
    import random

    import numpy as np

    random.seed(args.seed)
    np.random.seed(args.seed)
    model = timm.create_model(TINY, num_classes=2)
    config = timm.data.resolve_data_config(vars(args), model=model)
    loaders = build.build_loaders(args, config, torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(2):
        model.train()
        losses = []
        for images, target in loaders.train:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            batches = [(model(images), target) for images, target in loaders.val]
        logits, target = (torch.cat(part) for part in zip(*batches, strict=True))
        row = result.rows[epoch]
        assert row["train_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-6)
        assert row["eval_loss"] == pytest.approx(F.cross_entropy(logits.double(), target).item(), rel=1e-5)
        assert row["eval_top1"] == pytest.approx(100 * (logits.argmax(1) == target).double().mean().item())


def test_files_of_a_run(data, tmp_path):
    result = run(data, tmp_path, sched="step", decay_epochs=1)
    assert {"args.yaml", "summary.csv", "model_best.pth.tar", "last.pth.tar"} <= {
        p.name for p in result.folder.iterdir()
    }
    rows = rows_of(result.folder)
    assert list(rows[0]) == ["epoch", "train_loss", "eval_loss", "eval_top1", "eval_top5", "lr"]
    assert [row["epoch"] for row in rows] == ["0", "1"]
    assert [float(row["lr"]) for row in rows] == pytest.approx([0.05, 0.005])
    saved = yaml.safe_load((result.folder / "args.yaml").read_text())
    assert saved.keys() == options.OPTIONS.keys() and saved["epochs"] == 2
    assert resolve_args(result.folder / "args.yaml").lr == 0.05  # and it is a recipe again
    assert result.best_metric == max(row["eval_top1"] for row in result.rows)
    weights = train_task.load_checkpoint(result.folder / "model_best.pth.tar")["state_dict"]
    timm.create_model(TINY, num_classes=2).load_state_dict(weights)


def test_it_learns(data, tmp_path):
    result = run(data, tmp_path, epochs=6, smoothing=0.0)
    assert result.rows[-1]["eval_top1"] == 100 and result.rows[-1]["train_loss"] < result.rows[0]["train_loss"]


def test_accumulated_batches_are_one_large_batch(data, tmp_path):
    """Without batch-norm, 2 batches of 4 give the updates of one batch of 8; 7 batches of 4 end in one of 4."""
    keys = {"model": "test_convnext", "no_aug": True, "epochs": 1, "sched": "none"}
    large = run(data, tmp_path / "a", batch_size=8, **keys)
    small = run(data, tmp_path / "b", batch_size=4, grad_accum_steps=2, **keys)
    assert small.rows[0]["train_loss"] == pytest.approx(large.rows[0]["train_loss"], rel=1e-5)
    for ours, theirs in zip(small.model.parameters(), large.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    steps: list[int] = []

    class Steps(Callback):
        def on_update(self, step, model, batch):
            steps.append(step)

    run(data, tmp_path / "c", [Steps()], batch_size=4, grad_accum_steps=3, **keys)
    assert steps == [0, 1, 2]  # 8 batches: 3 + 3 + 2


@pytest.mark.parametrize(
    "keys",
    [
        {"model_ema": True, "model_ema_decay": 0.5},
        {"amp": True, "amp_dtype": "bfloat16", "channels_last": True},
        {"mixup": 0.2, "mixup_off_epoch": 1},
        {"mixup": 0.2, "no_prefetcher": True, "mixup_off_epoch": 1},
        {"clip_grad": 1.0, "clip_mode": "agc"},
        {"opt": "adamw", "lr": None, "sched_on_updates": True, "grad_checkpointing": True},
        {"val_split": ""},
        {"head_init_scale": 0.1, "head_init_bias": -1.0},
    ],
    ids=lambda keys: next(iter(keys)),
)
def test_options_train(data, tmp_path, keys):
    result = run(data, tmp_path, **keys)
    assert len(result.rows) == 2 and all(math.isfinite(value) for row in result.rows for value in row.values())
    checkpoint = train_task.load_checkpoint(result.folder / "last.pth.tar")
    assert ("state_dict_ema" in checkpoint) == ("model_ema" in keys)


def test_compiled_model_is_trained_and_validated(data, tmp_path, monkeypatch):
    """torch.compile itself takes most of a minute here, so a stand-in shows that it is asked for and used."""
    asked, calls = [], []

    def stand_in(model, backend, mode, **more):
        asked.append((backend, mode))
        model.register_forward_hook(lambda module, inputs, output: calls.append(module.training))
        return model

    monkeypatch.setattr(torch, "compile", stand_in)
    result = run(data, tmp_path, epochs=1, torchcompile="inductor", torchcompile_mode="reduce-overhead")
    assert asked == [("inductor", "reduce-overhead")] and calls == [True] * 4 + [False] * 2
    assert result.rows == run(data, tmp_path / "plain", epochs=1).rows


def test_ema_is_what_is_validated(data, tmp_path):
    frozen = run(data, tmp_path, model_ema=True, model_ema_decay=1.0)
    losses = [row["eval_loss"] for row in frozen.rows]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)  # an average that never moves


def test_rate_by_batch_size():
    assert build.resolve_rate(resolve_args(None, {"batch_size": 64, "grad_accum_steps": 2})) == pytest.approx(0.05)
    assert build.resolve_rate(resolve_args(None, {"batch_size": 64, "opt": "adamw"})) == pytest.approx(0.05)
    assert build.resolve_rate(resolve_args(None, {"lr": 0.3})) == 0.3


def test_our_schedules_are_found(data, tmp_path):
    result = run(data, tmp_path, sched="gcp_shufflenetv2_adju:stretch", sched_on_updates=True, lr=0.5)
    assert result.rows[0]["lr"] == pytest.approx(0.25) and result.rows[1]["lr"] == pytest.approx(0.0)


# resuming and watching


def tensor_data():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(32) % 2
    images = torch.randint(0, 120, (32, 3, 16, 16), generator=generator) + 100 * labels[:, None, None, None]
    return TensorData((images.byte(), labels), (images[:12].byte(), labels[:12]))


TENSOR = {"color_jitter": None, "train_interpolation": "bilinear", "interpolation": "bilinear"}


def test_resumed_run_is_the_uninterrupted_one(tmp_path):
    keys = {
        "epochs": 4,
        "sched": "cosine",
        "sched_on_updates": True,
        "model_ema": True,
        "model_ema_decay": 0.7,
        **TENSOR,
    }
    whole = run("", tmp_path / "whole", loaders=tensor_data().loaders, **keys)

    class Stop(Callback):
        def on_epoch_end(self, epoch, epochs, row, folder):
            if epoch == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("", tmp_path / "parts", [Stop()], loaders=tensor_data().loaders, **keys)
    folder = tmp_path / "parts" / "run"
    with (folder / "summary.csv").open("a") as file:
        file.write("2,9,9,9,9,9\n")  # a row of an epoch that is run again
    run("", tmp_path / "parts", loaders=tensor_data().loaders, resume=str(folder / "last.pth.tar"), **keys)
    assert rows_of(folder) == rows_of(whole.folder)
    again = run("", tmp_path / "parts", loaders=tensor_data().loaders, resume=str(folder / "last.pth.tar"), **keys)
    assert again.rows == [] and again.best_metric is None


def test_weights_only_resume_and_start_epoch(data, tmp_path):
    first = run(data, tmp_path / "a")
    keys = {"resume": str(first.folder / "last.pth.tar"), "no_resume_opt": True, "start_epoch": 1}
    assert [row["epoch"] for row in run(data, tmp_path / "b", **keys).rows] == [1]


def test_resume_from_a_checkpoint_with_a_numpy_metric(data, tmp_path):
    """As scripts write it that take their accuracy from NumPy."""
    import numpy as np

    last = run(data, tmp_path / "a").folder / "last.pth.tar"
    checkpoint = train_task.load_checkpoint(last)
    torch.save({**checkpoint, "metric": np.float64(50.0)}, tmp_path / "numpy.pth.tar")
    again = run(data, tmp_path / "b", resume=str(tmp_path / "numpy.pth.tar"), epochs=3)
    assert [row["epoch"] for row in again.rows] == [2]


@pytest.mark.parametrize("before", [False, True])
def test_resume_with_another_kernel_of_the_optimizer(data, tmp_path, before):
    """In float16 too, where a scaler leaves its scale to a fused optimizer."""
    keys = {"opt": "momentum", "amp": True, "amp_dtype": "float16"}
    kernels = [{}, {"fused": True}][:: -1 if before else 1]
    first = run(data, tmp_path / "a", opt_kwargs=kernels[0], epochs=1, **keys).folder / "last.pth.tar"
    again = run(data, tmp_path / "b", opt_kwargs=kernels[1], epochs=2, resume=str(first), **keys)
    assert [row["epoch"] for row in again.rows] == [1]
    states = [train_task.load_checkpoint(path)["optimizer"] for path in (first, again.folder / "last.pth.tar")]
    assert [bool(state["param_groups"][0]["fused"]) for state in states] == [before, not before]


def test_missing_data_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder '.*nowhere': give the data set's folder with --data-dir"):
        run(tmp_path / "nowhere", tmp_path)


def test_resume_from_what_is_no_checkpoint(data, tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        run(data, tmp_path, resume=str(tmp_path / "none.pth.tar"))
    torch.save({"weight": torch.zeros(1)}, tmp_path / "bare.pth")
    with pytest.raises(ValueError, match="not a training checkpoint"):
        run(data, tmp_path, resume=str(tmp_path / "bare.pth"))
    state = timm.create_model(TINY, num_classes=2).state_dict()
    torch.save({"state_dict": state, "epoch": 0}, tmp_path / "no_opt.pth")
    with pytest.raises(ValueError, match="holds no optimizer state: add --no-resume-opt"):
        run(data, tmp_path, resume=str(tmp_path / "no_opt.pth"))


def test_hooks_see_the_run_and_leave_it_alone(data, tmp_path):
    seen, epochs = [], []

    class Watch(Callback):
        every = 3

        def on_update(self, step, model, batch):
            assert isinstance(model, nn.Module) and model.training and batch[0].shape == (8, 3, 32, 32)
            seen.append(step)

        def on_epoch_end(self, epoch, total, row, folder):
            epochs.append((epoch, total, row["epoch"], folder.name))

    watched = run(data, tmp_path / "a", [Watch()])
    assert seen == [0, 3, 6] and epochs == [(0, 2, 0, "run"), (1, 2, 1, "run")]
    assert watched.rows == run(data, tmp_path / "b").rows


def test_validation_interval(data, tmp_path):
    assert [row["epoch"] for row in run(data, tmp_path, epochs=5, val_interval=2).rows] == [1, 3, 4]


# refusals


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"lr": 1e9, "opt": "momentum"}, RuntimeError, "the training loss became .* lower --lr"),
        ({"device": "abacus"}, ValueError, "device must be a torch device .* got 'abacus'"),
        ({"sched": "gcp_nothing"}, ValueError, "'gcp_nothing'"),
        ({"sched": "zigzag"}, ValueError, "schedule 'zigzag'"),
        ({"batch_size": 64}, ValueError, "32 training images make no batch of 64"),
        ({"device_modules": ["no_such_module"]}, ValueError, "device_modules: can't import 'no_such_module'"),
        ({"num_classes": 1}, ValueError, "--num-classes 1, but the training data have 2 classes"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_refusals(data, tmp_path, keys, error, message):
    with pytest.raises(error, match=message):
        run(data, tmp_path, epochs=8 if "lr" in keys else 1, **keys)


def test_several_processes_and_missing_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="torch sees no CUDA device: use --device cpu"):
        device.pick_device("cuda")
    assert device.pick_device(None).type == "cpu"
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="this command runs in one process, not in 2: start it without torchrun"):
        device.pick_device("cpu")
    with pytest.raises(ValueError, match=r"train runs in one process: start timm's train\.py with torchrun"):
        train(resolve_args(None, {}))


def test_fast_kernels_are_for_cuda(monkeypatch):
    matmul, cudnn = argparse.Namespace(allow_tf32=False), argparse.Namespace(benchmark=False)
    monkeypatch.setattr(torch.backends.cuda, "matmul", matmul)
    monkeypatch.setattr(torch.backends, "cudnn", cudnn)
    for name in ("cpu", "cuda"):
        device.fast_kernels(torch.device(name))
        assert matmul.allow_tf32 == cudnn.benchmark == (name == "cuda")


def test_older_timm_that_knows_no_such_schedule(monkeypatch):
    monkeypatch.setattr(timm.scheduler, "create_scheduler_v2", lambda *a, **k: (None, 3))
    with pytest.raises(ValueError, match="would train at a constant rate"):
        build.build_scheduler(resolve_args(None, {"sched": "wsdx"}), None, 1)
    assert build.build_scheduler(resolve_args(None, {"sched": "none"}), None, 1) == (None, 3)


# the command


def test_command(data, tmp_path, capsys):
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(tiny_settings(data, tmp_path)))
    assert cli.main(["train", "-c", str(tmp_path / "r.yaml"), "--epochs", "1", "--opt-kwargs", "nesterov=False"]) == 0
    out = capsys.readouterr().out
    assert "epoch 1/1: train_loss" in out and "model_best.pth.tar" in out
    last = str(tmp_path / "run" / "last.pth.tar")
    assert cli.main(["train", "-c", str(tmp_path / "r.yaml"), "--epochs", "1", "--resume", last]) == 0
    assert "nothing left to train" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--log-wandb", "timm's train.py has the key 'log_wandb'"),
        ("--epoch=3", "has the key 'epoch'. Did you mean 'epochs'?"),
        ("stray", "has the key 'stray'"),
    ],
)
def test_command_refuses_unknown_options(capsys, option, message):
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "-c", "quickstart", option])
    assert stop.value.code == 2 and message in capsys.readouterr().err


def test_command_reports_a_bad_recipe_in_one_line(tmp_path, capsys):
    (tmp_path / "r.yaml").write_text("kd_model_name: resnet50_gcp\n")
    assert cli.main(["train", "-c", str(tmp_path / "r.yaml")]) == 1
    assert "timm's train.py has the key 'kd_model_name'" in capsys.readouterr().err


def test_every_key_has_an_option():
    parser = argparse.ArgumentParser()
    from timm_gcp.commands.train import add_arguments

    add_arguments(parser)
    assert set(options.OPTIONS) <= {action.dest for action in parser._actions}
