"""Ops that run on the host: their NumPy meaning, called back from the device."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlx.ir.op import Op
from rlx.types import TensorType
from rlx_xla._jax_compat import mlir
from rlx_xla._jax_compat.mlir import ir
from rlx_xla.lowering import jax_function
from rlx_xla.lowering.context import LoweringContext
from rlx_xla.lowering.registry import lowers
from rlx_xla.lowering.rules.external import shift_callbacks


def run_on_host(*ops: type[Op]) -> None:
    """Let devices call back to the host for ops that only have a NumPy meaning.

    Every run of such an op waits for Python and copies its arrays; it cannot be saved as StableHLO.
    It registers a lowering rule and a rule for `rlx_xla.to_jax`.

    Args:
        ops: classes with ``evaluate``.

    Raises:
        RegistryError: an op has a rule.
    """
    from rlx_xla.tracing.jax_registry import to_jax_rule

    for op in ops:
        lowers(op)(_named_alike(op))

        @to_jax_rule(op)
        def to_jax(ctx: Any, op: Op, *operands: Any) -> Any:  # pyright: ignore[reportUnusedFunction]
            shapes = [ctx.shape(t.shape) for t in ctx.out_types]
            return host_function(op, shapes, ctx.out_types)(*operands)


def host_function(
    op: Op, shapes: Sequence[Sequence[Any]], types: Sequence[TensorType]
) -> Callable[..., list[Any]]:
    """A JAX function of arrays that evaluates an op on the host.

    Args:
        op: the op.
        shapes: of its results, in JAX's sizes.
        types: of its results.
    """
    dtypes = [t.dtype.numpy for t in types]
    wanted = tuple(_carried(s, d) for s, d in zip(shapes, dtypes, strict=True))

    def function(*arrays: Any) -> list[Any]:
        given = [np.dtype(x.dtype) for x in arrays]

        def evaluate(*carried: Any) -> tuple[Any, ...]:
            inputs = [_joined(np.asarray(x), d) for x, d in zip(carried, given, strict=True)]
            made = op.evaluate(*inputs)
            results = made if isinstance(made, tuple) else (made,)
            return tuple(_split(np.asarray(r)) for r in results)

        words = [_to_words(x) if d.name in WIDE else x for x, d in zip(arrays, given, strict=True)]
        made = jax.pure_callback(evaluate, wanted, *words, vmap_method="sequential")
        return [_from_words(x, d) for x, d in zip(made, dtypes, strict=True)]

    return function


# JAX narrows the arrays of a callback to 32 bits where jax_enable_x64 is off when it is called.
WIDE = frozenset({"int64", "uint64", "float64", "complex128"})
"""NumPy's names of what crosses over as 32-bit words."""


def _carried(shape: Sequence[Any], dtype: np.dtype[Any]) -> jax.ShapeDtypeStruct:
    if dtype.name not in WIDE:
        return jax.ShapeDtypeStruct(tuple(shape), dtype)
    return jax.ShapeDtypeStruct((*shape, dtype.itemsize // 4), np.dtype(np.uint32))


def _split(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array as it crosses over, on the host."""
    if array.dtype.name not in WIDE:
        return array
    words = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
    return words.reshape(*array.shape, array.dtype.itemsize // 4)


def _joined(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The array that crossed over, on the host."""
    if dtype.name not in WIDE:
        return array
    return np.ascontiguousarray(array).reshape(-1).view(dtype).reshape(array.shape[:-1])


def _to_words(x: Any) -> Any:
    if jnp.iscomplexobj(x):
        return jnp.concatenate([_to_words(x.real), _to_words(x.imag)], axis=-1)
    return jax.lax.bitcast_convert_type(x, np.dtype(np.uint32))


def _from_words(words: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.name not in WIDE:
        return words
    if dtype.name == "complex128":
        half = np.dtype(np.float64)
        return jax.lax.complex(_from_words(words[..., :2], half), _from_words(words[..., 2:], half))
    return jax.lax.bitcast_convert_type(words, dtype)


def call_host(ctx: LoweringContext, op: Op, operands: Sequence[ir.Value]) -> list[ir.Value]:
    """Emit a call of an op's NumPy meaning.

    Raises:
        LoweringError: the module must be portable, or the platform has no callbacks.
    """
    if ctx.portable:
        raise ctx.refuse(
            "a portable module is required to hold no calls of Python; the op runs on the host. "
            "Give it a decomposition."
        )
    shapes = [t.shape for t in ctx.output_types]
    function = host_function(op, shapes, ctx.output_types)
    source = mlir.parse_module(
        jax_function.lower(ctx, function, ctx.input_types), ctx.module.context
    )
    shift_callbacks(source, ctx.module.callback_base)
    ctx.module.callback_base = len(ctx.module.host_callbacks)
    return jax_function.merged(ctx, source, f"host_{op.op_name}", operands)


def _named_alike(op: type[Op]) -> Callable[..., Any]:
    """A lowering rule whose operands are named as the op's."""

    def rule(ctx: LoweringContext, op: Op, *operands: ir.Value) -> Any:
        return call_host(ctx, op, operands)

    kinds = inspect.Parameter
    parameters = [kinds(n, kinds.POSITIONAL_OR_KEYWORD) for n in ("ctx", "op_")]
    parameters += [
        kinds(o.name, kinds.VAR_POSITIONAL if o.variadic else kinds.POSITIONAL_OR_KEYWORD)
        for o in op.operands
    ]
    dressed: Any = rule
    dressed.__signature__ = inspect.Signature(parameters)
    dressed.__module__ = op.__module__
    return rule
