"""The short way of a jitted function's call: arguments like the last ones run its program at once.

The function is generated, as that of a compiled graph is (``runtime/calling.py``): a loop over
arguments would cost as much as all its checks. Types and shardings are compared by identity with
those of the last call, shardings then by value; whatever differs goes the long way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from rlx_xla._jax_compat import calls
from rlx_xla._jax_compat import client as jax_client

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
    source = "\n".join(
        [
            "def make(Array, context, settings, run, record, slow, avals, shardings, missing):",
            *(f"    v{i} = avals[{i}]; s{i} = shardings[{i}]" for i in range(len(names))),
            f"    def call({''.join(f'{n}=missing, ' for n in names)}*extra, **kwargs):",
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
