"""Functions that have no one graph for all sizes: traced anew at every binding."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import numpy as np

from rlx import dims
from rlx.dims import DimExpr
from rlx.dims.constraints import Constraint, constraint
from rlx.dtypes import as_dtype
from rlx.errors import DimError, ParseError, SizesError, TraceError
from rlx.ir.graph import Graph
from rlx.signature import Signature
from rlx.template import AbstractTemplate
from rlx.types import TensorType, as_type
from rlx_xla._jax_compat import failures, keys
from rlx_xla._jax_compat.jaxpr import abstract, is_symbolic
from rlx_xla._jax_compat.symbolic import Questions, questions
from rlx_xla.tracing.arguments import Arguments
from rlx_xla.tracing.traced import Coverage, Traced

FAILURES = (TypeError, ValueError, LookupError, ArithmeticError, NotImplementedError, TraceError)
"""What a function that asks about symbolic sizes raises, or one that cannot have the sizes."""

_PROBES = (8, 64, 3, 12, 1)
"""Sizes that are tried to tell a function that needs numbers from one that never traces."""

_RESHAPE = re.compile(r"cannot reshape array of shape \(([\d, ]*)\).* into shape \(([-\d, ]*)\)")
_PARTS = re.compile(
    r"axis (\d+) is partitioned (\d+) times, but the dimension size is (\d+)"
    r"|size of its dimension (\d+) should be divisible by (\d+), but it is equal to (\d+)"
)
_SIZES = re.compile(r"\((\d+(?:, ?\d+)*,?)\)")


@final
class Template(AbstractTemplate):
    """Traces a function again, with numbers in place of the symbols of its specs.

    Attributes:
        why: why there is no graph for all sizes; empty where there is one.
        name: of the function.
        constraints: what holds at every call.
    """

    def __init__(
        self,
        name: str,
        once: Callable[..., Traced],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        names: Sequence[str],
        constraints: Sequence[Constraint] = (),
        closed_over: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """Hold how to trace.

        Args:
            name: of the function.
            once: traces with dynamic arguments, and further constraints.
            args: dynamic positional arguments, with specs.
            kwargs: dynamic keyword arguments, with specs.
            names: a name for each positional argument.
            constraints: what holds at every call.
            closed_over: what the function reads without an argument, by name; for messages.
        """
        self.name = name
        self.why = ""
        self.constraints = tuple(constraints)
        self._once = once
        self._args, self._kwargs = list(args), dict(kwargs)
        self._names = list(names)
        self._closed_over = closed_over

    def at(self, binding: Mapping[str, int]) -> Traced:
        """Trace for a binding.

        Raises:
            DimError: the function cannot have these sizes.
        """
        args = [_bound(a, binding) for a in self._args]
        kwargs = {k: _bound(v, binding) for k, v in self._kwargs.items()}
        try:
            return self._once(args, kwargs)
        except FAILURES as error:
            raise self._explained(error, binding) from error

    def bounded(self, bounds: Mapping[str, tuple[int, int | None]]) -> Traced | None:
        """The trace for all sizes within bounds; None where there is no one graph for them.

        Args:
            bounds: symbol → (least, greatest or None).
        """
        texts = [f"{name} >= {least}" for name, (least, _) in bounds.items()]
        texts += [f"{name} <= {most}" for name, (_, most) in bounds.items() if most is not None]
        try:
            made = self._once(self._args, self._kwargs, [constraint(text) for text in texts])
        except FAILURES:
            return None
        twin = copy.copy(self)
        twin.why = ""
        return dataclasses.replace(made, template=twin)

    def part(self, binding: Mapping[str, int]) -> Traced | None:
        """The trace for sizes of some symbols; None where there is no one graph for the others."""
        args = [_partly(a, binding) for a in self._args]
        kwargs = {k: _partly(v, binding) for k, v in self._kwargs.items()}
        try:
            with questions() as asked:
                made = self._once(args, kwargs)
        except FAILURES:
            return None
        return dataclasses.replace(made, graph=with_questions(made.graph, asked))

    def changed(self, change: Callable[[Traced], Traced]) -> Template:
        """The template of what a transformation makes of every trace."""
        twin, once = copy.copy(self), self._once
        twin._once = lambda *given: change(once(*given))
        return twin

    def probe(self) -> BaseException | None:
        """None when some sizes can be traced; else what the last ones raised."""
        names = spec_symbols((self._args, self._kwargs))
        failure: BaseException | None = None
        for size in _PROBES:
            args = [_bound(a, dict.fromkeys(names, size)) for a in self._args]
            kwargs = {k: _bound(v, dict.fromkeys(names, size)) for k, v in self._kwargs.items()}
            try:
                self._once(args, kwargs)
            except FAILURES as error:
                failure = error
            else:
                return None
        return failure

    def _explained(self, error: Exception, binding: Mapping[str, int]) -> DimError:
        sizes = ", ".join(f"{n}={s}" for n, s in binding.items())
        line = _user_line(error)
        where = f" at {line}" if line else ""
        text = str(error).split("\n")[0]
        found = self._about_dims(str(error), binding)
        if found is not None:
            return SizesError(
                f"{self.name} with {sizes}: {found}{where}. Pass another size. JAX says: {text}"
            )
        return SizesError(
            f"{self.name} with {sizes}{where}: sizes that the function can have are required. "
            f"JAX says: {text}"
        )

    def _about_dims(self, text: str, binding: Mapping[str, int]) -> str | None:
        """The failure in terms of the symbols, for the kinds that are known."""
        reshape = _RESHAPE.search(text)
        if reshape is not None:
            before = [int(n) for n in re.findall(r"\d+", reshape.group(1))]
            after = [int(n) for n in re.findall(r"-?\d+", reshape.group(2))]
            if -1 in after:
                return self._indivisible(before, after, binding)
        parts = _PARTS.search(text)
        if parts is not None:
            axis, count, whole = (int(n) for n in parts.groups() if n is not None)
            for name, size in binding.items():
                if size == whole:
                    return (
                        f"{name}={size} not divisible by {count}, a sharding's parts of axis {axis}"
                    )
        shapes = [[int(n) for n in re.findall(r"\d+", shape)] for shape in _SIZES.findall(text)]
        for name, size in binding.items():
            beside = _beside(size, shapes)
            sizes = beside or {n for shape in shapes for n in shape if size in shape}
            smaller = [f for f in self._fixed_axes() if f[2] in sizes and 1 < f[2] < size]
            if smaller:
                label, axis, other = max(smaller, key=lambda found: found[2])
                return f"{name}={size} exceeds table size {other} ({label} axis {axis})"
            if beside:
                return f"{name}={size} exceeds table size {max(beside)}"
        return None

    def _indivisible(
        self, before: Sequence[int], after: Sequence[int], binding: Mapping[str, int]
    ) -> str | None:
        total, step = int(np.prod(before)), -int(np.prod(after))
        if step <= 0 or total % step == 0:
            return None
        for name, size in binding.items():
            if size == total:
                return f"{name}={size} not divisible by {step}"
        names = [n for n, s in binding.items() if s in before]
        shown = ", ".join(f"{n}={binding[n]}" for n in names or binding)
        return f"{shown}: {total} elements are not divisible by {step}"

    def _fixed_axes(self) -> list[tuple[str, int, int]]:
        """(name, axis, size) of every static axis of the arguments and of what is closed over."""
        found: list[tuple[str, int, int]] = []
        pairs = [*zip(self._names, self._args, strict=True), *self._kwargs.items()]
        pairs += self._closed_over().items()
        for name, tree in pairs:
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_spec)[0]:
                label = name + jax.tree_util.keystr(path)
                shape = as_type(leaf).shape if _is_spec(leaf) else getattr(leaf, "shape", ())
                for axis, size in enumerate(shape if isinstance(shape, tuple) else ()):
                    if isinstance(size, int):
                        found.append((label, axis, size))
        return found


@final
@dataclass(frozen=True, eq=False)
class TemplateTraced:
    """A JAX function without one graph for all sizes; ``at`` gives the graph for some.

    ``rlx.Session.compile`` takes it as it takes a trace, and traces anew at every binding.

    Attributes:
        boundary: a graph of the inputs and params alone.
        signature: names and structure of the arguments.
        params: param name → array, or None for one that is still to be set.
        template: traces anew.
        arguments: every leaf of the function's arguments.
    """

    boundary: Graph
    signature: Signature
    params: Mapping[str, Any]
    template: Template
    arguments: Arguments

    def at(self, binding: Mapping[str, int]) -> Traced:
        """The trace for a binding.

        Raises:
            DimError: the function cannot have these sizes.
        """
        return self.template.at(binding)

    def __getattr__(self, name: str) -> Any:
        if name == "graph":
            sizes = ", ".join(f"{symbol!r}: 8" for symbol in self.boundary.symbols)
            raise AttributeError(
                f"trace of {self.template.name!r}: it has no one graph for all sizes "
                f"({self.template.why.rstrip('.')}). Ask for one: .at({{{sizes}}}).graph."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def coverage(self) -> Coverage:
        """Nothing is known before sizes are."""
        return Coverage(0, 0, {})

    def __repr__(self) -> str:
        inputs = ", ".join(f"{v.name}: {v.type}" for v in self.boundary.inputs)
        return f"<TemplateTraced {self.template.name!r} ({inputs}), traced anew for every size>"


def with_questions(graph: Graph, found: Questions) -> Graph:
    """The graph, with what the function asked of sizes."""
    shapes = [d for v in (*graph.inputs, *graph.params) for d in v.type.shape]
    known = {
        name: dims.symbol(name, symbol.lower, symbol.upper)
        for name, symbol in dims.declarations(shapes).items()
    }
    asked, keyed = (
        [d for d in (dims.parse(t, known) for t in dict.fromkeys(texts)) if isinstance(d, DimExpr)]
        for texts in (found.differences, found.keys)
    )
    return graph.with_questions(asked, keyed)


def declared_symbols(constraints: Sequence[Constraint]) -> dict[str, DimExpr]:
    """Symbols with the bounds that constraints give them."""
    low: dict[str, int] = {}
    high: dict[str, int] = {}
    for one in constraints:
        found = one.bound()
        if found is not None:
            name, least, most = found
            low[name] = max(low.get(name, 1), least or 1)
            if most is not None:
                high[name] = min(high.get(name, most), most)
    return {name: dims.symbol(name, low.get(name, 1), high.get(name)) for name in {*low, *high}}


def has_symbols(tree: Any) -> bool:
    """Whether some spec of the arguments has a symbol."""
    return any(spec.symbols for spec in _specs(tree))


def spec_symbols(tree: Any) -> list[str]:
    """The symbols of the arguments' specs, sorted."""
    return sorted({name for spec in _specs(tree) for name in spec.symbols})


