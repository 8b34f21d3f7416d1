"""Write MODEL_CARDS.md and the cards of the bundled weights from their tables.

python tools/release/make_model_cards.py
"""

from __future__ import annotations

from pathlib import Path

from timm_gcp.common.files import write_text
from timm_gcp.weights.cards import card
from timm_gcp.weights.cards_page import model_cards
from timm_gcp.weights.catalog import BUNDLED_WEIGHTS

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Write the page, and a README.md beside every bundled file of weights."""
    pages = {ROOT / "MODEL_CARDS.md": model_cards()}
    for name in BUNDLED_WEIGHTS:
        folder = ROOT / "timm_gcp" / "weights_bundled" / name
        if folder.is_dir():
            pages[folder / "README.md"] = card(name)
    for path, text in pages.items():
        write_text(path, text)
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
