"""GCP as a second-order method, Eqs. (6) to (8): the gradients, K-FAC's factors, and both on networks in training."""

from timm_gcp.second_order.gradient import (
    agreement,
    exact_gradient,
    from_triangle,
    preconditioner,
    spectrum,
    trimmed_gradient,
)

__all__ = ["agreement", "exact_gradient", "from_triangle", "preconditioner", "spectrum", "trimmed_gradient"]
