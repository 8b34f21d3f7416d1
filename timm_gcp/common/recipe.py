"""Find and read recipes: flat YAML files with the keys of timm's train.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from timm_gcp.common.messages import did_you_mean

_PACKAGE = Path(__file__).resolve().parents[1]
_SHIPPED = (_PACKAGE / "recipes", _PACKAGE.parent / "recipes")  # in a wheel, in a checkout


def recipe_dirs() -> list[Path]:
    """The folders that hold the shipped recipes: inside the installed package, or beside it in a checkout."""
    return [folder for folder in _SHIPPED if folder.is_dir()]


def list_recipes() -> list[str]:
    """Names of the shipped recipes, without `.yaml`."""
    return sorted({path.stem for folder in recipe_dirs() for path in folder.glob("*.yaml")})


def find_recipe(name: str | Path) -> Path:
    """Resolve a recipe given as a path, or as the name of a shipped one (`quickstart`, `resnet_adju.yaml`).

    Raises:
        FileNotFoundError: Neither a file of that path nor a shipped recipe; lists the known names.
    """
    path = Path(name)
    if path.is_file():
        return path
    if path.parent == Path("."):
        for folder in recipe_dirs():
            shipped = folder / f"{path.name.removesuffix('.yaml')}.yaml"
            if shipped.is_file():
                return shipped
    known = list_recipes()
    raise FileNotFoundError(
        f"no recipe {str(name)!r}: not a file, and not one of the shipped recipes ({', '.join(known) or 'none found'})."
        f"{did_you_mean(path.stem, known)}"
    )


def read_recipe(path: str | Path) -> dict[str, Any]:
    """The keys and values of a recipe file, as YAML types; keys are not checked here.

    Raises:
        ValueError: Not YAML, or not a flat mapping of keys to values.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"recipe {str(path)!r} is not a YAML file: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ValueError(
            f"recipe {str(path)!r} must be a flat mapping of train.py's keys to values (`epochs: 10`), "
            f"got {type(content).__name__}."
        )
    return content
