"""The page MODEL_CARDS.md: all model cards below one table."""

from __future__ import annotations

from timm_gcp.weights import catalog as table
from timm_gcp.weights.cards import body

COMMAND = "python tools/release/make_model_cards.py"


def model_cards() -> str:
    """The page MODEL_CARDS.md: one section per bundled and per published weight."""
    header = (
        "# Model cards\n\n"
        f"Made from `timm_gcp/weights/bundled.py` and `timm_gcp/weights/authors.py` by `{COMMAND}`; do not edit.\n\n"
        "## Weights in this package\n\n"
        "Trained with its recipes, on Caltech-101 (photographs) or Fashion-MNIST; they load without a network.\n\n"
    )
    shipped = [
        _row(name, _width(name), entry.params, "–", entry.top1, entry.top5)
        for name, entry in table.BUNDLED_WEIGHTS.items()
    ]
    middle = (
        "\n\n## The authors' weights\n\n"
        f"{len(table.WEIGHTS)} weights on ImageNet-1k. {table.NO_LICENCE} None of them is part of this package: "
        "`timm-gcp weights fetch NAME` downloads and checks the authors' file, see `docs/weights.md`.\n\n"
    )
    released = [
        _row(name, _width(name), facts.params, f"{facts.gmacs:.2f}", entry.figures[0].top1, entry.figures[0].top5)
        for name, entry in table.WEIGHTS.items()
        for facts in (entry.architecture,)
    ]
    sections = [f"## {name}\n\n{body(name)}" for name in (*table.BUNDLED_WEIGHTS, *table.WEIGHTS)]
    head = "| weights | D | parameters | GMACs | top-1 % | top-5 % |\n|---|---|---|---|---|---|\n"
    return header + head + "\n".join(shipped) + middle + head + "\n".join([*released, "", *sections])


def _width(name: str) -> str:
    return str(table.ARCHITECTURES[name.split(".")[0]].dimension or "–")


def _row(name: str, width: str, params: int, gmacs: str, top1: float, top5: float) -> str:
    anchor = name.replace(".", "")
    return f"| [{name}](#{anchor}) | {width} | {params / 1e6:.2f} M | {gmacs} | {top1:.2f} | {top5:.2f} |"
