"""RLX on top of XLA: trace JAX functions into RLX graphs, compile and run them.

``trace`` makes a graph of a JAX function; ``rlx.Session("cpu").compile(...)`` compiles it.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from rlx_xla import testing as testing
from rlx_xla.aot import Artifact as Artifact
from rlx_xla.aot import Preflight as Preflight
from rlx_xla.aot.artifact import aot as aot
from rlx_xla.aot.artifact import load_artifact as load_artifact
from rlx_xla.aot.preflight import preflight as preflight
from rlx_xla.doctor import Diagnosis as Diagnosis
from rlx_xla.doctor import doctor as doctor
from rlx_xla.lowering.exported import Export as Export
from rlx_xla.lowering.exported import export as export
from rlx_xla.lowering.exported import load_export as load_export
from rlx_xla.lowering.exported import portable_artifact as portable_artifact
from rlx_xla.lowering.text import stablehlo as stablehlo
from rlx_xla.quantize import quantize as quantize
from rlx_xla.simulate import simulate as simulate
from rlx_xla.tracing.jit import jit as jit
from rlx_xla.tracing.stablehlo import from_stablehlo as from_stablehlo
from rlx_xla.tracing.to_jax import to_jax as to_jax
from rlx_xla.tracing.trace import trace as trace
from rlx_xla.tracing.traced import Coverage as Coverage
from rlx_xla.tracing.traced import Traced as Traced
from rlx_xla.tracing.written_rules import write_rules as write_rules

try:
    __version__ = version("rlx-xla")
except PackageNotFoundError:  # running from a source tree that is not installed
    __version__ = "0+unknown"
