"""timm_gcp: global covariance pooling (GCP) for timm. Importing it registers the models.

The one program that does not wait for that is the `timm-gcp` command, which answers `--help` and `weights list` without
torch: there the models are registered when a command needs them, and the public names are imported when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from timm_gcp.common.program import is_command_line

__version__ = "0.1.0"

__all__ = ["GlobalCovPool2d", "__version__", "functional", "init_reduction", "models", "register", "swap_pooling"]

if TYPE_CHECKING or not is_command_line():
    from timm_gcp import functional, models
    from timm_gcp.models.head import swap_pooling
    from timm_gcp.models.pooling import GlobalCovPool2d
    from timm_gcp.models.principal import init_reduction
    from timm_gcp.models.registered import register


def __getattr__(name: str) -> Any:
    """A public name that the import has left out."""
    if name in ("functional", "models"):
        return import_module(f"timm_gcp.{name}")
    if name in __all__:
        return getattr(import_module("timm_gcp.models"), name)
    raise AttributeError(f"module 'timm_gcp' has no attribute {name!r}")
