"""`timm-gcp init --to FILE`: start weights of a new covariance head, from the principal components of its features."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset
from tqdm import tqdm

from timm_gcp.commands.options import add_shared, check_weights
from timm_gcp.common.files import replacing
from timm_gcp.common.ranges import COUNT, whole
from timm_gcp.inference.image_data import class_names, open_data
from timm_gcp.inference.model import load_model
from timm_gcp.inference.options import add_model_arguments
from timm_gcp.models.principal import init_reduction, only_pool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `timm-gcp init`."""
    add_model_arguments(parser)
    add_shared(parser, "pretrained", help="the model's pretrained weights, where no checkpoint is given")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE", help="safetensors file to write")
    parser.add_argument("--data-dir", required=True, metavar="DIR", help="folder of the data set")
    parser.add_argument(
        "--dataset", default="", metavar="NAME", help="data set as timm names it; an image folder if empty"
    )
    parser.add_argument("--train-split", default="train", metavar="NAME", help="its training images")
    parser.add_argument("--num-images", type=whole(COUNT), default=2000, metavar="N", help="images drawn from these")
    parser.add_argument("--seed", type=int, default=42, metavar="N", help="of the draw and of the new classifier")
    add_shared(parser, "batch_size", default=32)
    add_shared(parser, "workers")


def main(args: argparse.Namespace) -> int:
    """Set the reduction and write the model's state dict."""
    if args.to.suffix != ".safetensors":
        raise ValueError(f"--to names the file to write and must end in .safetensors, got {str(args.to)!r}.")
    check_weights(args)
    images = open_data(
        args.dataset, args.data_dir, args.train_split, args.in_chans or 3, option="--train-split", is_training=True
    )
    classes = class_names(images)
    if args.num_classes is None and classes is not None and not args.checkpoint:
        args.num_classes = len(classes)
    torch.manual_seed(args.seed)
    loaded = load_model(args, pretrained=args.pretrained)
    batches = _batches(images, loaded.data_config, args)
    with loaded.autocast:
        share = init_reduction(loaded.model, tqdm(batches, desc="features", leave=False, disable=None))
    state: dict[str, Tensor] = {key: value.cpu().contiguous() for key, value in loaded.model.state_dict().items()}
    with replacing(args.to) as partial:
        save_file(state, partial, metadata={"format": "pt"})
    step: Any = only_pool(loaded.model).reduction[0]
    print(
        f"{args.to}: {loaded.name}, {loaded.model.num_classes} classes; {step.conv.in_channels} channels to "
        f"{step.conv.out_channels}, which hold {100 * share:.1f} % of the variance of {len(batches.dataset)} images. "  # type: ignore[arg-type]
        f"Train from it with --initial-checkpoint {args.to}"
    )
    if not isinstance(step.act, nn.Identity):
        act = type(step.act).__name__
        print(
            f"The {act} behind the reduction cuts off part of each component; head_act_layer=identity keeps them whole."
        )
    return 0


def _batches(images: Any, config: dict[str, Any], args: argparse.Namespace) -> DataLoader[Any]:
    """Images drawn by the seed, as in evaluation."""
    from timm.data import create_transform

    images.transform = create_transform(**config, is_training=False)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(args.seed))
    drawn = Subset(images, order[: args.num_images].tolist())
    return DataLoader(drawn, batch_size=args.batch_size, num_workers=args.workers)
