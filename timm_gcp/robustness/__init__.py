"""Robustness to common corruptions and perturbations: ImageNet-C and ImageNet-P (Table 6 of the paper)."""
