"""RLX on top of XLA: trace JAX functions into RLX graphs, compile and run them.

``trace`` makes a graph of a JAX function; ``rlx.Session("cpu").compile(...)`` compiles it. Names
load on first use: a process that runs what was compiled needs no ops, passes or rules.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import TYPE_CHECKING, Any, final

import rlx_xla.runtime  # noqa: F401  (its settings come before XLA's CPU starts)
from rlx_xla.on_demand import found_in

if TYPE_CHECKING:
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

_MODULES = ("testing",)
_LAZY = {
    "Artifact": "rlx_xla.aot",
    "Coverage": "rlx_xla.tracing.traced",
    "Diagnosis": "rlx_xla.doctor",
    "Export": "rlx_xla.lowering.exported",
    "Preflight": "rlx_xla.aot",
    "Traced": "rlx_xla.tracing.traced",
    "aot": "rlx_xla.aot.artifact",
    "doctor": "rlx_xla.doctor",
    "export": "rlx_xla.lowering.exported",
    "from_stablehlo": "rlx_xla.tracing.stablehlo",
    "jit": "rlx_xla.tracing.jit",
    "load_artifact": "rlx_xla.aot.artifact",
    "load_export": "rlx_xla.lowering.exported",
    "portable_artifact": "rlx_xla.lowering.exported",
    "preflight": "rlx_xla.aot.preflight",
    "quantize": "rlx_xla.quantize",
    "simulate": "rlx_xla.simulate",
    "stablehlo": "rlx_xla.lowering.text",
    "to_jax": "rlx_xla.tracing.to_jax",
    "trace": "rlx_xla.tracing.trace",
    "write_rules": "rlx_xla.tracing.written_rules",
}

try:
    __version__ = version("rlx-xla")
except PackageNotFoundError:  # running from a source tree that is not installed
    __version__ = "0+unknown"


@final
class _Package(ModuleType):
    """This package, in which ``doctor`` stays the function when its module is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _LAZY and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    return found_in(__name__, name, _LAZY)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_LAZY})
