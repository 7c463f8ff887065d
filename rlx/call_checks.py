"""What a call by name may pass and ask for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from rlx.errors import RunError, did_you_mean
from rlx.ir.graph import Graph, Value
from rlx.param_values import listing


def require_name(where: str, name: object) -> str:
    """The name itself.

    Raises:
        RunError: it is none.
    """
    if not isinstance(name, str):
        raise RunError(f"{where}: a name is required; got {name!r}. Write it in quotes.")
    return name


def params_of(where: str, other: Any) -> Mapping[str, Any]:
    """The bound params of a compiled graph.

    Raises:
        RunError: it is no compiled graph.
    """
    found = getattr(other, "params", None)
    if not callable(found):
        raise RunError(
            f"{where}: a compiled graph is required; got {type(other).__name__}. Compile it with "
            "rlx.Session(...).compile(...)."
        )
    return cast("Mapping[str, Any]", found())


def require_mapping(where: str, what: str, given: object) -> None:
    """Refuse what is no mapping.

    Raises:
        RunError: it is none.
    """
    if not isinstance(given, Mapping):
        raise RunError(
            f"{where}: a mapping ({what}) is required; got {type(given).__name__}. "
            "Write {'name': array}."
        )


def require_sets(where: str, given: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """The inputs of several runs, as they are.

    Raises:
        RunError: it is no series of mappings.
    """
    if not isinstance(cast("object", given), Iterable) or isinstance(given, Mapping):
        raise RunError(
            f"{where}: a list of mappings (input name → array) is required; got "
            f"{type(cast('object', given)).__name__}. For one run use run."
        )
    return given


def check_names(
    where: str, graph: Graph, inputs: Mapping[str, Any], optional: Collection[str]
) -> None:
    """Check that every input has a value and that nothing else has.

    Args:
        where: beginning of messages.
        graph: what declares the inputs.
        inputs: what was given.
        optional: names that may be left out.

    Raises:
        RunError: a name is unknown or missing.
    """
    names = {v.name: v.type for v in graph.inputs}
    unknown = [name for name in inputs if name not in names]
    missing = [name for name in names if name not in inputs and name not in optional]
    listed = listing(graph.inputs) if unknown or missing else ""
    if unknown:
        hint = did_you_mean(unknown[0], names)
        if any(v.name == unknown[0] for v in graph.params):
            hint = " It is a param: use set_param."
        raise RunError(f"{where}: unknown input {unknown[0]!r}; inputs are {listed}.{hint}")
    if missing:
        raise RunError(
            f"{where}: every input is required; missing {', '.join(map(repr, missing))}. "
            f"Inputs are {listed}."
        )


def output_indices(count: int, outputs: Sequence[int] | None) -> Sequence[int]:
    """The outputs to read back, of ``count``.

    Raises:
        RunError: something in ``outputs`` is no number of an output.
    """
    if outputs is None:
        return range(count)
    if not isinstance(cast("object", outputs), Sequence | np.ndarray):
        raise RunError(f"run: outputs is a list of numbers, or None; got {outputs!r}.")
    wrong: list[object] = []
    for index in cast("Sequence[object]", outputs):
        number = isinstance(index, int | np.integer) and not isinstance(index, bool)
        whole = int(cast("int", index)) if number else count
        if not -count <= whole < count:
            wrong.append(cast("object", index))
    if wrong:
        raise RunError(f"run: outputs are numbered 0 to {count - 1}; got {wrong[0]!r}.")
    return outputs


def shape_of(leaf: Value, value: Any) -> tuple[int, ...]:
    """Sizes of what was given for an input.

    Raises:
        RunError: lists of different lengths, or a mapping.
    """
    if isinstance(value, Mapping):
        raise RunError(
            f"call: argument {leaf.name!r} is required to be {leaf.type}; got "
            f"{type(cast('object', value)).__name__}. Arrays by name are for run({{...}}); a call "
            "takes them in order."
        )
    try:
        return tuple(np.shape(value))
    except ValueError as error:
        raise RunError(
            f"call: argument {leaf.name!r} is required to be {leaf.type}; "
            "got lists of different lengths. Pass an array."
        ) from error


def shapes_of(
    leaves: Sequence[Value], values: Sequence[Any], keys: Collection[str]
) -> dict[str, tuple[int, ...]]:
    """Sizes of what was given for inputs, by name.

    Args:
        leaves: the inputs.
        values: one for each.
        keys: names of inputs that may be key arrays, whose last axis is hidden.
    """
    found: dict[str, tuple[int, ...]] = {}
    for leaf, value in zip(leaves, values, strict=True):
        shape = shape_of(leaf, value)
        if leaf.name in keys and len(shape) < leaf.type.rank:
            shape += cast("tuple[int, ...]", leaf.type.shape[-1:])
        found[leaf.name] = shape
    return found
