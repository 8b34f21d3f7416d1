"""Weights: from a checkpoint file to `pretrained=True`, and to the Hub."""
