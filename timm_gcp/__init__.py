"""timm_gcp: global covariance pooling (GCP) for timm. Importing it registers the models with timm.

Where timm has not been imported yet, the models are registered at the end of its import, so that commands which need
neither timm nor torch start at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from timm_gcp.common.on_import import when_imported

if TYPE_CHECKING:
    from timm_gcp import functional, models
    from timm_gcp.models.head import swap_pooling
    from timm_gcp.models.pooling import GlobalCovPool2d

__version__ = "0.1.0"

__all__ = ["GlobalCovPool2d", "__version__", "functional", "models", "swap_pooling"]

_HOME = {"swap_pooling": "timm_gcp.models.head", "GlobalCovPool2d": "timm_gcp.models.pooling"}


def __getattr__(name: str) -> Any:
    """The public names, each imported when it is first asked for."""
    if name in ("functional", "models"):
        return importlib.import_module(f"timm_gcp.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'timm_gcp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _register() -> None:
    importlib.import_module("timm_gcp.models.gcp")


when_imported("timm", _register)
