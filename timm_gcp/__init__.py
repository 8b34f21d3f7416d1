"""timm_gcp: global covariance pooling (GCP) for timm. Importing it registers the models."""

from timm_gcp import functional, models
from timm_gcp.models.head import swap_pooling
from timm_gcp.models.pooling import GlobalCovPool2d

__version__ = "0.1.0"

__all__ = ["GlobalCovPool2d", "__version__", "functional", "models", "swap_pooling"]
