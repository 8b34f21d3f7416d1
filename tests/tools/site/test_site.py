"""The documentation builds as a site, and every link and anchor in it leads somewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CONFIG = "tools/site/mkdocs.yml"


def build(site: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Build the site of a checkout, any warning an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(root / CONFIG), "-d", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def test_builds_without_a_dead_link(tmp_path):
    done = build(tmp_path / "site")
    assert done.returncode == 0, done.stderr
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert 'href="weights.html"' in index and 'href="MODEL_CARDS.html"' in index
    assert 'href="MODEL_CARDS.html"' in (tmp_path / "site" / "weights.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("link", "told"), [("nothere.md", "nothere.md"), ("weights.md#nope", "#nope")])
def test_a_dead_link_fails(tmp_path, link, told):
    root = tmp_path / "checkout"
    (root / "docs").mkdir(parents=True)
    (root / "tools").mkdir()
    (root / "samples" / "photos").mkdir(parents=True)
    (root / "tools" / "site").symlink_to(ROOT / "tools" / "site")
    for name in ("README.md", "samples/photos/README.md", "MODEL_CARDS.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        (root / name).write_text("# Page\n", encoding="utf-8")
    for page in (ROOT / "docs").rglob("*"):
        if page.is_file():
            copy = root / "docs" / page.relative_to(ROOT / "docs")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(page.read_bytes())
    page = root / "docs" / "train.md"
    page.write_text(page.read_text(encoding="utf-8") + f"\n[one]({link})\n", encoding="utf-8")
    done = build(tmp_path / "site", root)
    assert done.returncode != 0
    assert told in done.stderr
