"""The computations behind `timm_gcp.functional`, on tensors only."""
