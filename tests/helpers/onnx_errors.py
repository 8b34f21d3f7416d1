"""What an ONNX export of a pooling without an ONNX form fails with."""

from __future__ import annotations

import torch

TELLS = torch.__version__ >= "2.7"  # the exporter says that it is at work


def refusal(sentence: str) -> str:
    """`sentence`, a regular expression; with a torch whose exporter does not tell, the exporter's own."""
    return sentence if TELLS else "Failed to convert the exported program to an ONNX model"
