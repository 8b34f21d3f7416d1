"""Feature maps of all images of a study, upright and mirrored, from a network or from its first stages; made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from image_tensors import packed
from safetensors.torch import load_file, save_file
from timm import create_model
from torch import Tensor, nn
from tqdm import tqdm

from timm_gcp.common.files import replacing


@dataclass(frozen=True)
class Maps:
    """Feature maps `(N, 2, C, h, w)` of all images, upright and mirrored, in half precision, and their classes."""

    features: Tensor
    targets: Tensor


class _ReachedError(Exception):
    """Ends a forward pass where the trained stages begin."""


def end_of(model: Any, names: Sequence[str]) -> nn.Sequential:
    """The last modules of `model.forward_features`, by their names, one after the other.

    Raises:
        ValueError: The model has no module of a name.
    """
    known = dict(model.named_modules())
    for name in names:
        if name not in known:
            raise ValueError(f"{type(model).__name__} has no module {name!r}: name the last ones of forward_features.")
    return nn.Sequential(*(known[name] for name in names))


def _start_of(model: Any, end: nn.Sequential, probe: Tensor) -> Callable[[Tensor], Tensor]:
    """The network up to `end`.

    Raises:
        ValueError: `end` on what comes before it is not `model.forward_features`.
    """

    def start(images: Tensor) -> Tensor:
        found: list[Tensor] = []

        def stop(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            found.append(inputs[0])
            raise _ReachedError

        hook = end[0].register_forward_pre_hook(stop)
        try:
            model.forward_features(images)
        except _ReachedError:
            pass
        finally:
            hook.remove()
        return found[0]

    try:
        same = torch.allclose(end(start(probe)), model.forward_features(probe), rtol=1e-3, atol=1e-3)
    except RuntimeError:  # of another shape
        same = False
    if not same:
        raise ValueError(
            "the modules of `end`, one after the other, are not the rest of forward_features: name all of it."
        )
    return start


@torch.inference_mode()
def feature_maps(study: dict[str, Any], data_dir: str, cache: Path, end: Sequence[str] = ()) -> Maps:
    """Feature maps of every image, from `cache` where they are there: the last ones, or the input of the modules `end`.

    Raises:
        ValueError: `end` is not the end of the network.
    """
    data, shape = study["data"], study["input"]
    images, targets = packed(data_dir, "", data["pixels"], cache, data["exclude"])
    path = cache / f"maps-{'-'.join((Path(study['file']).stem, *end[:1]))}.safetensors"
    if not path.is_file():
        model: Any = create_model(**study["model"]).eval().to(memory_format=torch.channels_last)
        size, mean, std = shape["size"], *(torch.tensor(shape[key]).view(3, 1, 1) for key in ("mean", "std"))
        compute = _start_of(model, end_of(model, end), torch.randn(1, 3, size, size)) if end else model.forward_features
        edge = (data["pixels"] - size) // 2
        found = []
        for start in tqdm(range(0, len(images), 32), desc="features", disable=None):
            batch = images[start : start + 32, :, edge : edge + size, edge : edge + size].float() / 255
            both = torch.stack((batch, batch.flip(3)), 1).flatten(0, 1)
            maps = compute(((both - mean) / std).contiguous(memory_format=torch.channels_last))
            found.append(maps.half().unflatten(0, (-1, 2)).contiguous())
        with replacing(path) as partial:
            save_file({"features": torch.cat(found)}, partial)
    return Maps(load_file(path)["features"], targets)
