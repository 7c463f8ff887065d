"""Real models written in plain JAX and flax, with loaders for their published weights."""
