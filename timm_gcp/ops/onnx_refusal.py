"""Decompositions without an ONNX operator: whether a model is being exported, and the sentence of the refusal."""

from __future__ import annotations

import torch


@torch.compiler.assume_constant_result
def _exporter_at_work() -> bool:
    return torch.onnx.is_in_onnx_export()


def in_onnx_export() -> bool:
    """Whether code is being compiled for ONNX. torch says so from 2.7 on; before, its exporter fails by itself."""
    return torch.compiler.is_compiling() and _exporter_at_work()


def no_onnx_form(what: str, remedy: str) -> RuntimeError:
    """The error to raise: `what` is computed how, "which has no ONNX form", and what to do."""
    return RuntimeError(f"{what}, which has no ONNX form; {remedy}")
