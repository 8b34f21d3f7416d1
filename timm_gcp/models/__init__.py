"""The registered models, the pooling layer, the head swap and the backbone that timm lacks."""

from timm_gcp.models.cross_pooling import CrossCovPool2d, MultiheadCrossCovPool
from timm_gcp.models.gcp import LAST_STAGES, default_cfgs, set_last_stage
from timm_gcp.models.head import swap_pooling
from timm_gcp.models.pooling import GlobalCovPool2d
from timm_gcp.models.principal import init_reduction
from timm_gcp.models.registered import register
from timm_gcp.models.shufflenetv2 import ShuffleNetV2
from timm_gcp.models.swapped import gcp_swap

__all__ = [
    "LAST_STAGES",
    "CrossCovPool2d",
    "GlobalCovPool2d",
    "MultiheadCrossCovPool",
    "ShuffleNetV2",
    "default_cfgs",
    "gcp_swap",
    "init_reduction",
    "register",
    "set_last_stage",
    "swap_pooling",
]
