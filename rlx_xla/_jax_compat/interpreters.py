"""JAX's own interpreters of jaxprs, which have a rule for each primitive, on JAX 0.7.2 to 0.12.

``checkify``, ``jet`` and ``sparsify`` know nothing of a primitive from elsewhere: the first would
leave out its checks without a word. They are told that one which holds a jaxpr is as ``jax.jit``.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
from jax._src import util as _util

from rlx_xla._jax_compat.calls import described
from rlx_xla._jax_compat.equations import function_of

_TABLES = (
    ("jax._src.checkify", "error_checks"),
    ("jax.experimental.jet", "jet_rules"),
    ("jax.experimental.sparse.transform", "sparse_rules_bcoo"),
)
"""Modules, which cost time to import, and their tables of rules by primitive."""

_taught: set[tuple[str, Any]] = set()


def teach(primitive: Any) -> None:
    """Give a primitive that holds a jaxpr its rules in those interpreters that are imported.

    Args:
        primitive: has a parameter ``jaxpr``, closed and without constants.
    """
    for module, name in _TABLES:
        if module in sys.modules and (module, primitive) not in _taught:
            table: dict[Any, Any] = vars(sys.modules[module])[name]
            table.setdefault(primitive, functools.partial(_as_jit, table))
            _taught.add((module, primitive))


def _as_jit(table: dict[Any, Any], *args: Any, jaxpr: Any, **_: Any) -> Any:
    """What the rule of ``jax.jit`` gives for the same jaxpr."""
    equation = _call_of(jaxpr)
    return table[equation.primitive](*args, **equation.params)


@functools.lru_cache(maxsize=256)
def _call_of(jaxpr: Any) -> Any:
    """The equation that calls a closed jaxpr through ``jax.jit``."""
    function = jax.jit(function_of(jaxpr), keep_unused=True)
    (equation,) = jax.make_jaxpr(function)(*map(described, jaxpr.in_avals)).jaxpr.eqns
    return equation


@final
class _Cleared:
    """Looks like one of JAX's caches, and passes on that it is cleared."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.cache_clear = call

    def cache_info(self) -> None:
        """Nothing is counted."""

    def cache_keys(self) -> tuple[()]:
        """Nothing is kept."""
        return ()


_kept: list[_Cleared] = []  # JAX holds caches weakly
_lock = threading.Lock()


def when_cleared(calls: Sequence[Callable[[], None]]) -> None:
    """Let ``jax.clear_caches`` call functions too."""
    with _lock:
        for call in calls:
            _kept.append(_Cleared(call))
            _util.register_cache(_kept[-1], "rlx_xla")
