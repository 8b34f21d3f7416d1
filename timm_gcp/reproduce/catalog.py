"""All tables and figures by name."""

from __future__ import annotations

import re

from timm_gcp.common.messages import did_you_mean
from timm_gcp.reproduce import classification, cost, derivation, detection, gradients, landscape, robustness, schedules
from timm_gcp.reproduce.item import Item

_MODULES = (gradients, classification, schedules, robustness, detection, cost, landscape, derivation)
_KINDS = ("table", "fig", "appendix")


def _order(item: Item) -> tuple[int, int]:
    kind, number = re.fullmatch(r"([a-z]+)(\d+)", item.name).groups()  # type: ignore[union-attr]
    return _KINDS.index(kind), int(number)


ITEMS: dict[str, Item] = {
    item.name: item for item in sorted((item for module in _MODULES for item in module.ITEMS), key=_order)
}
# Appendices that consist of a table or figure.
ALIASES = {"appendix1": "fig2", "appendix3": "fig5", "appendix5": "table9"}
_ROMAN = {"i": "1", "ii": "2", "iii": "3", "iv": "4", "v": "5"}


def find_item(text: str) -> Item:
    """The table or figure that a text names: `table2`, `Table 2`, `fig. 3`, `figure3`, `appendixII`.

    Raises:
        ValueError: Another name; lists the known ones.
    """
    name = re.sub(r"[\s._-]", "", text.lower()).replace("figure", "fig")
    if name.startswith("appendix"):
        number = name.removeprefix("appendix")
        name = "appendix" + _ROMAN.get(number, number)
    name = ALIASES.get(name, name)
    if name not in ITEMS:
        known = [*ITEMS, *(f"{alias} ({ITEMS[target].title})" for alias, target in ALIASES.items())]
        raise ValueError(f"no table or figure {text!r}; there are {', '.join(known)}.{did_you_mean(name, ITEMS)}")
    return ITEMS[name]
