"""From JAX functions to RLX graphs, and back."""
