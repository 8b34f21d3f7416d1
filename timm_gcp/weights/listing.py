"""What `timm-gcp weights list` shows, as rows: each known, stored or bundled name, its state, facts and figures."""

from __future__ import annotations

from typing import Any

from timm_gcp.weights import cards, store
from timm_gcp.weights import catalog as table


def rows(pattern: str = "*") -> list[dict[str, Any]]:
    """What `list` shows: one dict per known, stored or bundled name that matches `pattern`.

    Raises:
        ValueError: None matches.
    """
    own = [name for name in (*table.bundled_names(), *store.stored_names()) if name not in table.WEIGHTS]
    names = table.matching(pattern, [*table.WEIGHTS, *dict.fromkeys(own)])
    return [_row(name) for name in names]


def _row(name: str) -> dict[str, Any]:
    entry, facts = table.WEIGHTS.get(name), table.ARCHITECTURES.get(name.split(".")[0])
    shipped = table.BUNDLED_WEIGHTS.get(name)
    known = shipped or entry
    folder = store.find(name)
    own_figure = {"top1": shipped.top1, "top5": shipped.top5, "origin": cards.MEASURED} if shipped else None
    return {
        "name": name,
        "state": store.state(name),
        "folder": str(folder) if folder else None,
        "hub_id": table.hub_id(name) if name in table.ON_THE_HUB else None,
        "dimension": facts.dimension if facts else None,
        "params": shipped.params if shipped else facts.params if facts else None,
        "gmacs": facts.gmacs if facts and not shipped else None,
        "dataset": known.dataset if known else None,
        "figures": [own_figure] if own_figure else [vars(figure) for figure in entry.figures] if entry else [],
        "schedule": known.schedule if known else None,
        "recipe": known.recipe if known else None,
        "source_name": entry.source_name if entry else None,
        "google_drive_id": entry.google_drive_id if entry else None,
        "sha256": known.sha256 if known else None,
        "licence": known.licence if known else None,
        "licence_note": entry.licence_note if entry else None,
    }
