"""The probe against a re-statement by loop, its innocence towards the training run, and the command on small images."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from commands import status_of
from PIL import Image
from torch import nn

from timm_gcp import cli
from timm_gcp.landscape import (
    Landscape,
    LandscapeCallback,
    Record,
    StableStepCallback,
    equal_steps,
    largest_stable_step,
    plot_landscape,
    probe,
    range_table,
    read_records,
    step_range,
    write_records,
)
from timm_gcp.train.build import Loaders
from timm_gcp.train.options import resolve_args
from timm_gcp.train.run import train


def small_net(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(6, 3),
        nn.BatchNorm1d(3),
    ).to(dtype)


def batch(dtype: torch.dtype = torch.float64, size: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(size, 2, 8, 8, dtype=dtype, generator=generator), torch.arange(size) % 3


def by_loop(model: nn.Sequential, images, targets, steps, split: int, train: bool):
    """The definition, one step size after the other, on a copy cut in two, in real training mode."""
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.BatchNorm1d)):
            module.train(train)
    rest = model[split:]
    x = model[:split](images).detach()

    def loss_and_gradient(x):
        x = x.clone().requires_grad_()
        loss = F.cross_entropy(rest(x * 1.0), targets)
        return loss.item(), torch.autograd.grad(loss, x)[0]

    loss, gradient = loss_and_gradient(x)
    found = [loss_and_gradient(x + step * gradient) for step in steps.tolist()]
    changes = [(other - gradient).norm().item() for _, other in found]
    return loss, gradient.norm().item(), [loss for loss, _ in found], changes


@pytest.mark.parametrize(("layer", "split"), [(None, 1), ("3", 4)])
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("chunk_size", [None, 3])
def test_probe_is_the_definition(layer, split, mode, chunk_size):
    model, (images, targets), steps = small_net(), batch(), equal_steps(0.1, 75, 7)
    seen = probe(model, images, targets, steps, layer=layer, batch_norm=mode, chunk_size=chunk_size)
    loss, norm, losses, changes = by_loop(model, images, targets, steps, split, mode == "train")
    assert (seen.loss, seen.gradient_norm) == (pytest.approx(loss, 1e-12), pytest.approx(norm, 1e-12))
    assert seen.losses.tolist() == pytest.approx(losses, 1e-11)
    assert seen.gradient_changes.tolist() == pytest.approx(changes, 1e-10)
    assert torch.equal(seen.step_sizes, steps)


@pytest.mark.parametrize("name", ["shufflenet_v2_x1_0_gcp", "mobilenetv2_100", "test_resnet"])
def test_results_do_not_depend_on_the_chunks(name):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=4).train()
    images, targets, steps = torch.randn(2, 3, 32, 32), torch.arange(2), equal_steps(0.045, 1.5, 4)
    one, several = (probe(model, images, targets, steps, chunk_size=size, double=True) for size in (1, 3))
    torch.testing.assert_close(one.losses, several.losses, rtol=1e-6, atol=0)
    torch.testing.assert_close(one.gradient_changes, several.gradient_changes, rtol=1e-6, atol=0)


def everything(model: nn.Module):
    return (
        {key: value.clone() for key, value in model.state_dict().items()},
        [(name, module.training) for name, module in model.named_modules()],
        [(name, p.requires_grad, p.grad is None) for name, p in model.named_parameters()],
        torch.get_rng_state(),
    )


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_nothing_is_changed(mode):
    model, (images, targets) = small_net().train(), batch()
    model[3].requires_grad_(False)
    before = everything(model)
    probe(model, images, targets, equal_steps(0.1, 75, 5), batch_norm=mode)
    largest_stable_step(model, images, targets, 0.1, batch_norm=mode)
    with pytest.raises(IndexError):  # also after a failure half-way
        probe(model, images, targets + 3, equal_steps(0.1, 75, 5), batch_norm=mode)
    after = everything(model)
    assert all(torch.equal(after[0][key], value) for key, value in before[0].items())
    assert before[1:3] == after[1:3]
    assert torch.equal(before[3], after[3])
    assert not model[0]._forward_hooks


def test_wrappers_are_looked_through():
    model, (images, targets), steps = small_net(), batch(), equal_steps(1, 2, 2)
    expected = probe(model, images, targets, steps)
    for wrapper in (nn.DataParallel(model), torch.compile(model, backend="eager")):
        assert torch.equal(probe(wrapper, images, targets, steps).losses, expected.losses)


def test_soft_targets():
    model, (images, targets), steps = small_net(), batch(), equal_steps(1, 2, 2)
    soft = F.one_hot(targets, 3).double()
    expected = probe(model, images, targets, steps)
    torch.testing.assert_close(probe(model, images, soft, steps).losses, expected.losses)


def test_largest_stable_step_is_at_the_border():
    model, (images, targets) = small_net(), batch()
    high = largest_stable_step(model, images, targets, 0.1, factor=1.2)
    seen = probe(model, images, targets, torch.tensor([high, 1.03 * high], dtype=torch.float64))
    length = model[0](images).norm().item()
    limit = 1.2 * max(seen.loss, math.log(3))

    def stable(step, loss):
        return loss <= limit and step * seen.gradient_norm <= length

    assert stable(high, seen.losses[0]) and not stable(1.03 * high, seen.losses[1])


def test_largest_stable_step_never_replaces_x():
    """Batch-norm makes the loss level off: only the length of the step ends the search."""
    model, (images, targets) = small_net(), batch()
    high = largest_stable_step(model, images, targets, 0.1, factor=1e9)
    norm = probe(model, images, targets, equal_steps(0.1, 1, 2)).gradient_norm
    assert high == pytest.approx(model[0](images).norm().item() / norm, rel=0.03)


def test_equal_steps_are_appendix_i():
    steps = equal_steps(0.1, 75)
    assert len(steps) == 50
    assert (steps[0].item(), steps[-1].item()) == (pytest.approx(0.1), pytest.approx(75))
    torch.testing.assert_close(steps.diff(), torch.full((49,), (75 - 0.1) / 49, dtype=torch.float64))


def test_step_range():
    assert step_range("resnet18_gcp", 0.5) == (0.1, 75.0)
    assert step_range("mobilenetv2_100.ra_in1k", None) == (0.045, 1.5)
    assert step_range("resnet18", None, low=0.2, high=3) == (0.2, 3)
    assert step_range("shufflenet_v2_x1_0", 0.06) == (0.06, None)
    with pytest.raises(ValueError, match=r"give --low or a learning rate for 'vgg11'.*mobilenetv2_100, resnet18"):
        step_range("vgg11", None)


def record(step: int = 0, wide: float = 1.0) -> Record:
    return Record(step, 0.1, 75.0, 50, 2.0, 0.3, 2.0, 2.0 + wide, 2.1, 0.01, 0.01 + 2 * wide, 0.02)


def test_record_is_minimum_maximum_and_mean():
    steps = equal_steps(1, 3, 3)
    landscape = Landscape(steps, 0.5, 0.25, torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0.5, 2.5, 0.0]))
    assert Record.of(7, landscape) == Record(7, 1.0, 3.0, 3, 0.5, 0.25, 1.0, 3.0, 2.0, 0.0, 2.5, 1.0)


def test_records_come_back_exactly(tmp_path):
    records = [record(0), record(500, 1 / 3)]
    write_records(tmp_path / "new" / "a.csv", records)
    assert read_records(tmp_path / "new" / "a.csv") == records
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.csv"]


def test_bad_csv_is_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("epoch,loss\n1,2\n")
    with pytest.raises(ValueError, match=r"a\.csv is not a landscape CSV: its columns must be step, low"):
        read_records(path)
    write_records(path, [record()])
    path.write_text(path.read_text() + "500,0.1,75")
    with pytest.raises(ValueError, match=r"a\.csv is damaged: .* Delete it"):
        read_records(path)
    with pytest.raises(FileNotFoundError):
        read_records(tmp_path / "none.csv")


def test_range_table_by_hand():
    table = range_table({"GAP": [record(0, 2.0), record(1, 4.0)], "GCP": [record(0, 1.0), record(1, 1.0)]})
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    assert rows[2] == ["GAP", "2", "3", "1.00", "6", "1.00", "2"]
    assert rows[3] == ["GCP", "2", "1", "3.00", "2", "3.00", "2"]
    with pytest.raises(ValueError, match=r"baseline 'X' is not among the runs: GAP"):
        range_table({"GAP": [record()]}, baseline="X")
    with pytest.raises(ValueError, match=r"run 'GCP' has no records"):
        range_table({"GAP": [record()], "GCP": []})


def test_figure(tmp_path):
    runs = {"GAP": [record(0), record(500)], "GCP": [record(0, 0.3)]}
    plot_landscape({"ResNet-18": runs, "MobileNetV2": runs}, tmp_path / "figures" / "a.png", log_scale=True)
    with Image.open(tmp_path / "figures" / "a.png") as image:
        assert image.size[0] > 1000 and image.size[1] > 900
        assert len(image.convert("RGB").getcolors(1 << 24)) > 50
    with pytest.raises(ValueError, match=r"must end in \.png, \.pdf, \.svg"):
        plot_landscape({"ResNet-18": runs}, tmp_path / "no_ending")
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_landscape({"ResNet-18": {"GAP": []}}, tmp_path / "b.png")


def tensors(args, data_config, device) -> Loaders:
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(4, 4, 3, 32, 32, generator=generator)
    return Loaders([(part, torch.arange(4) % 2) for part in images], [(images[0], torch.arange(4) % 2)])


def run(folder: Path, callbacks, **keys):
    given = {"model": "test_resnet", "num_classes": 2, "epochs": 2, "lr": 0.1, "sched": "none", "drop": 0.3}
    given |= {"output": str(folder), "experiment": "run", "img_size": 32, "device": "cpu"}
    return train(resolve_args(None, given | keys), callbacks, tensors)


def test_training_is_the_same_with_the_callback(tmp_path):
    plain = run(tmp_path / "plain", [])
    callback = LandscapeCallback(tmp_path / "a.csv", 0.1, None, 3, every=3)
    watched = run(tmp_path / "watched", [callback])
    ours, theirs = watched.model.state_dict(), plain.model.state_dict()
    assert all(torch.equal(ours[key], value) for key, value in theirs.items())
    records = read_records(tmp_path / "a.csv")
    assert [row.step for row in records] == [0, 3, 6]
    assert len({(row.low, row.high, row.points) for row in records}) == 1
    assert all(row.loss_max >= row.loss_mean >= row.loss_min > 0 for row in records)


def test_a_resumed_run_continues_its_csv(tmp_path):
    model, images = small_net(torch.float32).train(), batch(torch.float32)
    first = LandscapeCallback(tmp_path / "a.csv", 0.1, None, 3, every=5)
    for step in (0, 5, 10):
        first.on_update(step, model, images)
    again = LandscapeCallback(tmp_path / "a.csv", 0.1, None, 3, every=5, images=2)
    again.on_update(5, model, images)
    records = read_records(tmp_path / "a.csv")
    assert [row.step for row in records] == [0, 5]
    assert records[1].high == records[0].high
    assert records[1].loss != first.records[1].loss  # two images were probed, not five
    with pytest.raises(ValueError, match=r"made with 3 step sizes in \[0\.1, .*\], not 4 in \[0\.1, 2\]"):
        LandscapeCallback(tmp_path / "a.csv", 0.1, 2, 4)


def test_stable_step_callback_keeps_the_smallest():
    model, (images, targets) = small_net(torch.float32).train(), batch(torch.float32)
    callback = StableStepCallback(0.1)
    seen = []
    for scale in (1.0, 3.0, 0.5):
        callback.on_update(0, model, (scale * images, targets))
        seen.append(largest_stable_step(model, scale * images, targets, 0.1))
    assert len(set(seen)) == 3
    assert callback.high == min(seen)


def test_bad_input_is_named(tmp_path):
    model, (images, targets), steps = small_net(), batch(), equal_steps(1, 2, 2)
    for low, high in ((0, 1), (2, 1), (1, math.inf), (-1, 1)):
        with pytest.raises(ValueError, match="0 < low < high"):
            equal_steps(low, high)
    with pytest.raises(ValueError, match=r"points must be at least 2.*got 1"):
        equal_steps(1, 2, 1)
    with pytest.raises(ValueError, match=r"has no layer 'conv9'\. Its convolutions are: 0, 3\."):
        probe(model, images, targets, steps, layer="conv9")
    with pytest.raises(ValueError, match=r"no nn\.Conv2d to probe"):
        probe(nn.Linear(2, 2), images, targets, steps)
    with pytest.raises(ValueError, match="one of train, eval; got 'both'"):
        probe(model, images, targets, steps, batch_norm="both")
    with pytest.raises(ValueError, match=r"as many targets as images.*got 5 and 4"):
        probe(model, images, targets[:4], steps)
    with pytest.raises(ValueError, match="chunk_size must be at least 1; got 0"):
        probe(model, images, targets, steps, chunk_size=0)
    with pytest.raises(ValueError, match=r"factor must be above 1.*got 1"):
        largest_stable_step(model, images, targets, 0.1, factor=1)
    with pytest.raises(ValueError, match=r"step size 1000000000\.0 is already unstable"):
        largest_stable_step(model, images, targets, 1e9)
    with pytest.raises(ValueError, match="every must be at least 1"):
        LandscapeCallback(tmp_path / "a.csv", 1, 2, every=0)
    with pytest.raises(ValueError, match="images must be at least 1; got 0"):
        LandscapeCallback(tmp_path / "a.csv", 1, 2, images=0)


class Odd(nn.Module):
    """A model with a layer of each kind that cannot be probed."""

    def __init__(self):
        super().__init__()
        self.twice, self.unused, self.cut = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)
        self.pair = nn.LSTM(2, 2)

    def forward(self, x):
        self.cut(x), self.pair(x.flatten(2)[:, :, 0])
        return self.twice(self.twice(x)).mean((2, 3))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ("twice", "called more than once"),
        ("unused", "not used"),
        ("cut", "does not depend"),
        ("pair", "returns a tuple"),
    ],
)
def test_layers_that_cannot_be_probed(layer, message):
    with pytest.raises(ValueError, match=rf"{message}.*--layer NAME"):
        probe(Odd(), torch.randn(2, 2, 4, 4), torch.zeros(2, dtype=torch.long), equal_steps(1, 2, 2), layer=layer)


@pytest.fixture
def image_folder(tmp_path) -> Path:
    generator = torch.Generator().manual_seed(0)
    for split in ("train", "validation"):
        for name in ("cat", "dog"):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for index in range(4):
                pixels = torch.randint(0, 256, (40, 40, 3), dtype=torch.uint8, generator=generator).numpy()
                Image.fromarray(pixels).save(folder / f"{index}.png")
    return tmp_path / "images"


def test_command_trains_probes_and_plots(image_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    common = ["--data-dir", str(image_folder), "--img-size", "32", "--device", "cpu", "--points", "3"]
    model = ["--model", "test_resnet", "--num-classes", "2", "--batch-size", "4"]
    training = [
        "--epochs",
        "2",
        "--sched",
        "none",
        "--lr",
        "0.1",
        "--workers",
        "0",
        "--output",
        ".",
        "--experiment",
        "run",
    ]
    command = ["landscape", "train", "--csv", "gap.csv", "--every", "2", *common, *model, *training]
    assert cli.main(command) == 0
    assert [row.step for row in read_records("gap.csv")] == [0, 2]
    assert read_records("gap.csv")[0].low == 0.1
    assert cli.main(command) == 1
    assert "gap.csv holds the probes of another run" in capsys.readouterr().err

    checkpoints = [f"run/checkpoint-{epoch}.pth.tar" for epoch in (0, 1)]
    command = ["landscape", "probe", "--checkpoint", *checkpoints, "--high", "2.5", "--lr", "0.1", "--output", "at.csv"]
    assert cli.main([*command, *common]) == 0
    rows = read_records("at.csv")
    assert [(row.step, row.low, row.high, row.points) for row in rows] == [(0, 0.1, 2.5, 3), (1, 0.1, 2.5, 3)]
    assert rows[0].loss != rows[1].loss
    again = [*command[:-1], "again.csv", *common]
    assert cli.main(again) == 0
    assert read_records("again.csv") == rows
    untrained = ["landscape", "probe", "--low", "0.5", "--high", "stable", "--output", "raw.csv", *common, *model]
    assert cli.main(untrained) == 0
    assert read_records("raw.csv")[0].step == 0

    capsys.readouterr()
    assert cli.main(["landscape", "plot", "A=gap.csv", "B=at.csv", "--output", "a.png", "--log"]) == 0
    assert "| A / run |" in capsys.readouterr().out
    assert Path("a.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plot", "gap.csv"], "given as LABEL=CSV"),
        (
            ["probe", "--model", "test_resnet", "--lr", "1", "--data-dir", "none", "--output", "a.csv"],
            "no folder 'none'",
        ),
        (
            ["probe", "--model", "test_resnet", "--lr", "1", "--batch-size", "0", "--output", "a.csv"],
            "--batch-size: must be at least 1, got 0",
        ),
        (["probe", "--model", "test_resnet", "--output", "a.csv"], "give --low or a learning rate"),
    ],
)
def test_command_names_bad_input(image_folder, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    if arguments[0] == "probe":
        data = [] if "--data-dir" in arguments else ["--data-dir", str(image_folder)]
        arguments = [*arguments, *data, "--img-size", "32", "--device", "cpu"]
    assert status_of("landscape", *arguments) in (1, 2)
    assert message in capsys.readouterr().err


def test_command_wants_a_number_or_stable(capsys):
    with pytest.raises(SystemExit):
        cli.main(["landscape", "probe", "--data-dir", ".", "--output", "a.csv", "--high", "much"])
    assert "must be a number, got 'much'; or give `stable`" in capsys.readouterr().err
