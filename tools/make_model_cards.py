"""Write MODEL_CARDS.md from the table of published weights: `python tools/make_model_cards.py`."""

from __future__ import annotations

import os
from pathlib import Path

from timm_gcp.cards import model_cards

PAGE = Path(__file__).parents[1] / "MODEL_CARDS.md"


def main() -> None:
    """Write the page."""
    draft = PAGE.with_suffix(".md.tmp")
    draft.write_text(model_cards(), encoding="utf-8")
    os.replace(draft, PAGE)
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
