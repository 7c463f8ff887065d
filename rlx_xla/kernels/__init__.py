"""Kernels of our own, plugged into XLA as custom calls."""
