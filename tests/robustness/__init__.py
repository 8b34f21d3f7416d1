"""Tests of timm_gcp.robustness."""
