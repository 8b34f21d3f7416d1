"""`pretrained_backbone=True`: a swapped model whose backbone starts from timm's weights, and whose head is new."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from timm_gcp.weights.hub_errors import explain

_logger = logging.getLogger(__name__)


@contextmanager
def backbone_weights(name: str, wanted: bool) -> Iterator[None]:
    """Surround the making of a backbone with its timm weights; says that the head is new.

    Args:
        name: timm name of the backbone.
        wanted: Whether its weights are loaded; if not, nothing happens.

    Raises:
        ValueError: timm has no weights of it.
        RuntimeError: The Hub does not deliver.
    """
    import timm

    if not wanted:
        yield
        return
    cfg = timm.get_pretrained_cfg(name)
    if cfg is None or not cfg.has_weights:
        known = ", ".join(timm.list_pretrained(f"{name.split('.')[0]}.*")) or "none"
        raise ValueError(
            f"timm has no pretrained weights for the backbone {name} (tags: {known}): leave pretrained_backbone out"
        )
    try:
        yield
    except Exception as error:
        text = explain(error, name)
        if text is None:
            raise
        raise RuntimeError(text) from error
    _logger.warning("%s starts from timm's weights; its covariance head is new and has to be trained.", name)
