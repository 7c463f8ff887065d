"""Named dims of a jitted function: one symbolic program for calls that differ in sizes alone."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias, final

import jax

from rlx.compiled import CompiledGraph
from rlx.deferred import Specializations
from rlx.dtypes import as_dtype
from rlx.errors import ParseError, TraceError, did_you_mean
from rlx.host_values import refuse_masked
from rlx.types import TensorType, as_type
from rlx_xla._jax_compat import keys
from rlx_xla.tracing.jit_keys import CallKey

_Static: TypeAlias = tuple[Collection[int], Collection[str]]


@final
class DimSpecs:
    """What ``jit(dims=...)`` says about the arguments."""

    def __init__(self, name: str, given: Any, fn: Callable[..., Any], static: _Static) -> None:
        """Read the specs.

        Args:
            name: of the function.
            given: one spec per positional argument, or argument name → spec; a spec is a text, a
                type, None, or a tree of these.
            fn: the function.
            static: positions and names of static arguments.

        Raises:
            TraceError: it is neither a list nor a mapping, names no argument or a static one, or
                holds more specs than there are arguments.
        """
        self._name = name
        names, keywords, any_number, any_name = _parameters(fn)
        if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
            raise TraceError(
                f"jit of {name}: dims is required to be one spec per argument, such as "
                f"('f32[n, 3]', None), or {{argument name: spec}}; got {given!r}. Put a single "
                "spec into a tuple."
            )
        if isinstance(given, Mapping):
            self._by_name: dict[str, Any] = dict(given)
            self._by_place: tuple[Any, ...] = tuple(given.get(n) for n in names)
            known = [*names, *keywords]
            strangers = [n for n in given if known and not any_name and n not in known]
            if strangers:
                raise TraceError(
                    f"jit of {name}: names in dims are required to be arguments "
                    f"({', '.join(known)}); got {strangers[0]!r}."
                    f"{did_you_mean(strangers[0], known)}"
                )
        else:
            self._by_place = tuple(given)
            self._by_name = dict(zip(names, given, strict=False))
            if names and not any_number and len(given) > len(names):
                raise TraceError(
                    f"jit of {name}: dims is required to hold at most one spec per argument "
                    f"({', '.join(names)}); got {len(given)} specs. Leave out what is too much, or "
                    "use a mapping (argument name → spec) for keyword-only arguments."
                )
        numbers, static_names = static
        told = [n for n, spec in self._by_name.items() if spec is not None and n in static_names]
        told += [
            str(i) for i, spec in enumerate(self._by_place) if spec is not None and i in numbers
        ]
        if told:
            raise TraceError(
                f"jit of {name}: dims is required to be None for static arguments, which are "
                f"Python values; got a spec for argument {told[0]}. Leave it out."
            )

    def leaves(
        self, dynamic: Sequence[Any], named: Mapping[str, Any], positions: Sequence[int]
    ) -> list[TensorType | None]:
        """The spec of each leaf of a call's dynamic arguments, None for one taken as it comes.

        Raises:
            TraceError: a spec has another structure than its argument, or is no spec.
        """
        pairs = [
            (f"argument {p}", value, self._by_place[p] if p < len(self._by_place) else None)
            for p, value in zip(positions, dynamic, strict=True)
        ]
        pairs += [
            (f"argument {key!r}", named[key], self._by_name.get(key)) for key in sorted(named)
        ]
        return [spec for label, value, given in pairs for spec in self._of(label, value, given)]

    def _of(self, label: str, value: Any, given: Any) -> list[TensorType | None]:
        leaves, tree = jax.tree_util.tree_flatten(value)
        for leaf in leaves:
            refuse_masked(f"jit of {self._name}: {label}", leaf)
        if given is None:
            return [None] * len(leaves)
        specs, structure = jax.tree_util.tree_flatten(given, is_leaf=_is_spec)
        if structure != tree:
            raise TraceError(
                f"jit of {self._name}: dims of {label} are required in its structure, {tree}; "
                f"got {structure}. Use None for leaves that are taken as they come."
            )
        return [None if spec is None else self._type(label, spec) for spec in specs]

    def _type(self, label: str, spec: Any) -> TensorType:
        if not isinstance(spec, str | TensorType):
            raise TraceError(
                f"jit of {self._name}: dims of {label} is required to be a spec such as "
                f"'f32[n, 3]', or None; got {spec!r}."
            )
        try:
            return as_type(spec)
        except ParseError as error:
            raise ParseError(f"jit of {self._name}: dims of {label}: {error}") from error


def _parameters(fn: Callable[..., Any]) -> tuple[list[str], list[str], bool, bool]:
    """Names of positional and of keyword-only parameters; whether more of each are taken."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return [], [], True, True
    kinds = [p.kind for p in parameters]
    return (
        [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)],
        [p.name for p in parameters if p.kind is p.KEYWORD_ONLY],
        inspect.Parameter.VAR_POSITIONAL in kinds,
        inspect.Parameter.VAR_KEYWORD in kinds,
    )