def spelled(tree: Any) -> Any:
    """The tree with specs in place of abstract arrays that have JAX's own symbols.

    A tree without such arrays comes back as it is.
    """
    leaves, structure = jax.tree_util.tree_flatten(tree, is_leaf=_is_spec)
    made = [_as_spec(leaf) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf for leaf in leaves]
    if all(new is old for new, old in zip(made, leaves, strict=True)):
        return tree
    return jax.tree_util.tree_unflatten(structure, made)


def _as_spec(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct | TensorType:
    if not any(is_symbolic(size) for size in leaf.shape) or keys.is_key(leaf):
        return leaf
    sizes = tuple(dims.parse(str(n)) if is_symbolic(n) else int(n) for n in leaf.shape)
    return TensorType(as_dtype(np.dtype(leaf.dtype)), sizes)


def _specs(tree: Any) -> list[TensorType]:
    leaves = jax.tree_util.tree_leaves(tree, is_leaf=_is_spec)
    found: list[TensorType] = []
    for leaf in leaves:
        try:
            found += [as_type(leaf)] if _is_spec(leaf) else []
        except ParseError:  # ``resolve`` says what is wrong with it
            return []
    return found


def _is_spec(leaf: Any) -> bool:
    return isinstance(leaf, str | TensorType)


def _bound(tree: Any, binding: Mapping[str, int]) -> Any:
    def bind(leaf: Any) -> Any:
        if not _is_spec(leaf):
            return leaf
        spec = as_type(leaf)
        sizes = tuple(
            dims.evaluate(dims.parse(str(d), _free(d)), binding) if isinstance(d, DimExpr) else d
            for d in spec.shape
        )
        return abstract(sizes, spec.dtype.numpy)

    return jax.tree_util.tree_map(bind, tree, is_leaf=_is_spec)


def _partly(tree: Any, binding: Mapping[str, int]) -> Any:
    return jax.tree_util.tree_map(
        lambda leaf: as_type(leaf).bind(binding) if _is_spec(leaf) else leaf,
        tree,
        is_leaf=_is_spec,
    )


def _free(dim: DimExpr) -> dict[str, DimExpr]:
    return {name: dims.symbol(name, 0) for name in dims.symbols(dim)}


def _beside(size: int, shapes: Sequence[Sequence[int]]) -> set[int]:
    """Sizes above 1 and below `size` that face it, axis by axis from the last, in other shapes."""
    found: set[int] = set()
    for shape in shapes:
        for back in (b for b in range(1, len(shape) + 1) if shape[-b] == size):
            found |= {other[-back] for other in shapes if len(other) >= back}
    return {n for n in found if 1 < n < size}


def _user_line(error: BaseException) -> str:
    """File and line where the user's code failed."""
    for cause in (error, error.__cause__):
        line = None if cause is None else failures.user_line(cause)
        if line is not None:
            return f"{line.file}:{line.line}"
    return ""
