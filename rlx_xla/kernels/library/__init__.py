"""Our kernels, one module per op; each registers itself on import."""
