"""The pooling-head swap: global covariance pooling in place of the pooling of any timm classifier.

A CNN whose head has a pooling module gets the covariance pooling in its place, and a new classifier under the old name.
Any other model, of tokens or of NHWC maps, gets a head of its own: see `timm_gcp.models.own_head`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from timm_gcp.functional import Normalization
from timm_gcp.models.arrange import Arrangement, arrangement_of
from timm_gcp.models.gcp_model import AddHead, GcpModel, device_dtype, swapped_class
from timm_gcp.models.in_place import classifier_path, clear_between, pool_path, set_submodule
from timm_gcp.models.own_head import check_tokens, own_head
from timm_gcp.models.pooling import GlobalCovPool2d
from timm_gcp.models.swap_args import note_swap
from timm_gcp.models.swap_check import check_swapped, remember


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
    tokens: str = "patch",
    class_token: str = "drop",
) -> Any:
    """Replace the pooling head of a timm model by global covariance pooling, in place.

    In a CNN with a pooling module, that becomes a `GlobalCovPool2d` under its old name (`global_pool` or
    `head.global_pool`), the classifier a new `Linear(D(D+1)/2, num_classes)` under its old name. In other models they
    are called `gcp_pool` and `gcp_fc`. Both are freshly initialised. `num_features` stays the width of the features,
    `head_hidden_size` becomes D(D+1)/2.

    Args:
        model: Any timm classifier whose `forward_features` gives maps `(B, C, H, W)` or `(B, H, W, C)`, or tokens
            `(B, N, C)`.
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
        tokens: Which tokens of a sequence are pooled: `'patch'`, or `'all'`, class and register tokens included.
        class_token: What becomes of the class token of a model that pools by it. `'drop'` leaves it out. `'add'` keeps
            the model's classifier on it, with its weights, and adds another on the covariance vector; logits are the
            sum (So-ViT, Xie et al. 2021). `'concat'` has one new classifier on both vectors, one behind the other.

    Returns:
        `model` itself, its class extended by `GcpModel`.

    Raises:
        ValueError: The model has no such features, no head to replace, does not run with another one, or is swapped
            already; or it has no class token to add. It is then as it was.
    """
    if isinstance(model, GcpModel):
        raise ValueError(f"{type(model).__name__} already has a covariance head; use reset_classifier to change it")
    told, place = channels is not None, pool_path(model)
    says_map = str(getattr(model, "output_fmt", "NCHW")).rpartition(".")[2] == "NCHW"
    known = Arrangement("NCHW", channels) if channels is not None and place and says_map else None
    found = known or arrangement_of(model, channels)
    check_tokens(model, tokens, class_token, found.prefix)
    channels = channels if channels is not None else found.channels
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
    pool = GlobalCovPool2d(channels, **options, **device_dtype(model))  # type: ignore[arg-type]
    restore = remember(model)
    swapped: Any = model
    head: type
    try:
        if found.layout == "NCHW" and place:
            classifier = classifier_path(model, place)
            clear_between(model, place, classifier)
            head, spec = GcpModel, {"pool": place, "classifier": classifier}
        else:
            head, spec = own_head(model, found, tokens, class_token)
        set_submodule(model, spec["pool"], pool.train(model.training))
        swapped._gcp = {**spec, "channels": channels, "options": options}
        swapped.__class__ = swapped_class(swapped.__class__, head)
        swapped._set_head(getattr(model, "num_classes", 0))
        if not told:
            check_swapped(swapped, pool, channels)
        layout = {"tokens": tokens, "class_token": class_token} if head is not GcpModel else {}
        note_swap(swapped, {**options, **layout}, channels, _classifiers(swapped, spec["classifier"]))
    except BaseException:
        restore()
        raise
    return swapped


def _classifiers(model: Any, own: str) -> Any:
    """Where the classifiers are, for timm: a name, or several."""
    if not isinstance(model, AddHead):
        return own
    before = (getattr(model, "pretrained_cfg", None) or {}).get("classifier") or ()
    return (*((before,) if isinstance(before, str) else before), own)
