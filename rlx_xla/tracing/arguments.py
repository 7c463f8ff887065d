"""Arguments of a traced function: which leaves are inputs, which are params, and their names."""

from __future__ import annotations

import collections
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import numpy as np

from rlx.dims.constraints import Constraint
from rlx.errors import ParseError, TraceError
from rlx.types import TensorType, as_type
from rlx_xla._jax_compat import keys
from rlx_xla._jax_compat.jaxpr import abstract
from rlx_xla._jax_compat.symbolic import SymbolScope

COLLECTIONS = frozenset({"params", "batch_stats", "cache", "intermediates"})
"""Names of flax's variable collections; a tree of them needs no prefix."""


@final
@dataclass(frozen=True)
class Leaf:
    """One leaf of the arguments.

    Attributes:
        name: unique name, from the argument's name and the path.
        path: the path inside the argument, with ``/``.
        argument: positional index, or the keyword.
        value: array, scalar or abstract value; specs are resolved.
        param: whether it is bound once instead of being fed.
    """

    name: str
    path: str
    argument: int | str
    value: Any
    param: bool


@final
@dataclass(frozen=True)
class Arguments:
    """Every leaf of the dynamic arguments, in pytree order of ``(args, kwargs)``.

    Attributes:
        leaves: the leaves.
        tree: JAX's structure of ``(args, kwargs)``.
        args: positional arguments with specs resolved, static ones left out.
        kwargs: keyword arguments, the same.
        whole_params: positions of arguments that are params as a whole.
    """

    leaves: tuple[Leaf, ...]
    tree: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    whole_params: frozenset[int]


def resolve(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    names: Sequence[str],
    params: int | Sequence[int] | type | Callable[..., bool],
    constraints: Sequence[Constraint] = (),
) -> Arguments:
    """Resolve specs such as ``"f32[b, 128]"``, and sort the leaves into inputs and params.

    Args:
        args: dynamic positional arguments.
        kwargs: dynamic keyword arguments.
        names: a name for each positional argument.
        params: positions (among ``args``), a class whose instances hold params, a predicate on
            leaf paths, or a filter of a path and what lies there.
        constraints: what holds for the symbols of specs.

    Raises:
        TraceError: a leaf is neither array, scalar nor spec; a position is out of range.
    """
    scope = SymbolScope([str(c) for c in constraints])
    made_args = tuple(_abstract_tree(a, scope) for a in args)
    made_kwargs = {k: _abstract_tree(v, scope) for k, v in kwargs.items()}
    positions = _positions(params, len(args))
    by_predicate: Any = None
    if callable(params) and not isinstance(params, type) and not _takes_path_and_value(params):
        by_predicate = params
    flat, tree = jax.tree_util.tree_flatten_with_path((made_args, made_kwargs))
    held = _held((made_args, made_kwargs), params)
    names_of = path_names([path for path, _ in flat])
    taken: set[str] = set()
    leaves: list[Leaf] = []
    for (path, value), (outer, key, *inner), is_held in zip(flat, names_of, held, strict=True):
        argument: int | str = int(key) if outer == "0" else key
        label = names[argument] if isinstance(argument, int) else argument
        bare = bool(inner) and _is_collections(made_args, argument)
        name = "/".join(inner if bare else [label, *inner])
        param = is_held or argument in positions
        if by_predicate is not None:
            param = by_predicate(name)
        if name in taken:
            name = "/".join([label, *inner])
        while name in taken:
            name += "_"
        taken.add(name)
        inside = "/".join(map(_key, path[2:]))
        leaves.append(Leaf(name, inside, argument, value, param))
    return Arguments(tuple(leaves), tree, made_args, made_kwargs, whole_params(leaves, len(args)))


def path_names(paths: Sequence[tuple[Any, ...]]) -> list[list[str]]:
    """Names of the steps of each path, without the last step into a box that holds one value.

    Flax keeps every array of a module in such a box, whose only leaf is its attribute ``value``.

    Args:
        paths: paths of all leaves of one tree, as ``jax.tree_util`` gives them.
    """
    steps = [[_key(entry) for entry in path] for path in paths]
    leaves_below = collections.Counter(tuple(s[:n]) for s in steps for n in range(len(s)))
    return [
        names[:-1] if _is_box(path) and leaves_below[tuple(names[:-1])] == 1 else names
        for path, names in zip(paths, steps, strict=True)
    ]


def _is_box(path: tuple[Any, ...]) -> bool:
    return bool(path) and path[-1] == jax.tree_util.GetAttrKey("value")


