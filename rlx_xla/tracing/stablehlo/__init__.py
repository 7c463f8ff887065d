"""StableHLO from outside becomes an RLX graph: text, bytecode, artifacts, ``jax.export`` files."""

from rlx_xla.tracing.stablehlo.importer import from_stablehlo as from_stablehlo
