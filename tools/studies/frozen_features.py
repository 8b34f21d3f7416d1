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
        with torch.inference_mode():
            same = torch.allclose(end(start(probe)), model.forward_features(probe), rtol=1e-3, atol=1e-3)
    except RuntimeError:  # of another shape
        same = False
    if not same:
        raise ValueError(
            "the modules of `end`, one after the other, are not the rest of forward_features: name all of it."
        )
    return start


def feature_maps(
    study: dict[str, Any], data_dir: str, cache: Path, end: Sequence[str] = (), last: bool = False
) -> Maps:
    """Feature maps of every image, from `cache` where they are there: the last ones, or the input of the modules `end`.

    With `end` and `last` the last ones are computed from the input of `end`, which is kept, too.

    Raises:
        ValueError: `end` is not the end of the network.
    """
    data, shape = study["data"], study["input"]
    images, targets = packed(data_dir, "", data["pixels"], cache, data["exclude"])
    kept = cache / f"maps-{'-'.join((Path(study['file']).stem, *(() if last else end[:1])))}.safetensors"
    if not kept.is_file():
        model: Any = create_model(**study["model"]).eval().to(memory_format=torch.channels_last)
        size, mean, std = shape["size"], *(torch.tensor(shape[key]).view(3, 1, 1) for key in ("mean", "std"))
        edge = (data["pixels"] - size) // 2

        def normalised(part: slice) -> Tensor:
            crop = images[part, :, edge : edge + size, edge : edge + size].float() / 255
            return (torch.stack((crop, crop.flip(3)), 1).flatten(0, 1) - mean) / std

        compute, inputs = model.forward_features, normalised
        if end and last:
            before, compute = feature_maps(study, data_dir, cache, end).features, end_of(model, end)
            inputs = lambda part: before[part].flatten(0, 1).float()  # noqa: E731
        elif end:
            compute = _start_of(model, end_of(model, end), torch.randn(1, 3, size, size))
        with replacing(kept) as partial:
            save_file({"features": _computed(compute, inputs, len(images))}, partial)
    return Maps(load_file(kept)["features"], targets)


@torch.inference_mode()
def _computed(compute: Callable[[Tensor], Tensor], inputs: Callable[[slice], Tensor], count: int) -> Tensor:
    found = []
    for start in tqdm(range(0, count, 32), desc="features", disable=None):
        maps = compute(inputs(slice(start, start + 32)).contiguous(memory_format=torch.channels_last))
        found.append(maps.half().unflatten(0, (-1, 2)).contiguous())
    return torch.cat(found)