def _held(trees: Any, params: Any) -> list[bool]:
    """For each leaf whether it belongs to an instance of the class, or passes the filter."""
    count = jax.tree_util.tree_leaves
    if isinstance(params, type):
        tops = count(trees, is_leaf=lambda node: isinstance(node, params))
        return [isinstance(top, params) for top in tops for _ in count(top)]
    if not callable(params) or not _takes_path_and_value(params):
        return [False] * len(count(trees))
    boxes = _nnx_boxes()
    tops = jax.tree_util.tree_flatten_with_path(
        trees, is_leaf=lambda node: isinstance(node, boxes)
    )[0]
    # A filter of variables is not asked about the arrays beside them.
    only = boxes if any(isinstance(top, boxes) for _, top in tops) else (object,)
    # The first two steps are args or kwargs, and which of them.
    return [
        isinstance(top, only) and bool(params(tuple(_raw_key(entry) for entry in path[2:]), top))
        for path, top in tops
        for _ in count(top)
    ]


def _takes_path_and_value(params: Callable[..., Any]) -> bool:
    """Whether this is a filter as flax's nnx has them, and not a predicate on a name."""
    try:
        parameters = inspect.signature(params).parameters.values()
    except (TypeError, ValueError):
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in places and p.default is inspect.Parameter.empty]
    return len(needed) == 2


def _nnx_boxes() -> tuple[type, ...]:
    """The classes that nnx keeps each array in; none where it is not imported."""
    names = vars(sys.modules["flax.nnx"]) if "flax.nnx" in sys.modules else {}
    found = [names.get(name) for name in ("Variable", "VariableState")]
    return tuple(kind for kind in found if isinstance(kind, type))


def _raw_key(entry: Any) -> Any:
    """A step of a path as it stands in the structure: a number stays one."""
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return entry


def argument_names(fn: Callable[..., Any], count: int) -> list[str]:
    """Names of the first positional parameters of a function, ``arg0`` … where unknown."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    found: list[str] = []
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            found += [f"{parameter.name}_{i}" for i in range(count - len(found))]
        elif parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            found.append(parameter.name)
    return [*found[:count], *(f"arg{i}" for i in range(len(found[:count]), count))]


def closed_over(fn: Callable[..., Any]) -> dict[str, Any]:
    """What a Python function reads from around it, by name; nothing for other callables."""
    plain = inspect.unwrap(fn)
    if not inspect.isfunction(plain):
        return {}
    found = inspect.getclosurevars(plain)
    return {**found.globals, **found.nonlocals}


def _positions(params: Any, count: int) -> frozenset[int]:
    if callable(params):
        return frozenset()
    given = (params,) if isinstance(params, int) else tuple(params)
    positions = frozenset(p + count if p < 0 else p for p in given)
    wrong = [p for p in positions if not 0 <= p < count]
    if wrong:
        raise TraceError(
            f"trace: params names argument {wrong[0]}; the function was given {count} positional "
            "arguments. Give indices of positional arguments, or a predicate on leaf paths."
        )
    return positions


def whole_params(leaves: Sequence[Leaf], count: int) -> frozenset[int]:
    """Positions among ``count`` positional arguments that hold params and nothing else."""
    fed = {leaf.argument for leaf in leaves if not leaf.param}
    bound = {leaf.argument for leaf in leaves if leaf.param}
    return frozenset(i for i in range(count) if i in bound and i not in fed)


def _is_collections(args: Sequence[Any], argument: int | str) -> bool:
    if not isinstance(argument, int):
        return False
    value = args[argument]
    return isinstance(value, Mapping) and bool(value) and COLLECTIONS.issuperset(value)


def _key(entry: Any) -> str:
    attribute = _attribute_of(type(entry)) or _named(dir(entry))
    return str(getattr(entry, attribute)) if attribute else str(entry).strip(".[]'\"")


@functools.lru_cache(maxsize=1024)
def _attribute_of(kind: type) -> str:
    """The attribute that names the steps of a class, asked for once: ``dir`` is slow."""
    return _named([*dir(kind), *getattr(kind, "__dataclass_fields__", {})])


def _named(attributes: Sequence[str]) -> str:
    return next((name for name in ("key", "name", "idx") if name in attributes), "")


def _abstract_tree(tree: Any, scope: SymbolScope) -> Any:
    return jax.tree_util.tree_map(
        lambda leaf: _abstract_leaf(leaf, scope),
        tree,
        is_leaf=lambda leaf: isinstance(leaf, TensorType),
    )


def _abstract_leaf(leaf: Any, scope: SymbolScope) -> Any:
    if isinstance(leaf, str | TensorType):
        try:
            spec = as_type(leaf)
        except ParseError as error:
            raise TraceError(
                f"trace: a text is required to be a spec such as 'f32[b, 128]'; got {leaf!r}: "
                f"{error} Name static arguments in static_argnums or static_argnames."
            ) from error
        shape = scope.shape([str(d) for d in spec.shape])
        return abstract(shape, spec.dtype.numpy)
    if keys.is_key(leaf) or isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return leaf
    if isinstance(leaf, bool | int | float | complex | jax.ShapeDtypeStruct):
        return leaf
    if hasattr(leaf, "__jax_array__"):
        return leaf
    raise TraceError(
        f"trace: an argument's leaf is required to be an array, a number, a jax.ShapeDtypeStruct "
        f"or a spec such as 'f32[b, 128]'; got {type(leaf).__name__}. Name static arguments in "
        "static_argnums or static_argnames."
    )
