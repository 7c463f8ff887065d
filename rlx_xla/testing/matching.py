"""Whether RLX computes what ``jax.jit`` computes, gradients included."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, final

import jax
import jax.numpy as jnp
import numpy as np

from rlx.dtypes import DType
from rlx.options.compile import CompileOptions
from rlx.options.precision import Precision
from rlx.session import Session
from rlx_xla._jax_compat import jaxpr as jx
from rlx_xla.testing import comparison, drawing
from rlx_xla.testing.tolerances import GRADIENTS, Tolerance
from rlx_xla.testing.tolerances import tolerance as by_dtype
from rlx_xla.tracing.to_jax import to_jax
from rlx_xla.tracing.trace import trace, trace_call

Function = Callable[..., Any]


def assert_matches_jax(
    fn: Function,
    *args: Any,
    sizes: drawing.Sizes = drawing.SIZES,
    dtypes: Sequence[str | DType] = (),
    special: bool = False,
    seed: int = 0,
    symbolic: bool = False,
    gradients: bool = True,
    tolerance: Tolerance | None = None,
    device: str = "cpu",
    precision: Precision = Precision.F32,
    options: CompileOptions | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    **kwargs: Any,
) -> None:
    """Assert that RLX computes what ``jax.jit`` computes.

    Each case goes three ways: traced and compiled; back through ``to_jax``; and, where arguments
    and results are floats, the gradient of a random projection of the results, of the function
    and of the function that came back.

    Args:
        fn: a JAX function.
        args: its arguments: trees of arrays, numbers and specs. Specs such as ``"f32[b, 4]"`` are
            drawn once for each size and dtype.
        sizes: sizes for the symbols of specs: for all, or by name.
        dtypes: each replaces the dtype of every floating spec in turn.
        special: also draw NaN, infinities, both zeros and extreme values; without gradients.
        seed: of the drawn values.
        symbolic: trace once with symbols; the compiled graph specialises for each size but 0.
        gradients: compare gradients too.
        tolerance: bounds for every leaf; the table's, by dtype and precision, where it is None.
        device: where RLX runs.
        precision: what the session computes in.
        options: how to compile.
        static_argnums: positions of arguments that are Python values.
        static_argnames: names of such arguments.
        kwargs: keyword arguments of ``fn``, as ``args``.

    Raises:
        AssertionError: something differs: which case, way, leaf and element, and by how many ulps.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> assert_matches_jax(jax.nn.softmax, "f32[b, 5]", sizes=[1, 3])
        >>> assert_matches_jax(jnp.add, "f32[n]", "f32[n]", dtypes=["f32", "bf16"], sizes=[3])
    """
    function, dynamic, named = _bind_static(fn, args, kwargs, static_argnums, static_argnames)
    session = Session(device, precision=precision)
    check = _Check(function, session, options, tolerance, precision)
    shared = _compiled(session, trace_call(function, dynamic, named), options) if symbolic else None
    drawings = [False, True] if special else [False]
    for extreme in drawings:
        drawn = drawing.cases(
            dynamic, named, sizes=sizes, dtypes=dtypes, special=extreme, seed=seed
        )
        for case in drawn:
            if symbolic and 0 in case.sizes:
                continue  # a graph's symbols are at least 1
            with _Case(case), jx.enable_x64() if case.wide else contextlib.nullcontext():
                check.values(case, shared)
                if gradients and not extreme:
                    check.gradients(case)


@final
class _Check:
    """One function and what it is compared under."""

    def __init__(
        self,
        fn: Function,
        session: Session,
        options: CompileOptions | None,
        tolerance: Tolerance | None,
        precision: Precision,
    ) -> None:
        self._fn = fn
        self._session = session
        self._options = options
        self._tolerance = tolerance
        self._precision = precision

    def values(self, case: drawing.Case, shared: Function | None) -> None:
        """Compare results."""
        traced = trace_call(self._fn, case.args, case.kwargs)
        wanted = jax.jit(self._fn)(*case.args, **case.kwargs)
        ways = {
            "compiled": shared or _compiled(self._session, traced, self._options),
            "to_jax": jax.jit(to_jax(traced)),
        }
        for way, function in ways.items():
            found = function(*case.args, **case.kwargs)
            comparison.compare(found, wanted, self._value_bound, _label(way, case))

    def gradients(self, case: drawing.Case) -> None:
        """Compare gradients of a projection by every floating argument."""
        leaves, tree = jax.tree_util.tree_flatten((case.args, case.kwargs))
        chosen = [i for i, leaf in enumerate(leaves) if _is_differentiable(leaf)]
        results = jax.eval_shape(self._fn, *case.args, **case.kwargs)
        weights = _weights(results)
        if not chosen or not weights:
            return

        def projection(fn: Function) -> Function:
            def project(floats: Sequence[Any], others: Sequence[Any]) -> Any:
                every = list(others)
                for index, value in zip(chosen, floats, strict=True):
                    every[index] = value
                args, kwargs = jax.tree_util.tree_unflatten(tree, every)
                return _project(fn(*args, **kwargs), weights)

            return jax.grad(project)

        floats = [leaves[i] for i in chosen]
        others = [0 if i in chosen else leaf for i, leaf in enumerate(leaves)]
        grad = projection(self._fn)
        wanted = jax.jit(grad)(floats, others)
        traced = trace(grad, floats, others)
        back = to_jax(trace_call(self._fn, case.args, case.kwargs))
        ways = {
            "gradient, compiled": _compiled(self._session, traced, self._options),
            "gradient through to_jax": jax.jit(projection(back)),
        }
        for way, function in ways.items():
            found = function(floats, others)
            comparison.compare(found, wanted, self._gradient_bound, _label(way, case))

    def _value_bound(self, dtype: DType, wanted: Any) -> Tolerance:
        del wanted
        if self._tolerance is not None:
            return self._tolerance
        return by_dtype(dtype, self._precision)

    def _gradient_bound(self, dtype: DType, wanted: Any) -> Tolerance:
        bound = self._value_bound(dtype, wanted)
        size = np.abs(np.asarray(wanted).astype(np.float64))
        largest = float(np.max(size, initial=1.0, where=np.isfinite(size)))
        return Tolerance(bound.atol * GRADIENTS * largest, bound.rtol * GRADIENTS)


@final
class _Case:
    """A block that runs one case, and names it in errors that are not comparisons."""

    def __init__(self, case: drawing.Case) -> None:
        self._case = case

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> Literal[False]:
        """Say for which sizes and dtype something failed."""
        if error is not None and self._case.label and not isinstance(error, AssertionError):
            error.add_note(f"assert_matches_jax: in the case {self._case.label}")
        return False


def _compiled(session: Session, traced: Any, options: CompileOptions | None) -> Function:
    return session.compile(traced) if options is None else session.compile(traced, options=options)


def _label(way: str, case: drawing.Case) -> str:
    return f"{way} result ({case.label})" if case.label else f"{way} result"


def _is_differentiable(leaf: Any) -> bool:
    if isinstance(leaf, float):
        return True
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize > 1


def _weights(results: Any) -> dict[int, Any]:
    """A random array for each inexact result, by its position."""
    rng = np.random.default_rng(1)
    return {
        index: rng.standard_normal(leaf.shape).astype(np.float32)
        for index, leaf in enumerate(jax.tree_util.tree_leaves(results))
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    }


def _project(results: Any, weights: dict[int, Any]) -> Any:
    leaves = jax.tree_util.tree_leaves(results)
    parts = [(leaves[i], w) for i, w in weights.items()]
    return functools.reduce(
        jnp.add, [jnp.sum(jnp.real(x).astype(jnp.float32) * w) for x, w in parts]
    )


def _bind_static(
    fn: Function,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    numbers: int | Sequence[int],
    names: str | Sequence[str],
) -> tuple[Function, tuple[Any, ...], dict[str, Any]]:
    """The function of its dynamic arguments, and these."""
    given = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    static = {n + len(args) if n < 0 else n for n in given}
    known = (names,) if isinstance(names, str) else tuple(names)
    fixed = {k: v for k, v in kwargs.items() if k in known}
    positions = [i for i in range(len(args)) if i not in static]
    if not static and not fixed:
        return fn, tuple(args), dict(kwargs)

    @functools.wraps(fn, assigned=("__name__", "__qualname__"), updated=())
    def bound(*dynamic: Any, **more: Any) -> Any:
        whole = list(args)
        for index, value in zip(positions, dynamic, strict=True):
            whole[index] = value
        return fn(*whole, **more, **fixed)

    del bound.__wrapped__
    rest = {k: v for k, v in kwargs.items() if k not in fixed}
    return bound, tuple(args[i] for i in positions), rest
