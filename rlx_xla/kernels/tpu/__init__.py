"""Pallas kernels for TPUs: sources, imported when one is lowered; see ``library/tpu``."""
