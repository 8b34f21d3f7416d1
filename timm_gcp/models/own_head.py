"""The swap for models without a pooling module of a map `(B, C, H, W)`: tokens, NHWC, poolings written out in code.

The model gets a `forward_head` of its own (`timm_gcp.models.gcp_model`). What its old head has learned weights for and
the new one does not use is turned into identities: found by watching which modules run in `forward_features`, and
which in the old `forward_head` only.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from timm_gcp.common.messages import check_choice
from timm_gcp.models.arrange import TOKENS, Arrangement
from timm_gcp.models.gcp_model import BESIDE, OWN, AddHead, CatHead, OwnHead
from timm_gcp.models.in_place import set_submodule
from timm_gcp.models.swap_check import run_on_zeros

CLASS_TOKEN = ("drop", "add", "concat")
_HEADS = {"drop": OwnHead, "add": AddHead, "concat": CatHead}


def check_tokens(model: nn.Module, tokens: str, class_token: str, prefix: int) -> None:
    """Check what a swap is to do with a model's tokens.

    Args:
        model: The model.
        tokens: One of `arrange.TOKENS`.
        class_token: One of `CLASS_TOKEN`.
        prefix: Tokens in front of its patches.

    Raises:
        ValueError: Another choice, or one that needs a class token where the model has none or pools otherwise.
    """
    check_choice("tokens", tokens, TOKENS)
    check_choice("class_token", class_token, CLASS_TOKEN)
    name, pooling = type(model).__name__, getattr(model, "global_pool", None)
    if class_token == "drop":
        return
    if not prefix:
        raise ValueError(f"{name} has no class token for class_token={class_token!r}; leave it at 'drop'")
    if pooling != "token":
        raise ValueError(
            f"{name} pools by {pooling!r}, not by its class token: make it with global_pool='token' for "
            f"class_token={class_token!r}, or leave that at 'drop'"
        )


def own_head(model: Any, found: Arrangement, tokens: str, class_token: str) -> tuple[type, dict[str, Any]]:
    """Prepare a model for a head of our own, in place.

    Args:
        model: The model.
        found: Layout of its features.
        tokens: Which tokens of a sequence are pooled: `'patch'` or `'all'`.
        class_token: `'drop'`, `'add'` or `'concat'`.

    Returns:
        The class of the head, and what it has to know beside channels and options.

    Raises:
        ValueError: The model has no classifier, or its head can't be run for its class token.
    """
    name = type(model).__name__
    if not hasattr(model, "forward_head"):
        raise ValueError(f"{name} has no forward_head to replace; swap_pooling takes timm classifiers")
    try:
        features, pre_logits, logits, width = _watch(model)
    except RuntimeError as error:
        raise ValueError(f"{name} has no head to replace: its forward_head {error}") from error
    kept = features | {"add": logits | pre_logits, "concat": pre_logits}.get(class_token, set())
    _clear(model, (logits | pre_logits) - kept, kept)
    rate = getattr(model, "drop_rate", 0.0)
    model.gcp_drop = nn.Dropout(float(rate or 0.0)).train(model.training)
    model.gcp_unpooled = False
    pool, classifier = OWN if class_token == "drop" else BESIDE
    for path in (pool, classifier):  # what was called so, a module or the name of a pooling, is no longer used
        set_submodule(model, path, nn.Identity())
    spec = {
        "pool": pool,
        "classifier": classifier,
        "layout": found.layout,
        "skip": found.prefix if tokens == "patch" else 0,
        "prefix": found.prefix,
        "beside": width if class_token == "concat" else 0,
        "token_width": width,
    }
    return _HEADS[class_token], spec


def _watch(model: Any) -> tuple[set[str], set[str], set[str], int]:
    """Names of the modules that run for features, pre-logits and logits of a zero image; width of the pre-logits."""
    called: list[set[str]] = []
    hooks = [
        module.register_forward_pre_hook(lambda _, inputs, name=name: called[-1].add(name))  # type: ignore[misc]
        for name, module in model.named_modules()
    ]

    def forward(x: Tensor) -> Any:
        called[:] = [set()]
        features = model.forward_features(x)
        called.append(set())
        before = model.forward_head(features, pre_logits=True)
        called.append(set())
        model.forward_head(features)
        return before

    try:
        output = run_on_zeros(model, forward)
    finally:
        for hook in hooks:
            hook.remove()
    features, pre_logits, logits = called
    return features, pre_logits, logits, output.shape[-1] if isinstance(output, Tensor) else 0


def _clear(model: nn.Module, unused: set[str], used: set[str]) -> None:
    """Make identities of the modules with weights that are `unused`, as far up as nothing below them is used."""
    for name in sorted(unused):
        module = dict(model.named_modules()).get(name)
        inside = any(other == name or other.startswith(f"{name}.") for other in used)
        if name and module is not None and not inside and module.state_dict():
            set_submodule(model, name, nn.Identity())
