"""K-FAC factors of a convolution and spectra of pre-conditioners (Section 3.3, Table 1).

K-FAC approximates the Fisher matrix of a convolution's weight by A ⊗ G (Grosse and Martens, 2016): A is the second
moment of the input patches, summed over positions, G that of the gradients of each sample's loss with respect to the
output, averaged over positions. Its pre-conditioner is H⁻¹ = η(A + √γI)⁻¹ ⊗ (G + √γI)⁻¹, γ the damping. The gradients
are those of the true labels (the empirical Fisher matrix), as in Table 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Factors:
    """A `(I, I)` over input patches, I = channels × kernel area, and G `(O, O)` over output channels."""

    inputs: Tensor
    outputs: Tensor


def conv_factors(conv: nn.Conv2d, inputs: Tensor, output_gradients: Tensor) -> Factors:
    """K-FAC factors of a convolution over a batch.

    Args:
        conv: the convolution; without groups.
        inputs: `(B, C, H, W)`, what it was given.
        output_gradients: `(B, O, H', W')`, gradient of the batch's mean loss with respect to what it returned.

    Raises:
        ValueError: A grouped convolution, padding other than zeros, or sizes that do not fit it.
    """
    if conv.groups != 1 or conv.padding_mode != "zeros" or isinstance(conv.padding, str):
        raise ValueError(
            f"K-FAC factors need a plain convolution: groups=1 and zero padding given in pixels; got {conv}."
        )
    patches = F.unfold(inputs, conv.kernel_size, conv.dilation, conv.padding, conv.stride)  # type: ignore[arg-type]
    gradients = output_gradients.flatten(2) * len(inputs)  # of each sample's own loss
    if gradients.shape[0] != patches.shape[0] or gradients.shape[1:] != (conv.out_channels, patches.shape[2]):
        raise ValueError(
            f"inputs {tuple(inputs.shape)} and output_gradients {tuple(output_gradients.shape)} do not belong to "
            f"{conv}. Give its input and the gradient of its output for one batch."
        )
    batch, positions = len(inputs), patches.shape[2]
    a = torch.einsum("bit,bjt->ij", patches, patches) / batch
    g = torch.einsum("bot,bpt->op", gradients, gradients) / (batch * positions)
    return Factors(a, g)


def inverse_spectrum(factor: Tensor, damping: float) -> Tensor:
    """Eigenvalues of (factor + √γI)⁻¹ for damping γ relative to the factor's mean eigenvalue, in descending order.

    Raises:
        ValueError: `damping` is not positive.
    """
    if not damping > 0:
        raise ValueError(f"damping must be positive, since the factors are singular; got {damping}. Try 1e-3.")
    values = torch.linalg.eigvalsh(factor).clamp(min=0)
    mean = values.mean()
    return (values + damping**0.5 * torch.where(mean > 0, mean, 1)).reciprocal()


def kronecker_spectrum(factors: Factors, rate: float, damping: float) -> Tensor:
    """Eigenvalues of K-FAC's H⁻¹ = η(A + …)⁻¹ ⊗ (G + …)⁻¹, in descending order; I·O of them.

    Raises:
        ValueError: `damping` is not positive.
    """
    a, g = inverse_spectrum(factors.inputs, damping), inverse_spectrum(factors.outputs, damping)
    return (rate * torch.outer(a, g)).flatten().sort(descending=True).values


def condition(values: Tensor) -> float:
    """Largest over smallest of the values that are positive up to rounding; 1 for a flat spectrum, inf for none."""
    positive = values[values > values.max() * len(values) * torch.finfo(values.dtype).eps]
    return (positive.max() / positive.min()).item() if len(positive) else float("inf")


def flatness(values: Tensor) -> float:
    """(Σs)²/(n·Σs²) over n values: 1 when all are equal, 1/n when one holds everything."""
    square = values.square().sum()
    return (values.sum().square() / (len(values) * square)).item() if square > 0 else 0.0


def overlap(first: Tensor, second: Tensor, count: int) -> float:
    """Mean squared cosine between the leading `count`-dimensional eigenspaces of two symmetric matrices (0 to 1).

    Two unrelated subspaces of R^D overlap by count/D on average.

    Raises:
        ValueError: Matrices of different size or a count that is not in 1..D.
    """
    if first.shape != second.shape or not 1 <= count <= len(first):
        raise ValueError(
            "overlap needs two D×D matrices and 1 <= count <= D; "
            f"got {tuple(first.shape)}, {tuple(second.shape)} and count={count}."
        )
    leading = [torch.linalg.eigh(matrix).eigenvectors[:, -count:] for matrix in (first, second)]
    return (leading[0].mT @ leading[1]).square().sum().item() / count
