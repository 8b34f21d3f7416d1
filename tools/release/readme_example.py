"""Print README's Python example, for a check that runs it: python tools/release/readme_example.py > example.py."""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"


def example(text: str) -> str:
    """The first Python block of a Markdown text.

    Raises:
        ValueError: There is none.
    """
    found = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(
            "README.md has no Python example: its first screen should show one, between ```python and ```."
        )
    return found.group(1)


if __name__ == "__main__":
    sys.stdout.write(example(README.read_text(encoding="utf-8")))
