"""Trained classifiers in use: load, evaluate, predict, measure the cost."""
