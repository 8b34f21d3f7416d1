"""The sentence that a decomposition without an ONNX operator is refused with while a model is exported."""

from __future__ import annotations

import torch


@torch.compiler.assume_constant_result
def _in_onnx_export() -> bool:
    return torch.onnx.is_in_onnx_export()


def refuse_onnx(what: str, remedy: str) -> None:
    """Raise in an ONNX export.

    Args:
        what: What is computed how.
        remedy: What to do.

    Raises:
        RuntimeError: `what`, "which has no ONNX form", and `remedy`.
    """
    if torch.compiler.is_compiling() and _in_onnx_export():
        raise RuntimeError(f"{what}, which has no ONNX form; {remedy}")
