"""From LIR to StableHLO."""
