"""The short way of a jitted function's call: arguments like the last ones run its program at once.

The function is generated, as that of a compiled graph is (``runtime/calling.py``): a loop over
arguments would cost as much as all its checks. Types and shardings are compared by identity with
those of the last call, shardings then by value; whatever differs goes the long way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from rlx_xla._jax_compat import calls
from rlx_xla._jax_compat import client as jax_client

_ARRAY = jax_client.ArrayImpl
flatten = jax.tree_util.tree_flatten

_MOST = 64
"""Arguments that have a short way; the program itself is as quick with more."""


def quick_call(
    args: Sequence[Any],
    context: Any,
    run: Callable[..., Any],
    record: Any,
    slow: Callable[[tuple[Any, ...], dict[str, Any]], Any],
) -> Callable[..., Any] | None:
    """Return a function that runs a program for arguments like given ones, or None for too many.

    Args:
        args: arrays, each an argument of its own.
        context: JAX's settings.
        run: the program; takes the arguments.
        record: its ``hits`` are counted.
        slow: takes positional and keyword arguments of any other call.
    """
    if len(args) > _MOST:
        return None
    one = jax_client.is_only_device()
    tied = tuple(bool(a._committed) for a in args)
    # On the only device an array that is free to move can lie in no other way.
    placed = tuple(is_tied or not one for is_tied in tied)
    make = _maker(tied, placed)
    return make(
        jax_client.ArrayImpl,
        calls.trace_context,
        context,
        run,
        record,
        slow,
        tuple(a.aval for a in args),
        tuple(a.sharding for a in args),
        _MISSING,
    )


_MISSING = object()
"""Stands for an argument that was not passed."""


@functools.lru_cache(maxsize=256)
def _maker(tied: tuple[bool, ...], placed: tuple[bool, ...]) -> Callable[..., Any]:
    """Compile the source, given which arguments are tied, and which must lie as before."""
    names = [f"a{i}" for i in range(len(tied))]
    tests = ["kwargs", "extra"]
    for i, (is_tied, is_placed) in enumerate(zip(tied, placed, strict=True)):
        tests += [f"type(a{i}) is not Array", f"a{i}.aval is not v{i}"]
        tests.append(f"not a{i}._committed" if is_tied else f"a{i}._committed")
        if is_placed:
            tests.append(f"(a{i}.sharding is not s{i} and a{i}.sharding != s{i})")
    tests.append("context() != settings")
    given = f"({''.join(f'{n}, ' for n in names)})"
    # Positional alone: the function's own arguments may have these names.
    parameters = "".join(f"{n}=missing, " for n in names) + ("/, " if names else "")
    source = "\n".join(
        [
            "def make(Array, context, settings, run, record, slow, avals, shardings, missing):",
            *(f"    v{i} = avals[{i}]; s{i} = shardings[{i}]" for i in range(len(names))),
            f"    def call({parameters}*extra, **kwargs):",
            f"        if {' or '.join(tests)}:",
            f"            given = tuple(a for a in {given} if a is not missing)",
            "            return slow((*given, *extra), kwargs)",
            "        record.hits += 1",
            f"        return run({', '.join(names)})",
            "    call.__qualname__ = 'jitted function'",
            "    return call",
        ]
    )
    namespace: dict[str, Any] = {}
    exec(compile(source, "<rlx quick call>", "exec"), namespace)
    return namespace["make"]


def quick_tree_call(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static: tuple[frozenset[int], frozenset[str]],
    context: Any,
    run: Callable[..., Any],
    record: Any,
    slow: Callable[[tuple[Any, ...], dict[str, Any]], Any],
) -> Callable[..., Any]:
    """Return the same for structures, host arrays, numbers, keywords and static arguments.

    Args:
        args: positional arguments of a call.
        kwargs: keyword arguments.
        static: positions and names of static ones; they have hashes.
        context: JAX's settings.
        run: the program; takes the arguments that are not static.
        record: its ``hits`` are counted.
        slow: takes positional and keyword arguments of any other call.
    """
    numbers, names = static
    count, keys = len(args), kwargs.keys()
    kept = tuple(i for i in range(count) if i not in numbers)
    named = tuple(k for k in keys if k not in names)
    fixed = [(i, args[i]) for i in range(count) if i in numbers]
    fixed_names = [(k, kwargs[k]) for k in keys if k in names]
    statics = tuple((w, type(v), hash(v), v) for w, v in (*fixed, *fixed_names))
    whole = len(kept) == count and len(named) == len(keys)
    dynamic = tuple(args[i] for i in kept), {k: kwargs[k] for k in named}
    leaves, tree = flatten(dynamic)
    one = jax_client.is_only_device()
    wanted = tuple(_probe(leaf, one) for leaf in leaves)
    settings, now = context, calls.trace_context

    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) != count or kwargs.keys() != keys or now() != settings:
            return slow(args, kwargs)
        if statics and not _same(statics, args, kwargs):
            return slow(args, kwargs)
        chosen = (args, kwargs) if whole else (
            tuple([args[i] for i in kept]), {k: kwargs[k] for k in named}
        )  # fmt: skip
        found, structure = flatten(chosen)
        if structure != tree:
            return slow(args, kwargs)
        for leaf, (kind, first, second, place) in zip(found, wanted, strict=True):
            if type(leaf) is not kind:
                return slow(args, kwargs)
            if kind is _ARRAY:
                if leaf.aval is not first or leaf._committed is not second:
                    return slow(args, kwargs)
                if place is not None and leaf.sharding is not place and leaf.sharding != place:
                    return slow(args, kwargs)
            elif first is not None and (leaf.dtype != first or leaf.shape != second):
                return slow(args, kwargs)
        record.hits += 1
        return run(*chosen[0], **chosen[1])

    return call


def _same(statics: Sequence[Any], args: tuple[Any, ...], kwargs: dict[Any, Any]) -> bool:
    """Whether static arguments are those of another call, and what they were then."""
    try:
        for where, kind, code, value in statics:
            given = args[where] if type(where) is int else kwargs[where]
            if type(given) is not kind or hash(given) != code or given != value:
                return False
    except TypeError:  # one without a hash, for which JAX has a message
        return False
    return True


def _probe(leaf: Any, one: bool) -> tuple[Any, ...]:
    """What the leaf of another call is compared with: its class, and what its type is made of."""
    kind = type(leaf)
    if kind is _ARRAY:
        tied = bool(leaf._committed)
        return kind, leaf.aval, tied, leaf.sharding if tied or not one else None
    if kind is np.ndarray:
        return kind, leaf.dtype, leaf.shape, None
    return kind, None, None, None


def is_quick(leaf: Any, key: Any) -> bool:
    """Whether a leaf can be compared by ``quick_tree_call``, and goes to the program as it is."""
    kind = type(leaf)
    if kind is np.ndarray:
        return leaf.dtype == key[0]
    return kind is _ARRAY or kind in (bool, int, float, complex)
