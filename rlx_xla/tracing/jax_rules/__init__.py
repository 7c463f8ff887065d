"""One module per op family: ops as calls of ``jax.lax``; the mirror of ``primitives``."""
