"""Figures of schedules and convergence, and the table of matching epochs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from timm_gcp.commands import plot
from timm_gcp.plots import style
from timm_gcp.plots.convergence import draw_convergence
from timm_gcp.plots.schedules import draw_schedules, parse_pairs
from timm_gcp.schedules.curves import Polynomial
from timm_gcp.train.curves import format_table, matching_epoch, read_runs, read_summary, table

PNG = b"\x89PNG\r\n\x1a\n"
HEADER = "epoch,train_loss,eval_loss,eval_top1,eval_top5,lr\n"


def write_run(folder: Path, top1: list[float], start: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{start + e},1.0,1.0,{value},{value + 10},0.1\n" for e, value in enumerate(top1)]
    with (folder / "summary.csv").open("a") as file:
        file.write(HEADER + "".join(lines))
    return folder


def run(*command: str) -> int:
    parser = argparse.ArgumentParser()
    plot.add_arguments(parser)
    return plot.main(parser.parse_args(command))


def test_schedules_are_drawn(tmp_path, capsys):
    output = tmp_path / "new" / "lr.png"
    assert run("schedules", "--output", str(output), "--pairs", "2-50", "11-53", "0.5-30") == 0
    assert output.read_bytes().startswith(PNG)
    assert capsys.readouterr().out.strip() == str(output)
    assert [path.name for path in output.parent.iterdir()] == ["lr.png"]


def test_schedule_panels_hold_the_curves(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("timm_gcp.plots.schedules.save", lambda figure, path: drawn.append(figure) or path)
    draw_schedules(tmp_path / "lr.svg", ["2-50"])
    panels = drawn[0].axes
    assert [len(panel.lines) for panel in panels] == [1, 4, 4, 3]
    assert panels[0].lines[0].get_ydata()[:2] == pytest.approx([0.1 * (50 / 49) ** 2, 0.1])
    fast, beyond = panels[1].lines[1:3]
    assert (fast.get_xdata()[-1], beyond.get_xdata()[-1], beyond.get_linestyle()) == (30, 52, ":")
    printed, trained = panels[2].lines[2:]
    assert (printed.get_label(), printed.get_linestyle()) == ("LR_adju as printed (150 epochs)", "--")
    assert (trained.get_label(), trained.get_linestyle()) == ("LR_adju (150 epochs)", "-")
    assert trained.get_ydata()[49] == pytest.approx(0.011)


def test_pairs():
    assert parse_pairs(["11-53", "2-50"]) == [Polynomial(11, 1, 53), Polynomial(2, 1, 50)]
    with pytest.raises(ValueError, match=r"'11' is not a polynomial decay.*Write rho-e_f, e\.g\. 11-53"):
        parse_pairs(["11"])
    with pytest.raises(ValueError, match="`power` must be positive"):
        parse_pairs(["0-53"])


def test_convergence_figure_and_table(tmp_path, capsys):
    gap = write_run(tmp_path / "gap", [40, 50, 60, 65, 64])
    gcp = write_run(tmp_path / "gcp", [50, 63.9, 64, 70])
    output = tmp_path / "c.png"
    assert run("convergence", f"GAP={gap}", f"{gcp}/summary.csv", "--baseline", "GAP", "--output", str(output)) == 0
    assert output.read_bytes().startswith(PNG)
    printed = capsys.readouterr().out
    assert "| GAP | 5 | N/A | 64.00 | 74.00 | 65.00 |" in printed
    assert "| gcp | 4 | 3 | 70.00 (+6.00) | 80.00 | 70.00 |" in printed


def test_matching_epochs_stand_in_the_legend(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("timm_gcp.plots.convergence.save", lambda figure, path: drawn.append(figure) or path)
    tops = {"GAP": [40, 60], "GCP": [50, 70], "other": [10, 20]}
    runs = read_runs([f"{name}={write_run(tmp_path / name, top1)}" for name, top1 in tops.items()])
    draw_convergence(tmp_path / "c.png", runs, "GAP")
    draw_convergence(tmp_path / "c.png", runs, title="Tiny ImageNet")
    (axes,), (plain,) = drawn[0].axes, drawn[1].axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "GAP: 60.00",
        "GCP: 70.00, matches at epoch 2",
        "other: 20.00, does not match",
    ]
    assert not len(axes.texts) and axes.get_title() == "Top-1 per epoch: GAP, GCP, other"
    assert plain.get_title() == "Tiny ImageNet"


def test_table_as_json(tmp_path, capsys):
    gap = write_run(tmp_path / "gap", [40, 60])
    run("convergence", f"a={gap}", f"b={gap}", "--baseline", "a", "--json", "--output", str(tmp_path / "c.svg"))
    first, second = json.loads(capsys.readouterr().out)
    assert (first["run"], first["matching_epoch"], first["top1_gain"]) == ("a", None, None)
    assert (second["run"], second["matching_epoch"], second["top1_gain"]) == ("b", 2, 0.0)


def test_a_run_that_never_matches(tmp_path):
    runs = read_runs([f"gap={write_run(tmp_path / 'a', [70])}", f"gcp={write_run(tmp_path / 'b', [10, 20])}"])
    assert matching_epoch(runs[1], 70) is None
    assert "not reached" in format_table(table(runs, "gap"), "gap")
    assert "N/A" in format_table(table(runs))


def test_a_resumed_run_is_read_through(tmp_path):
    folder = write_run(tmp_path / "run", [10, 20, 30])
    write_run(folder, [25, 35], start=2)  # resumed in its folder: a second header, epoch 2 again
    curve = read_summary(folder / "summary.csv", "run")
    assert (curve.epochs, curve.top1) == ((0, 1, 2, 3), (10, 20, 25, 35))


def test_validation_at_intervals(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "summary.csv").write_text(HEADER + "4,1,1,50,60,0.1\n9,1,1,60,70,0.1\n")
    (curve,) = read_runs([str(folder)])
    assert table([curve])[0].epochs == 10
    assert matching_epoch(curve, 55) == 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("epoch,train_loss,lr\n0,1,0.1\n", "has no column eval_top1, eval_top5: was the run trained with validation"),
        ("", "has no column epoch"),
        (HEADER, "holds no epoch yet"),
        (HEADER + "0,1,1,much,2,0.1\n", "line 2: not numbers"),
        (HEADER + "0,1\n", "line 2: not numbers"),
    ],
)
def test_bad_summaries(tmp_path, content, message):
    (tmp_path / "summary.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_summary(tmp_path / "summary.csv", "run")


def test_bad_runs_and_labels(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no summary\.csv at"):
        read_runs([str(tmp_path / "nowhere")])
    folder = write_run(tmp_path / "x", [1])
    with pytest.raises(ValueError, match=r"Two runs are called 'x'\. Name them: LABEL=PATH"):
        read_runs([str(folder), str(folder)])
    with pytest.raises(ValueError, match=r"No run is called 'gap'\. Runs: x"):
        table(read_runs([str(folder)]), "gap")


def test_bad_file_names(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.png, \.pdf, \.svg"):
        draw_schedules(tmp_path / "lr.txt", ["2-50"])


def test_a_failed_write_leaves_the_old_figure(tmp_path):
    path = tmp_path / "f.png"
    path.write_bytes(b"old")

    class Broken:
        def savefig(self, target, **options):
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        style.save(Broken(), path)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["f.png"]
