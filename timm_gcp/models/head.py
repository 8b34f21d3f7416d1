"""The pooling-head swap: global covariance pooling in place of the global average pooling of any timm CNN.

timm's heads differ, but all have one pooling module (`SelectAdaptivePool2d`) and one classifier. The swap replaces both
where they stand, so that the model's own forward code runs on, and turns what lies between them (a norm, a flatten, a
hidden convolution: layers for the pooled map that no longer exists) into identities.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from timm.layers import SelectAdaptivePool2d
from torch import Tensor, nn

from timm_gcp.functional import Normalization
from timm_gcp.models.initial_values import init_linear
from timm_gcp.models.pooling import GlobalCovPool2d
from timm_gcp.models.swap_args import note_swap
from timm_gcp.models.swap_check import check_swapped, remember, run_on_zeros


class GcpModel:
    """What a swapped model adds to its timm class: `reset_classifier` that knows the covariance head."""

    def reset_classifier(
        self: Any, num_classes: int, global_pool: str | None = None, reset_other: bool = False
    ) -> None:
        """Replace the classifier, and the pooling if another is named.

        Args:
            num_classes: Classes; 0 for none.
            global_pool: None keeps the pooling and its reduction; `'gcp'`, or a name that timm knows
                (`'avg'`, `'max'`, …); `''` leaves the feature map unpooled.
            reset_other: As timm's feature extractors ask of some heads: without the layers between pooling and
                classifier, which the swap has removed in any case.
        """
        spec = self._gcp
        pool: Any = self.get_submodule(spec["pool"])
        kind = pool.pool_type if global_pool is None else global_pool
        factory = _device_dtype(self)
        if kind != pool.pool_type:
            pool = (
                GlobalCovPool2d(spec["channels"], **spec["options"], **factory) if kind == "gcp" else _timm_pool(kind)
            )
            _set_submodule(self, spec["pool"], pool.train(self.training))
        width = pool.out_features if kind == "gcp" else spec["channels"] * pool.feat_mult()
        fc = nn.Linear(width, num_classes, **factory) if num_classes > 0 else nn.Identity()
        if isinstance(fc, nn.Linear):
            init_linear(fc, spec["options"]["init"])
        _set_submodule(self, spec["classifier"], fc.train(self.training))
        self.num_classes = num_classes
        self.head_hidden_size = width

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copies and pickles are rebuilt from the timm class, which can be imported."""
        return _blank, (type(self).__mro__[2],), self.__dict__


@functools.cache
def _swapped_class(base: type) -> type:
    return type(f"{base.__name__}Gcp", (GcpModel, base), {"__module__": __name__, "__doc__": base.__doc__})


def _blank(base: type) -> Any:
    cls: Any = _swapped_class(base)
    return cls.__new__(cls)


def _timm_pool(kind: str) -> nn.Module:
    return SelectAdaptivePool2d(pool_type=kind, flatten=bool(kind))


def _device_dtype(model: nn.Module) -> dict[str, Any]:
    parameter = next(model.parameters())
    return {"device": parameter.device, "dtype": parameter.dtype}


def _set_submodule(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _pool_path(model: nn.Module) -> str:
    found = [name for name, module in model.named_modules() if isinstance(module, SelectAdaptivePool2d)]
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no global average pooling of a feature map to replace; "
            "swap_pooling takes timm CNNs whose forward_features gives (B, C, H, W)"
        )
    return found[-1]


def _classifier_path(model: nn.Module, pool_path: str) -> str:
    cfg = getattr(model, "pretrained_cfg", None) or {}
    named = cfg.get("classifier")
    scope = pool_path.rpartition(".")[0]
    names = [named] if isinstance(named, str) else list(named or ())
    names += [f"{scope}.{leaf}".lstrip(".") for leaf in ("fc", "classifier", "head", "last_linear")]
    modules = dict(model.named_modules())
    for name in names:
        if isinstance(modules.get(name), (nn.Linear, nn.Conv2d, nn.Identity)):
            return name
    raise ValueError(
        f"{type(model).__name__} has no single linear classifier (looked for {', '.join(names)}); "
        "create the model with one classifier head"
    )


def _channels(model: nn.Module) -> int:
    """Channels of the last feature map, found by one forward pass."""
    forward: Any = model.forward_features
    try:
        features = run_on_zeros(model, forward)
    except RuntimeError as error:
        raise ValueError(
            f"{type(model).__name__}.forward_features {error}; give the channels of its last feature map as channels="
        ) from error
    layout = getattr(model, "output_fmt", "NCHW")
    if not isinstance(features, Tensor) or features.ndim != 4 or str(layout).rpartition(".")[2] != "NCHW":
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(
            f"{type(model).__name__}.forward_features gives {shape} ({layout}), not a feature map (B, C, H, W); "
            "swap_pooling takes timm CNNs with NCHW features"
        )
    return features.shape[1]


