"""``CompileOptions``: everything that may change how a graph is compiled."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from rlx.dims import DimBinding
from rlx.errors import CompileError, did_you_mean
from rlx.options.dispatch import KernelDispatch, dispatch_from_env


@final
@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """Options of one compile; ``replace`` makes a changed copy.

    Attributes:
        constant_folding: compute constant parts of the graph at compile time.
        verbose: print each pass with its time and node counts while compiling
            (``RLX_VERBOSE=1``).
        kernel_dispatch: which implementations may be chosen (``RLX_KERNEL_DISPATCH``).
        dim_binding: sizes for symbols, put in before anything else.
        param_bindings: param name → array, bound right after the compile.
        validate: interpret the graph before and after every pass on drawn inputs, and name the
            pass that changed the result; slow.
        cast_inputs: convert inputs of another dtype instead of refusing them.
        specialization_cache_size: how many shapes a graph with symbolic dims keeps compiled.
        donate: names of inputs whose buffers a call consumes.
        compiler_options: XLA flags by name, with Python values.
    """

    constant_folding: bool = True
    verbose: bool = field(default_factory=lambda: _flag("RLX_VERBOSE"))
    kernel_dispatch: KernelDispatch = field(default_factory=dispatch_from_env)
    dim_binding: Mapping[str, int] | None = None
    param_bindings: Mapping[str, Any] | None = None
    validate: bool = False
    cast_inputs: bool = False
    specialization_cache_size: int = 32
    donate: frozenset[str] = frozenset()
    compiler_options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        for name, kind, what in (
            ("constant_folding", bool, "a bool"),
            ("verbose", bool, "a bool"),
            ("validate", bool, "a bool"),
            ("cast_inputs", bool, "a bool"),
            ("kernel_dispatch", KernelDispatch, "a KernelDispatch"),
            (
                "dim_binding",
                (Mapping, DimBinding, type(None)),
                "a mapping (symbol → size), or None",
            ),
            ("param_bindings", (Mapping, type(None)), "a mapping (param → array), or None"),
            ("specialization_cache_size", int, "an int"),
            ("donate", (frozenset, set, list, tuple), "a set of input names"),
            ("compiler_options", Mapping, "a mapping (XLA flag → value)"),
        ):
            value = getattr(self, name)
            if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                raise CompileError(
                    f"CompileOptions.{name}: required {what}; got {type(value).__name__}."
                )
        object.__setattr__(self, "donate", frozenset(self.donate))
        if self.specialization_cache_size < 1:
            raise CompileError(
                "CompileOptions.specialization_cache_size: required ≥ 1; got "
                f"{self.specialization_cache_size}."
            )

    def replace(self, **changes: Any) -> CompileOptions:
        """The same options with some fields changed.

        Raises:
            CompileError: no such field.
        """
        known = [f.name for f in dataclasses.fields(self)]
        unknown = [name for name in changes if name not in known]
        if unknown:
            raise CompileError(
                f"CompileOptions has no field {unknown[0]!r}; fields are {', '.join(known)}."
                f"{did_you_mean(unknown[0], known)}"
            )
        return dataclasses.replace(self, **changes)


def _flag(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in ("1", "true", "yes", "on")
