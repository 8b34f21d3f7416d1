"""The table of docs/reproduce.md, which `timm-gcp reproduce list` prints: a row for each table and figure."""

from __future__ import annotations

from collections.abc import Iterable

from timm_gcp.reproduce.item import Item

OPTIONS = {
    "imagenet": "--data-dir IMAGENET",
    "coco": "--coco-dir COCO",
    "imagenet_c": "--imagenet-c IMAGENET_C",
    "imagenet_p": "--imagenet-p IMAGENET_P",
}
HEADER = ("", "what", "command", "time and hardware", "the paper", "here")


def command_of(item: Item) -> str:
    """The command with the data that the item needs."""
    return " ".join(["timm-gcp reproduce", item.name, *(OPTIONS[name] for name in item.data)])


def overview(items: Iterable[Item]) -> str:
    """The table in Markdown."""
    lines: list[Iterable[str]] = [HEADER, ["---"] * len(HEADER)]
    for item in items:
        lines.append([item.title, item.what, f"`{command_of(item)}`", item.cost(), item.claim, item.here()])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