def _clear_between(model: nn.Module, pool_path: str, classifier_path: str) -> None:
    """Make identities of the layers between pooling and classifier; dropout stays."""
    scope_path = pool_path.rpartition(".")[0]
    scope = model.get_submodule(scope_path)
    names = [name for name, _ in scope.named_children()]
    inner = classifier_path[len(scope_path) :].lstrip(".").split(".")
    for name in names[names.index(pool_path.rpartition(".")[2]) + 1 :]:
        if name != inner[0] and not isinstance(getattr(scope, name), nn.Dropout):
            setattr(scope, name, nn.Identity())
    for depth in range(1, len(inner)):  # SHViT: a norm inside the classifier's own module
        part = scope.get_submodule(".".join(inner[:depth]))
        for name, module in list(part.named_children()):
            if name != inner[depth] and not isinstance(module, nn.Dropout):
                setattr(part, name, nn.Identity())
    if scope_path and isinstance(
        getattr(scope, "in_conv", None), nn.Module
    ):  # EfficientViT: widens the map to be pooled
        scope.in_conv = nn.Identity()
    if scope_path and isinstance(getattr(model, "pre_logits", None), nn.Module):  # VGG: convolutions before the pooling
        model.pre_logits = nn.Identity()


def swap_pooling(
    model: nn.Module,
    reduce_dim: int | Sequence[int] | None = 256,
    normalization: Normalization = "newton_schulz",
    n_iter: int = 5,
    act_layer: Callable[..., nn.Module] = nn.ReLU,
    *,
    exponent: float = 0.5,
    eps: float = 1e-3,
    iteration_dtype: str | None = None,
    init: str = "fan_out_normal",
    pool_kwargs: Mapping[str, Any] | None = None,
    channels: int | None = None,
) -> Any:
    """Replace the pooling head of a timm CNN by global covariance pooling, in place.

    The pooling becomes a `GlobalCovPool2d` under its old name (`global_pool` or `head.global_pool`), the classifier a
    new `Linear(D(D+1)/2, num_classes)` under its old name; both are freshly initialised. `num_features` stays the
    width of the feature map, `head_hidden_size` becomes D(D+1)/2.

    Args:
        model: Any timm CNN whose `forward_features` gives `(B, C, H, W)`.
        reduce_dim: See `GlobalCovPool2d`, as are `normalization`, `n_iter`, `act_layer`, `exponent`, `eps`.
        normalization: Normalisation of the covariance: a name, or your own.
        n_iter: Newton–Schulz steps.
        act_layer: Activation of the reduction.
        exponent: Exponent of `'power'`.
        eps: Regulariser of `'log'`.
        iteration_dtype: See `timm_gcp.functional.global_cov_pool`.
        init: How reduction and classifier start: `'fan_out'`, `'fan_out_normal'` or `'torch'`, see
            `timm_gcp.models.initial_values`.
        pool_kwargs: Options by name of the pooling alone, see `GlobalCovPool2d`.
        channels: Channels of the feature map that is pooled; None finds them by one forward pass, and checks by
            another that the model runs with its new head.

    Returns:
        `model` itself, its class extended by `GcpModel`.

    Raises:
        ValueError: The model has no such map, no pooling to replace, does not run with another one, or is swapped
            already. It is then as it was.
    """
    if isinstance(model, GcpModel):
        raise ValueError(f"{type(model).__name__} already has a covariance head; use reset_classifier to change it")
    pool_path = _pool_path(model)
    classifier_path = _classifier_path(model, pool_path)
    told, channels = channels is not None, _channels(model) if channels is None else channels
    options = {
        "reduce_dim": reduce_dim,
        "normalization": normalization,
        "n_iter": n_iter,
        "act_layer": act_layer,
        "exponent": exponent,
        "eps": eps,
        "iteration_dtype": iteration_dtype,
        "init": init,
        "pool_kwargs": None if pool_kwargs is None else dict(pool_kwargs),
    }
    pool = GlobalCovPool2d(channels, **options, **_device_dtype(model))  # type: ignore[arg-type]
    restore = remember(model)
    swapped: Any = model
    try:
        _clear_between(model, pool_path, classifier_path)
        _set_submodule(model, pool_path, pool.train(model.training))
        swapped._gcp = {"pool": pool_path, "classifier": classifier_path, "channels": channels, "options": options}
        swapped.__class__ = _swapped_class(swapped.__class__)
        swapped.reset_classifier(getattr(model, "num_classes", 0))
        if not told:
            check_swapped(swapped, pool, channels)
        note_swap(swapped, options, channels, classifier_path)
    except BaseException:
        restore()
        raise
    return swapped
