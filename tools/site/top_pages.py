"""A hook of mkdocs: pages that lie beside docs/ (README.md, …) join the site, and links between both keep working."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
TOP_PAGES = {"README.md": "index.md", "samples/photos/README.md": "photos.md"}
TOP_PAGES |= {name: name for name in ("MODEL_CARDS.md", "CONTRIBUTING.md", "CHANGELOG.md")}


def on_files(files: Files, config: Any) -> Files:
    """Add the top pages."""
    for source, target in TOP_PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, target, content=inside(text)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links of a page in docs/ to a top page."""
    for source, target in TOP_PAGES.items():
        markdown = re.sub(rf"\]\(\.\./{re.escape(source)}(#[^)]*)?\)", rf"]({target}\1)", markdown)
    return markdown


def inside(text: str) -> str:
    """Links of a top page, seen from docs/: without the folder's name, and top pages by their name there."""
    text = re.sub(r"\]\(docs/", "](", text)
    for source, target in TOP_PAGES.items():
        text = text.replace(f"]({source}", f"]({target}")
    return text
