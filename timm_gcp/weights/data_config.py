"""timm's data configuration as a file or an option gives it: how images are prepared, each key checked before use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from timm_gcp.common.messages import one_line
from timm_gcp.weights.allowed import is_number

DATA_KEYS = ("input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode")
INTERPOLATIONS = ("nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos", "random")
CROP_MODES = ("center", "squash", "border")


def checked_data_config(given: Mapping[str, Any], where: str, largest: int = 16_384) -> dict[str, Any]:
    """Keys of timm's data configuration (and `img_size`), each of its type and in range; lists become tuples.

    Args:
        given: The keys.
        where: Where they were found, for errors.
        largest: Pixels that a side may have.

    Raises:
        ValueError: A value is out of range or of another type; names the key and the value.
    """
    found: dict[str, Any] = {}
    for key, value in given.items():
        wanted = ""
        if key == "input_size":
            value = as_items(value)
            good = len(value) == 3 and all(type(item) is int and 1 <= item <= largest for item in value)
            wanted = f"channels, height and width, each from 1 to {largest}"
        elif key == "img_size":
            good, wanted = type(value) is int and 1 <= value <= largest, f"a whole number of pixels from 1 to {largest}"
        elif key in ("mean", "std"):
            value = as_items(value)
            low = -1e4 if key == "mean" else 1e-6
            good = bool(value) and all(is_number(item, low, 1e4) for item in value)
            wanted = "numbers, one per channel" + (" and above 0" if key == "std" else "") + f", {low:g} to 10000"
        elif key == "crop_pct":
            good, wanted = is_number(value, 0.05, 10), "a number above 0, from 0.05 to 10"
        elif key == "interpolation":
            good, wanted = value in INTERPOLATIONS, f"one of {', '.join(INTERPOLATIONS)}"
        elif key == "crop_mode":
            good, wanted = value in CROP_MODES, f"one of {', '.join(CROP_MODES)}"
        else:
            raise ValueError(
                f"{where}: a data configuration has no key {one_line(key, 80)!r}; it has {', '.join(DATA_KEYS)}."
            )
        if not good:
            raise ValueError(f"{where}: {key} must be {wanted}, got {one_line(value, 80)!r}.")
        found[key] = value
    return found


def describe(config: Mapping[str, Any]) -> str:
    """A data configuration in words."""
    size = "×".join(str(side) for side in config["input_size"])
    mean, std = (", ".join(f"{value:.3g}" for value in config[key]) for key in ("mean", "std"))
    rest = f"{config['interpolation']}, crop {config['crop_pct']:g} ({config['crop_mode']})"
    return f"input {size}, mean {mean}, std {std}, {rest}"


def read_data_config(path: str | Path) -> dict[str, Any]:
    """A JSON or YAML file of timm's data configuration keys.

    Raises:
        FileNotFoundError: No such file.
        ValueError: Not a flat mapping of those keys.
    """
    import yaml

    if not Path(path).is_file():
        raise FileNotFoundError(f"no data configuration at {str(path)!r}.")
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is neither JSON nor YAML: {one_line(error)}.") from error
    if not isinstance(content, Mapping):
        raise ValueError(f"{str(path)!r} must map {', '.join(DATA_KEYS)} to values, got a {type(content).__name__}.")
    return checked_data_config({str(key): value for key, value in content.items()}, repr(str(path)))


def as_items(value: Any) -> tuple[Any, ...]:
    """A list as a tuple, a single value as a tuple of one."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)
