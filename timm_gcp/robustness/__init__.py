"""Robustness to common corruptions and perturbations: ImageNet-C and ImageNet-P (Table 4 of the paper)."""
