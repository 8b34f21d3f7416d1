"""What a swapped model adds to its timm class: a head that knows covariance pooling, and copies that keep it.

`GcpModel` has its pooling and classifier where the timm model had them. `OwnHead` pools in a `forward_head` of its own,
for features of any layout; `CatHead` and `AddHead` use the class token of the timm model's head beside it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from timm.layers import SelectAdaptivePool2d
from torch import Tensor, nn

from timm_gcp.models.arrange import FirstToken, ToMap
from timm_gcp.models.in_place import set_submodule
from timm_gcp.models.initial_values import init_linear
from timm_gcp.models.pooling import GlobalCovPool2d
from timm_gcp.models.swap_args import PRETRAINED_BACKBONE

OWN = ("global_pool", "head")  # pooling and classifier of a head of our own
BESIDE = ("gcp_pool", "gcp_fc")  # the same beside the timm model's head, which keeps its names


class GcpModel:
    """A model whose pooling and classifier are replaced where they were."""

    __jit_unused_properties__ = ("_model_args",)

    @property
    def _model_args(self: Any) -> dict[str, Any]:
        """What timm notes on a model of the call that made it, to make it again."""
        if "_model_args" not in self.__dict__:
            raise AttributeError("_model_args")
        return self.__dict__["_model_args"]  # type: ignore[no-any-return]

    @_model_args.setter
    def _model_args(self: Any, noted: dict[str, Any]) -> None:
        # Once made, the model has weights of its own: made again, it must not fetch those of its backbone.
        self.__dict__["_model_args"] = {key: value for key, value in noted.items() if key != PRETRAINED_BACKBONE}

    def reset_classifier(
        self: Any, num_classes: int, global_pool: str | None = None, reset_other: bool = False
    ) -> None:
        """Replace the classifier, and the pooling if another is named.

        Args:
            num_classes: Classes; 0 for none.
            global_pool: None keeps the pooling and its reduction; `'gcp'`, or a name that timm knows
                (`'avg'`, `'max'`, …; `'token'` for a sequence); `''` leaves the features unpooled.
            reset_other: As timm's feature extractors ask of some heads: without the layers between pooling and
                classifier, which the swap has removed in any case.
        """
        self._set_head(num_classes, global_pool)

    def _set_head(self: Any, num_classes: int, global_pool: str | None = None) -> None:
        spec = self._gcp
        pool: Any = self.get_submodule(spec["pool"])
        kind = pool.pool_type if global_pool is None else global_pool
        factory = device_dtype(self)
        if kind != pool.pool_type:
            pool = (
                GlobalCovPool2d(spec["channels"], **spec["options"], **factory) if kind == "gcp" else _timm_pool(kind)
            )
            set_submodule(self, spec["pool"], pool.train(self.training))
        width = int(pool.out_features if kind == "gcp" else spec["channels"] * pool.feat_mult())
        width += spec.get("beside", 0) if kind else 0
        fc = nn.Linear(width, num_classes, **factory) if num_classes > 0 else nn.Identity()
        if isinstance(fc, nn.Linear):
            init_linear(fc, spec["options"]["init"])
        set_submodule(self, spec["classifier"], fc.train(self.training))
        self.num_classes = num_classes
        self.head_hidden_size = width

    def __reduce_ex__(self: Any, protocol: Any) -> tuple[Any, ...]:
        """Copies and pickles are rebuilt from the timm class, which can be imported."""
        made_of = (self._swapped_from,) if self._head is GcpModel else (self._swapped_from, self._head)
        return _blank, made_of, self.__dict__


class OwnHead(GcpModel):
    """A model whose `forward_head` pools features of any layout; the timm model's head is not used.

    `gcp_map` lays the features out as a map, `global_pool` pools them, `head` classifies.
    """

    def forward_head(self: Any, x: Tensor, pre_logits: bool = False, patch_valid: Tensor | None = None) -> Tensor:
        """Pool the features `(B, C, H, W)`, `(B, H, W, C)` or `(B, N, C)` and classify them.

        Args:
            x: As `forward_features` gives them.
            pre_logits: Stop before the classifier.
            patch_valid: Of models that take images of any shape: not supported.

        Raises:
            ValueError: A mask of the patches is given.
        """
        whole_images(patch_valid)
        if self.gcp_unpooled:
            if pre_logits:
                return x
            if self.gcp_channels_last:
                return self.head(x)
            return self.head(x.movedim(1, -1)).movedim(-1, 1)
        pooled = self.gcp_drop(self.global_pool(self.gcp_map(x)))
        return pooled if pre_logits else self.head(pooled)

    def get_classifier(self: Any, *args: Any, **kwargs: Any) -> Any:
        """The classifier of the covariance vector."""
        return self.get_submodule(self._gcp["classifier"])

    def _set_head(self: Any, num_classes: int, global_pool: str | None = None) -> None:
        super()._set_head(num_classes, global_pool)
        spec = self._gcp
        kind = self.get_submodule(spec["pool"]).pool_type
        self.gcp_unpooled = not kind
        self.gcp_channels_last = spec["layout"] != "NCHW"
        arranged = nn.Identity() if kind == "token" else ToMap(spec["layout"], spec["skip"])
        self.gcp_map = arranged.train(self.training)
        if spec["pool"] != OWN[0] and hasattr(self, "head"):  # where timm looks for the kind of pooling to save
            self.head.global_pool = kind


class CatHead(OwnHead):
    """One classifier on the timm model's pooled class token and the covariance vector behind each other."""

    def forward_head(self: Any, x: Tensor, pre_logits: bool = False, patch_valid: Tensor | None = None) -> Tensor:
        """See `OwnHead.forward_head`."""
        whole_images(patch_valid)
        if self.gcp_unpooled:
            return x if pre_logits else self.gcp_fc(x)
        token = super(OwnHead, self).forward_head(x, pre_logits=True)  # type: ignore[misc]
        pooled = torch.cat([token, self.gcp_drop(self.gcp_pool(self.gcp_map(x)))], dim=1)
        return pooled if pre_logits else self.gcp_fc(pooled)  # type: ignore[no-any-return]


