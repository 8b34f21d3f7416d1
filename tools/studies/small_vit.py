"""Models of the study of tokens: a small ViT with the class token, and with SoT's pooling beside it.

`gcp:vit_tiny_patch16_224` is the same network with `swap_pooling`'s heads.
"""

from __future__ import annotations

from typing import Any

from timm.models import register_model
from timm.models.vision_transformer import VisionTransformer, vit_tiny_patch16_224
from torch import Tensor, nn

from timm_gcp.models import MultiheadCrossCovPool
from timm_gcp.models.initial_values import init_linear


class SotVisionTransformer(VisionTransformer):
    """A ViT whose logits are those of its class token plus those of the cross-covariance of its patches.

    Source: SoT, Xie et al. 2021, https://arxiv.org/abs/2104.10935.
    """

    cov_pool: MultiheadCrossCovPool
    cov_fc: nn.Linear

    def add_covariance(self, num_heads: int, head_dim: int) -> None:
        """Give the model the second pooling and its classifier."""
        self.cov_pool = MultiheadCrossCovPool(self.embed_dim, num_heads, head_dim)
        self.cov_fc = nn.Linear(num_heads * head_dim**2, self.num_classes)
        init_linear(self.cov_fc, "fan_out_normal")

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Sum of both classifiers' logits `(B, num_classes)`; with `pre_logits`, the covariance vectors."""
        covariance = self.cov_pool(x[:, self.num_prefix_tokens :])
        return covariance if pre_logits else super().forward_head(x) + self.cov_fc(covariance)


@register_model
def small_vit_sot(pretrained: bool = False, cov_heads: int = 4, cov_dim: int = 16, **kwargs: Any) -> Any:
    """`vit_tiny_patch16_224` with SoT's pooling beside the class token."""
    model: Any = vit_tiny_patch16_224(pretrained=pretrained, **kwargs)
    model.__class__ = SotVisionTransformer
    model.add_covariance(cov_heads, cov_dim)
    return model
