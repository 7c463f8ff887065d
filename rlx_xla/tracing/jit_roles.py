"""Which arguments of a jitted function are static or donated, and what is left without them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import jax
import numpy as np

from rlx.errors import TraceError
from rlx_xla.tracing.arguments import argument_names


def name_of(fn: Callable[..., Any]) -> str:
    """The name of a function; that of the function inside for a ``functools.partial``."""
    while isinstance(fn, functools.partial) and not hasattr(fn, "__name__"):
        fn = fn.func
    return getattr(fn, "__name__", type(fn).__name__)


@final
class Roles:
    """Which arguments are static or donated, by position and by name, as JAX infers it.

    Attributes:
        name: of the function, for people.
        static_numbers: positions of static arguments.
        static_names: their names.
        donate_numbers: positions of donated arguments.
        donate_names: their names.
    """

    def __init__(self, fn: Callable[..., Any], given: Mapping[str, Any]) -> None:
        """Look at a function and at what ``jax.jit`` is given for it."""
        self.name = name_of(fn)
        self._fn = fn
        try:
            parameters = list(inspect.signature(fn).parameters.values())
        except (TypeError, ValueError):  # a builtin without a signature
            parameters = []
        self._count = len(parameters)
        any_number = inspect.Parameter.VAR_POSITIONAL
        self._takes_any = not parameters or any_number in [p.kind for p in parameters]
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._names = [p.name for p in parameters if p.kind in kinds]
        self.static_numbers, self.static_names = self._both("static", given)
        self.donate_numbers, self.donate_names = self._both("donate", given)

    def _both(self, role: str, given: Mapping[str, Any]) -> tuple[frozenset[int], frozenset[str]]:
        numbers, names = given.get(f"{role}_argnums"), given.get(f"{role}_argnames")
        by_number = () if numbers is None else (numbers,) if isinstance(numbers, int) else numbers
        by_name = () if names is None else (names,) if isinstance(names, str) else tuple(names)
        all_numbers = {n + self._count if n < 0 else n for n in by_number}
        all_names = set(by_name)
        if numbers is None:
            all_numbers = {i for i, n in enumerate(self._names) if n in all_names}
        elif names is None:
            all_names = {n for i, n in enumerate(self._names) if i in all_numbers}
        return frozenset(all_numbers), frozenset(all_names)

    def positions(self, option: str, given: Any) -> frozenset[int]:
        """Positions that an option names, counted from the first argument.

        Raises:
            TraceError: they are no positions, or the function has fewer arguments.
        """
        wanted: Any = tuple(given) if isinstance(given, Iterable) else (given,)
        if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in wanted):
            raise TraceError(
                f"jit of {self.name!r} [{option}]: positions of arguments are required; got "
                f"{given!r}. Give numbers, such as {option}=0."
            )
        outside = [n for n in wanted if not self._takes_any and not -self._count <= n < self._count]
        if outside:
            raise TraceError(
                f"jit of {self.name!r} [{option}]: positions among its {self._count} arguments are "
                f"required ({', '.join(self._names) or 'none'}); got {outside[0]}. Count from 0."
            )
        return frozenset(int(n) + self._count if n < 0 else int(n) for n in wanted)

    def split(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]] | None:
        """Dynamic positional and keyword arguments, and static ones; None if one has no hash."""
        if not self.static_numbers and not self.static_names:
            return args, kwargs, ()
        dynamic = tuple(a for i, a in enumerate(args) if i not in self.static_numbers)
        named = {k: v for k, v in kwargs.items() if k not in self.static_names}
        labels = [
            (self._names[i] if i < len(self._names) else i, a)
            for i, a in enumerate(args)
            if i in self.static_numbers
        ]
        labels += [(k, v) for k, v in sorted(kwargs.items()) if k in self.static_names]
        static = tuple((name, type(value), value) for name, value in labels)
        try:
            hash(static)
        except TypeError:
            return None
        return dynamic, named, static

    def dynamic_positions(self, count: int) -> list[int]:
        """Positions of the dynamic ones among ``count`` positional arguments."""
        return [i for i in range(count) if i not in self.static_numbers]

    def donated(self, positions: Sequence[int]) -> frozenset[int | str]:
        """Donated arguments: places among the dynamic positional ones, and keywords."""
        places = {i for i, p in enumerate(positions) if p in self.donate_numbers}
        return frozenset({*places, *self.donate_names})

    def bound(
        self, static: tuple[Any, ...], args: tuple[Any, ...], dynamic: tuple[Any, ...]
    ) -> Callable[..., Any]:
        """The function of the dynamic arguments alone."""
        if not static:
            return self._fn
        positions = self.dynamic_positions(len(args))
        fn, whole = self._fn, list(args)
        fixed = {n: v for n, _, v in static if n in self.static_names}
        taken = {self._names[i] for i in range(min(len(args), len(self._names)))}
        named_fixed = {n: v for n, v in fixed.items() if n not in taken}

        def function(*given: Any, **named: Any) -> Any:
            values = list(whole)
            for position, value in zip(positions, given, strict=True):
                values[position] = value
            return fn(*values, **named, **named_fixed)

        names = argument_names(fn, len(args))
        kind = inspect.Parameter.POSITIONAL_ONLY
        shown = [inspect.Parameter(names[p], kind) for p in positions]
        dressed: Any = function
        dressed.__name__ = dressed.__qualname__ = self.name
        if len({p.name for p in shown}) == len(shown) == len(dynamic):
            dressed.__signature__ = inspect.Signature(shown)
        return function

    def paths(self, dynamic: tuple[Any, ...], named: dict[str, Any]) -> tuple[str, ...]:
        """Names of the leaves of the dynamic arguments, for people."""
        found: list[str] = []
        names = argument_names(self._fn, len(dynamic) + len(self.static_numbers))
        positions = [i for i in range(len(names)) if i not in self.static_numbers]
        for path, _ in jax.tree_util.tree_flatten_with_path((dynamic, named))[0]:
            _, key, *rest = path
            index = getattr(key, "idx", None)
            label = str(getattr(key, "key", "")) if index is None else names[positions[index]]
            found.append(label + jax.tree_util.keystr(tuple(rest)))
        return tuple(found)