class AddHead(OwnHead):
    """The sum of two classifiers: the timm model's own on its class token, another on the covariance vector."""

    def forward_head(self: Any, x: Tensor, pre_logits: bool = False, patch_valid: Tensor | None = None) -> Any:
        """See `OwnHead.forward_head`; before the classifiers, both inputs behind each other."""
        whole_images(patch_valid)
        if self.gcp_unpooled:
            return x if pre_logits else self.gcp_fc(x)
        pooled = self.gcp_drop(self.gcp_pool(self.gcp_map(x)))
        if pre_logits or not self.num_classes:
            return torch.cat([super(OwnHead, self).forward_head(x, pre_logits=True), pooled], dim=1)  # type: ignore[misc]
        logits, ours = super(OwnHead, self).forward_head(x), self.gcp_fc(pooled)  # type: ignore[misc]
        # In training with distillation: class and distillation tokens, each with logits of its own.
        return tuple(part + ours for part in logits) if isinstance(logits, tuple) else logits + ours

    def get_classifier(self: Any, *args: Any, **kwargs: Any) -> tuple[nn.Module, ...]:
        """The classifiers: the timm model's own, then that of the covariance vector."""
        own = super(OwnHead, self).get_classifier(*args, **kwargs)  # type: ignore[misc]
        return (*own, self.gcp_fc) if isinstance(own, tuple) else (own, self.gcp_fc)

    def reset_classifier(
        self: Any, num_classes: int, global_pool: str | None = None, reset_other: bool = False
    ) -> None:
        """See `GcpModel.reset_classifier`; both classifiers are replaced."""
        super().reset_classifier(num_classes, global_pool, reset_other)
        super(GcpModel, self).reset_classifier(num_classes)  # type: ignore[misc]
        for classifier in self.get_classifier():
            classifier.to(**device_dtype(self)).train(self.training)
        self.head.global_pool = self.gcp_pool.pool_type

    def _set_head(self: Any, num_classes: int, global_pool: str | None = None) -> None:
        super()._set_head(num_classes, global_pool)
        if not self.gcp_unpooled:
            self.head_hidden_size += self._gcp["token_width"]


def whole_images(patch_valid: Tensor | None) -> None:
    """Refuse a mask of patches.

    Raises:
        ValueError: There is one.
    """
    if patch_valid is not None:
        raise ValueError("covariance pooling takes whole images; give no patch_valid")


@functools.cache
def swapped_class(base: type, head: type = GcpModel) -> type:
    """A timm class with one of the heads of this module."""
    own = {"__module__": __name__, "__doc__": base.__doc__, "_swapped_from": base, "_head": head}
    return type(f"{base.__name__}Gcp", (head, base), own)


def _blank(base: type, head: type = GcpModel) -> Any:
    cls: Any = swapped_class(base, head)
    return cls.__new__(cls)


def _timm_pool(kind: str) -> nn.Module:
    if kind == "token":
        return FirstToken()
    return SelectAdaptivePool2d(pool_type=kind, flatten=bool(kind))


def device_dtype(model: nn.Module) -> dict[str, Any]:
    """Where a model's parameters are, and their type."""
    parameter = next(model.parameters())
    return {"device": parameter.device, "dtype": parameter.dtype}
