"""The test cases that the package ``jax2onnx`` ships: callables with shapes or arrays."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlx.dtypes import as_dtype

INSTALL = "pip install --no-deps jax2onnx onnx onnx-ir dm-pix && pip install protobuf sympy"
"""What brings the cases. The package also requires runtimes and viewers that no case needs."""

SAMPLE = 100
"""How many cases the normal suite runs, at most."""

SIZES = (2, 3)
"""Every symbolic size takes each of these values in turn."""


@dataclass(frozen=True)
class Case:
    """One callable and what it is called with.

    Attributes:
        name: group, component and test case, unique.
        context: where it belongs: ``primitives.jnp``, ``examples.gpt``, ….
        make: makes the callable; the work of making a model is done there.
        shapes: per argument sizes and names of sizes; None where ``values`` are given.
        dtypes: dtype of each argument of ``shapes``.
        values: the arguments themselves; None where ``shapes`` are given.
        keywords: keyword arguments that are known when tracing (``deterministic=True``).
        x64: whether the case is about 64-bit values.
    """

    name: str
    context: str
    make: Callable[[], Callable[..., Any]]
    shapes: tuple[tuple[int | str, ...], ...] | None
    dtypes: tuple[np.dtype[Any], ...]
    values: tuple[Any, ...] | None
    keywords: Mapping[str, Any]
    x64: bool

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of sizes, in the order of their first use."""
        sizes = [d for shape in self.shapes or () for d in shape if isinstance(d, str)]
        return tuple(dict.fromkeys(sizes))

    def specs(self) -> list[str]:
        """The arguments' types as text: ``f32[B, 4]``."""
        pairs = zip(self.shapes or (), self.dtypes, strict=True)
        return [f"{as_dtype(dtype)}[{', '.join(map(str, shape))}]" for shape, dtype in pairs]

    def arguments(self, size: int) -> list[Any]:
        """Arguments whose symbolic sizes are all ``size``; they depend on the name alone."""
        if self.values is not None:
            return [jnp.asarray(v) if isinstance(v, np.ndarray) else v for v in self.values]
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        made: list[Any] = []
        for shape, dtype in zip(self.shapes or (), self.dtypes, strict=True):
            sizes = tuple(d if isinstance(d, int) else size for d in shape)
            made.append(jnp.asarray(_drawn(rng, sizes, dtype)))
        return made


def installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec("jax2onnx") is not None


@functools.cache
def cases() -> tuple[Case, ...]:
    """Every case, sorted by name."""
    registry = importlib.import_module("jax2onnx.plugins.plugin_system")
    registry.import_all_plugins()
    plugins = [getattr(p, "metadata", None) or {} for p in registry.PLUGIN_REGISTRY.values()]
    # A plugin may be registered under several names of one primitive.
    tables = {id(m): m for m in (*plugins, *registry.EXAMPLE_REGISTRY.values())}
    found: dict[str, Case] = {}
    for metadata in tables.values():
        for case in _cases_of(metadata):
            name, count = case.name, 2
            while name in found:
                name, count = f"{case.name}_{count}", count + 1
            found[name] = dataclasses.replace(case, name=name)
    return tuple(found[name] for name in sorted(found))


def _cases_of(metadata: Mapping[str, Any]) -> Iterator[Case]:
    for given in metadata.get("testcases", ()):
        context = given.get("context") or metadata.get("context") or "none"
        name = f"{context}/{metadata.get('component')}/{given['testcase']}"
        x64 = bool(given.get("run_only_f64_variant") or given.get("enable_double_precision"))
        shapes = given.get("input_shapes")
        values = given.get("input_values")
        if shapes is not None:
            # A bare size stands for a vector.
            shapes = tuple(tuple(s) if isinstance(s, tuple | list) else (s,) for s in shapes)
            values = None
        elif values is not None:
            values = tuple(values)
        else:
            shapes = ()
        default = np.dtype(np.float64 if x64 else np.float32)
        dtypes = [np.dtype(d) for d in given.get("input_dtypes") or ()]
        dtypes += [default] * (len(shapes or ()) - len(dtypes))
        yield Case(
            name=re.sub(r"\s+", "_", name),
            context=context,
            make=functools.partial(_make, given["callable"], default),
            shapes=shapes,
            dtypes=tuple(dtypes[: len(shapes or ())]),
            values=values,
            keywords=dict(given.get("input_params") or {}),
            x64=x64 or np.dtype(np.float64) in dtypes,
        )


def _make(fn: Any, dtype: np.dtype[Any]) -> Callable[..., Any]:
    """The callable; models are deferred by the package and made for a dtype."""
    if getattr(fn, "__jax2onnx_factory__", False):
        return fn.with_dtype(jnp.dtype(dtype)).instantiate()
    return fn


def _drawn(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if jnp.issubdtype(dtype, jnp.integer):
        return rng.integers(0, 4, shape).astype(dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def sample() -> list[Case]:
    """A fixed, evenly spread part of the primitives' cases; the examples' models are left out."""
    small = [c for c in cases() if c.context.startswith("primitives.")]
    return small[:: -(-len(small) // SAMPLE)]


def static(case: Case) -> dict[str, Any]:
    """A case's keyword arguments as Python values, which conditions in Python can read."""
    return {k: v.item() if hasattr(v, "item") else v for k, v in case.keywords.items()}


def refused_symbols(fn: Callable[..., Any], case: Case) -> str:
    """Why JAX itself cannot trace a case with symbolic sizes, or an empty string."""
    scope = jax.export.SymbolicScope()
    shapes = [
        jax.export.symbolic_shape(", ".join(map(str, shape)), scope=scope)
        for shape in case.shapes or ()
    ]
    abstract = [
        jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, case.dtypes, strict=True)
    ]
    try:
        jax.jit(fn).trace(*abstract)
    except (TypeError, ValueError, ArithmeticError, LookupError, RuntimeError, AttributeError) as e:
        return f"{type(e).__name__}: {' '.join(str(e).split())}"[:200]
    return ""
