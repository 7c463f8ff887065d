"""The composable path: a finished module as one primitive under ``jax.jit``.

Used under JAX's tracers, and where JAX must watch the call. The module is merged into the
surrounding one when JAX lowers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching
from jax.interpreters import mlir as jax_mlir

from rlx.errors import LoweringError, TraceError
from rlx_xla._jax_compat import client as jax_client
from rlx_xla._jax_compat import mlir, placement
from rlx_xla._jax_compat.jaxpr import Primitive, enable_x64
from rlx_xla.runtime.spread import Spread


@final
class SpliceProgram:
    """A module that can be called inside a JAX computation.

    Attributes:
        name: the function's name in the surrounding module.
        bytecode: the module, made by this process.
        results: avals of the results.
        platform: where the module may run.
    """

    __slots__ = (
        "_again", "_jitted", "_spread", "_wide", "bytecode", "name", "platform", "results",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        bytecode: bytes,
        results: Sequence[Any],
        platform: str,
        *,
        donated: Sequence[int] = (),
        wide: bool = False,
        compiler_options: Mapping[str, Any] | None = None,
        spread: Spread | None = None,
    ) -> None:
        """Wrap a module.

        Args:
            name: the function's name in the surrounding module.
            bytecode: the module, made by this process.
            results: avals of the results.
            platform: where the module may run.
            donated: arguments whose buffers a run consumes.
            wide: the module has 64-bit arguments or results.
            compiler_options: XLA flags by name.
            spread: where arguments and results lie, for a program over several devices.
        """
        self.name = name
        self.bytecode = bytecode
        self.results = tuple(results)
        self.platform = platform
        self._wide = wide
        self._spread = spread
        places: dict[str, Any] = {}
        if spread is not None:
            places = {"in_shardings": spread.arguments, "out_shardings": list(spread.results)}

        def jitted() -> Any:
            def run(*buffers: Any) -> list[Any]:
                return splice.bind(*buffers, program=self)

            run.__name__ = run.__qualname__ = name
            return jax.jit(
                run,
                donate_argnums=tuple(donated),
                keep_unused=True,
                compiler_options=dict(compiler_options) if compiler_options else None,
                **places,
            )

        # JAX runs a call again from within itself when its checks find a NaN; the same jitted
        # function would be called recursively, which JAX refuses, so there is a second one.
        self._jitted, self._again = jitted(), jitted()

    def run(self, buffers: Sequence[Any], *, again: bool = False) -> list[jax.Array]:
        """Run the module through ``jax.jit``; ``again`` from within such a run."""
        function = self._again if again else self._jitted
        with enable_x64() if self._wide else contextlib.nullcontext():
            results = function(*buffers)
        return results if self._spread is None else placement.with_axes_of(results, buffers)

    def compile(self, arguments: Sequence[Any]) -> Any:
        """Compile through ``jax.jit`` for abstract arguments; ``run`` then finds the program.

        Returns:
            The executable of XLA's client.
        """
        with enable_x64() if self._wide else contextlib.nullcontext():
            return self._jitted.lower(*arguments).compile().runtime_executable()

    @property
    def is_spread(self) -> bool:
        """Whether the program runs on several devices."""
        return self._spread is not None

    def bind(self, values: Sequence[Any]) -> list[Any]:
        """Record the call in the surrounding JAX trace."""
        return splice.bind(*values, program=self)


_GPUS = ("gpu", "cuda", "rocm")

splice = Primitive("rlx_call")
splice.multiple_results = True


@splice.def_impl
def _run_eagerly(*buffers: Any, program: SpliceProgram) -> list[jax.Array]:
    """Run outside ``jax.jit``: JAX does so when its check of the jitted call found a NaN.

    Raises:
        FloatingPointError: as JAX itself does, where its checks are on and fail.
    """
    nans, infs = jax_client.DEBUG_NANS.value, jax_client.DEBUG_INFS.value
    with jax.debug_nans(False), jax.debug_infs(False):
        results = program.run(buffers, again=True)
        for what, wanted, test in (("nan", nans, jnp.isnan), ("inf", infs, jnp.isinf)):
            inexact = [r for r in results if jnp.issubdtype(r.dtype, jnp.inexact)]
            if wanted and any(bool(test(r).any()) for r in inexact):
                raise FloatingPointError(f"invalid value ({what}) encountered in {program.name}")
    return results


@splice.def_abstract_eval
def _result_types(*_: Any, program: SpliceProgram) -> list[Any]:
    return list(program.results)


def _lower(ctx: Any, *operands: Any, program: SpliceProgram) -> Sequence[Any]:
    platforms = tuple(ctx.platforms or ctx.module_context.platforms)
    # A GPU's device calls its platform "gpu"; JAX lowers for "cuda" or "rocm".
    allowed = _GPUS if program.platform in _GPUS else (program.platform,)
    if any(p not in allowed for p in platforms):
        raise LoweringError(
            f"call of {program.name}: it must be lowered for {program.platform}, for which it was "
            f"compiled; got {', '.join(platforms)}. Compile the graph for that device."
        )
    module = ctx.module_context.module
    with module.context:
        source = mlir.parse_module(program.bytecode, module.context)
        if program.is_spread:  # the surrounding function says where its arguments lie
            mlir.drop_boundary_shardings(source)
        name = mlir.merge_module(source, module, program.name, ctx.module_context.symbol_table)
        results: list[mlir.ir.Type] = [mlir.tensor_type(r.shape, r.dtype) for r in program.results]
        symbol = mlir.ir.FlatSymbolRefAttr.get(name)
        return mlir.func.CallOp(results, symbol, list(operands)).results


jax_mlir.register_lowering(splice, _lower)


def _differentiate(*_: Any, program: SpliceProgram) -> Any:
    raise TraceError(
        f"call of {program.name}: a compiled graph is required to stay outside of jax.grad, "
        "jax.jvp and jax.vjp; got a call that JAX differentiates. Trace the derivative instead: "
        "rlx_xla.trace(jax.grad(fn), ...)."
    )


def _batch(*_: Any, program: SpliceProgram) -> Any:
    raise TraceError(
        f"call of {program.name}: a compiled graph is required to stay outside of jax.vmap; got a "
        "call that JAX batches. Trace the batched function instead: "
        "rlx_xla.trace(jax.vmap(fn), ...)."
    )


ad.primitive_jvps[splice] = _differentiate
batching.primitive_batchers[splice] = _batch
