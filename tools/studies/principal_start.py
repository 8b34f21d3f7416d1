"""Start weights of a run whose new reduction begins at the principal components of its own training images."""

from __future__ import annotations

import argparse
from pathlib import Path

from image_tensors import Images
from safetensors.torch import save_file
from timm.utils import random_seed

from timm_gcp.common.device import pick_device
from timm_gcp.common.files import replacing
from timm_gcp.models.principal import init_reduction
from timm_gcp.train.build import build_model, resolve_data
from timm_gcp.train.in_memory import TensorLoader


def principal_start(args: argparse.Namespace, images: Images, path: Path) -> Path:
    """Write what a run starts from, unless it is there; return the file.

    The model is built as the run builds it, from the same seed; its reduction is then set from the images as they are
    in validation.

    Args:
        args: The run's resolved recipe.
        images: The images that it trains on, and their classes.
        path: The safetensors file.

    Raises:
        ValueError: The model has no covariance pooling with a reduction of one step.
    """
    if not path.is_file():
        device = pick_device(args.device)
        random_seed(args.seed, 0)
        model = build_model(args, device)
        loader = TensorLoader(*(tensor.to(device) for tensor in images), args, resolve_data(args, model), False)
        init_reduction(model, loader)
        state = {key: value.cpu().contiguous() for key, value in model.state_dict().items()}
        with replacing(path) as partial:
            save_file(state, partial, metadata={"format": "pt"})
    return path