def _is_spec(leaf: Any) -> bool:
    return leaf is None or isinstance(leaf, str | TensorType)


def group_key(key: CallKey, specs: Sequence[TensorType | None]) -> CallKey:
    """The key of all calls that one symbolic program serves."""
    leaves = tuple(
        leaf if spec is None else (leaf[0], tuple(str(d) for d in spec.shape), leaf[2])
        for leaf, spec in zip(key.leaves, specs, strict=True)
    )
    return dataclasses.replace(key, leaves=leaves)  # pyright: ignore[reportArgumentType]


def with_specs(
    dynamic: tuple[Any, ...], named: dict[str, Any], specs: Sequence[TensorType | None]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with specs in place of leaves, in the dtypes of the call."""
    leaves, tree = jax.tree_util.tree_flatten((dynamic, named))
    made = [
        leaf if spec is None else TensorType(_dtype(leaf), spec.shape)
        for leaf, spec in zip(leaves, specs, strict=True)
    ]
    return jax.tree_util.tree_unflatten(tree, made)


def _dtype(leaf: Any) -> Any:
    if keys.is_key(leaf):
        raise TraceError(
            "jit: arrays of numbers are required where dims names sizes; got "
            f"{leaf.dtype}{list(leaf.shape)}. Use None for it, or pass jax.random.key_data(keys)."
        )
    return as_dtype(jax.dtypes.canonicalize_dtype(getattr(leaf, "dtype", type(leaf))))


@final
class Ledger:
    """Records of the programs of every group of calls, in the order of their compiles."""

    def __init__(self) -> None:
        """Start empty."""
        self._groups: list[tuple[str, CompiledGraph]] = []

    def add(self, reason: str, compiled: CompiledGraph) -> None:
        """Join a group; ``reason`` says why its first program is compiled."""
        self._groups.append((reason, compiled))

    def clear(self) -> None:
        """Forget every group."""
        self._groups.clear()

    def records(self) -> Specializations:
        """The records with the counts of all groups."""
        found: list[Any] = []
        counts = [0, 0, 0]
        evicted: list[Mapping[str, int]] = []
        for reason, compiled in list(self._groups):
            mine = compiled.specializations()
            for record in mine:
                first = record.reason.startswith("first call")
                text = record.reason.replace("first call", reason, 1) if first else record.reason
                if record.reason == "static graph":
                    text = reason
                found.append((record.started, dataclasses.replace(record, reason=text)))
            counts = [
                counts[0] + mine.hits,
                counts[1] + mine.misses,
                counts[2] + mine.evictions,
            ]
            evicted += mine.evicted
        found.sort(key=lambda pair: pair[0])
        records = [dataclasses.replace(record, number=i) for i, (_, record) in enumerate(found, 1)]
        return Specializations(records, counts[0], counts[1], counts[2], evicted)
