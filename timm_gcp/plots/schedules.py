"""Figure of the learning rates: the sweep of polynomial decays (Fig. 4, left) and the rows of Table 3."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from timm_gcp.plots.style import COLOURS, check_output, new_figure, plain, save
from timm_gcp.schedules.curves import TABLE_3, Polynomial

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLES = {
    "norm": ("LR_norm", COLOURS[0], "-"),
    "fast": ("LR_fast", COLOURS[1], "-"),
    "adju": ("LR_adju", COLOURS[2], "-"),
}
_PRINTED = ("LR_adju as printed", COLOURS[3], "--")  # beside the script's, which MobileNetV2's recipe runs


def parse_pairs(pairs: Sequence[str]) -> list[Polynomial]:
    """Polynomial decays from texts like `11-53` (ρ-e_f), with Eq. 9's e_s = 1.

    Raises:
        ValueError: Another text, or constants that make no decay.
    """
    shapes = []
    for pair in pairs:
        power, dash, end = pair.partition("-")
        try:
            shapes.append(Polynomial(float(power), 1.0, float(end)))
        except ValueError as error:
            known = "" if dash else " Write rho-e_f, e.g. 11-53."
            raise ValueError(f"'{pair}' is not a polynomial decay: {error}{known}") from None
    return shapes


def draw_schedules(output: Path, pairs: Sequence[str]) -> Path:
    """Draw four panels: Fig. 4 (left) for the given pairs, and Table 3 for ResNet, MobileNetV2 and ShuffleNetV2.

    Solid lines end with the epochs trained; a polynomial that would go on after them does so dotted.

    Args:
        output: File to write.
        pairs: Texts like `11-53`.

    Returns:
        The file.

    Raises:
        ValueError: A bad pair or file name.
    """
    shapes = parse_pairs(pairs)
    check_output(output)
    figure = new_figure(12, 8)
    panels = figure.subplots(2, 2).ravel()
    for axes in panels:
        plain(axes)
        axes.set_xlabel("epoch")
        axes.set_ylabel("learning rate")
    base = TABLE_3["gcp_resnet_fast"].base_lr
    panels[0].set_title("Eq. 9 with various ρ-e_f (Fig. 4, left)")
    for index, shape in enumerate(shapes):
        epochs = _ticks(shape.end)
        colour = COLOURS[index % len(COLOURS)]
        panels[0].plot(epochs, [base * shape(e) for e in epochs], color=colour, label=f"{shape.power:g}-{shape.end:g}")
    for axes, network, title in zip(
        panels[1:], ("resnet", "mobilenetv2", "shufflenetv2"), ("ResNet", "MobileNetV2", "ShuffleNetV2"), strict=True
    ):
        axes.set_title(f"{title} (Table 3)")
        if network != "shufflenetv2":  # whose curves are straight lines
            axes.set_yscale("log")
        for name in [name for name in TABLE_3 if name.startswith(f"gcp_{network}_")]:
            _draw_row(axes, name)
    panels[1].set_ylim(bottom=5e-6)  # what follows of the dotted line is below any rate of use
    for axes in panels:
        axes.legend(frameon=False, loc="upper right")
    return save(figure, output)


def _draw_row(axes: Axes, name: str) -> None:
    row = TABLE_3[name]
    printed = f"{name}_released" in TABLE_3
    label, colour, style = _PRINTED if printed else _STYLES[name.removesuffix("_released").rsplit("_", 1)[1]]
    # On a logarithmic axis the rates that are trained with are drawn, up to the last tick before zero.
    epochs = [e for e in _ticks(row.epochs, steps=row.per_update) if row.lr(e) > 0]
    axes.plot(
        epochs,
        [row.lr(e) for e in epochs],
        color=colour,
        linestyle=style,
        label=f"{label} ({row.epochs} epochs)",
        drawstyle="default" if row.per_update else "steps-post",
    )
    if isinstance(row.shape, Polynomial) and row.shape.end > row.epochs:
        beyond = list(range(row.epochs - 1, int(row.shape.end)))
        axes.plot(
            beyond,
            [row.lr(e) for e in beyond],
            color=colour,
            linestyle=":",
            drawstyle="steps-post",
            label=f"{label}, not trained",
        )


def _ticks(end: float, steps: bool = False) -> list[float]:
    per_epoch = 10 if steps else 1
    return [tick / per_epoch for tick in range(int(end) * per_epoch + 1)]
