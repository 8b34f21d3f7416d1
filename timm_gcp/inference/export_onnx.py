"""Write a classifier as an ONNX file whose batch is free, and check it against torch before the file appears."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from timm_gcp.common.files import replacing

EIGENDECOMPOSED = ("eigh", "power", "log")  # normalisations of `global_cov_pool` that ONNX has no operator for
TOLERANCE = 1e-3  # largest difference of two logits, as a share of the largest logit
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Checked:
    """Outcome of the comparison with torch.

    Attributes:
        batch_sizes: Batches compared.
        difference: Largest difference of two logits.
        scale: Largest absolute logit of torch.
    """

    batch_sizes: tuple[int, ...]
    difference: float
    scale: float


def check_exportable(model: Any) -> None:
    """Check what can be checked before any work.

    Raises:
        ImportError: The packages that the export needs are not installed.
        ValueError: The model's covariance is normalised by an eigendecomposition.
    """
    absent = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if absent:
        raise ImportError(f"the ONNX export needs {', '.join(absent)}: pip install 'timm-gcp[onnx]'.")
    for module in model.modules():
        normalization = getattr(module, "normalization", None)
        if normalization in EIGENDECOMPOSED:
            raise ValueError(
                f"the model's normalization={normalization!r} is an eigendecomposition, which ONNX lacks: "
                "export a model with newton_schulz (more n_iter come closer to the exact root), none, signed_sqrt_l2, "
                "dropcov or isice."
            )


def export_onnx(
    model: Any,
    input_size: tuple[int, int, int],
    path: str | Path,
    *,
    batch_sizes: Sequence[int] = (1, 2, 5),
    opset: int | None = None,
) -> Checked:
    """Export a model in evaluation mode and run it with onnxruntime beside torch, on noise, in several batch sizes.

    Args:
        model: Classifier, `(B, C, H, W) -> (B, classes)`, on the CPU.
        input_size: `(C, H, W)` of an image; only the batch is free.
        path: File to write, weights included (2 GB at most).
        batch_sizes: Sizes to compare.
        opset: ONNX operator set; torch's choice when left out.

    Raises:
        ImportError: onnx, onnxscript or onnxruntime is missing.
        ValueError: A normalisation without an ONNX form, or a batch size below 1.
        RuntimeError: torch can't export the model, or onnxruntime's logits differ; no file is left then.
    """
    check_exportable(model)
    if not batch_sizes or min(batch_sizes) < 1:
        raise ValueError(f"batch sizes must be at least 1, got {list(batch_sizes)}.")
    model = model.eval()
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(max(2, *batch_sizes), *input_size, generator=generator)
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    options: dict[str, Any] = {} if opset is None else {"opset_version": opset}
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # torch's exporter warns of its own deprecated calls
            program = torch.onnx.export(
                model,
                (images[:2],),
                dynamo=True,
                dynamic_shapes=shapes,
                input_names=["images"],
                output_names=["logits"],
                verbose=False,
                **options,
            )
    except Exception as error:
        raise RuntimeError(f"torch can't export {type(model).__name__} to ONNX: {_first_line(error)}") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    written = dict(program.model.opset_imports).get("")  # type: ignore[union-attr]
    if opset is not None and written != opset:
        raise RuntimeError(f"torch can't write operator set {opset}, only {written}: leave out --opset, or give that.")
    with replacing(path) as partial:
        program.save(str(partial), external_data=False)  # type: ignore[union-attr]
        return _compare(model, partial, images, batch_sizes)


def _compare(model: Any, path: Path, images: torch.Tensor, batch_sizes: Sequence[int]) -> Checked:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    difference = scale = 0.0
    for size in batch_sizes:
        batch = images[:size]
        with torch.inference_mode():
            wanted = model(batch)
        found = torch.from_numpy(session.run(None, {name: batch.numpy()})[0])
        difference = max(difference, (found - wanted).abs().max().item())
        scale = max(scale, wanted.abs().max().item())
    if not difference <= TOLERANCE * scale:
        raise RuntimeError(
            f"the ONNX file's logits differ from torch's by up to {difference:.3g}, of {scale:.3g} at most: "
            "nothing was written. Try another --opset or onnxruntime version."
        )
    return Checked(tuple(batch_sizes), difference, scale)


def _first_line(error: Exception) -> str:
    """The innermost cause in one line: torch's own text is a page."""
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
