"""Which flags jaxlib's XLA knows, and what the process has set them to."""

from __future__ import annotations

from jax._src import compiler as _compiler
from jaxlib.version import __version_info__ as _jaxlib_version

HAS_PLAIN_EMITTERS: bool = tuple(_jaxlib_version[:2]) < (0, 11)
"""Whether XLA's CPU can emit fusions without MLIR (``xla_cpu_use_fusion_emitters=False``).

Seen in 0.7.2, 0.8.3 and 0.10.2; 0.12 refuses the flag.
"""

USUAL_LEVEL = 3
"""XLA's own ``xla_backend_optimization_level``."""


def optimization_level() -> int:
    """What ``XLA_FLAGS`` sets ``xla_backend_optimization_level`` to, or XLA's own level."""
    options = _compiler.get_compile_options(num_replicas=1, num_partitions=1)
    return int(options.executable_build_options.debug_options.xla_backend_optimization_level)
