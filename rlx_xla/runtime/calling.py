"""The hot path of a call: one plain function, specialised for the number of arguments.

The function is generated, as ``dataclasses`` generates ``__init__``: a loop over arguments, a
dictionary or an attribute chain would cost more than XLA's own dispatch. Per call and argument
it checks the type, and aval and sharding by identity with the last accepted ones; whatever
differs goes through ``ArgumentRules.admit``, which checks by value and converts.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax

from rlx.errors import RunError
from rlx_xla._jax_compat import client as jax_client
from rlx_xla._jax_compat.jaxpr import Tracer


@final
@dataclass(frozen=True, slots=True)
class CallParts:
    """What the generated function calls.

    Attributes:
        dispatch: ``execute_sharded``, or for effects ``run(buffers, handlers)``.
        handlers: result handlers, in order.
        tied_handlers: those for results that are tied to their device; see ``CallShape.follows``.
        admit: ``(index, value) -> jax.Array``; raises RunError.
        composed: runs all buffers through ``jax.jit``.
        traced: ``(unbound values, bound segments, resident values) -> results`` under a tracer.
        explain: ``(error, unbound values, bound segments) -> exception to raise``.
        count_error: ``number of arguments -> exception``.
        keyword_error: ``name of a keyword argument -> exception``.
        busy_error: makes the exception for a second concurrent call with resident inputs.
    """

    dispatch: Callable[..., Any]
    handlers: Sequence[Any]
    tied_handlers: Sequence[Any]
    admit: Callable[[int, Any], jax.Array]
    composed: Callable[[list[Any]], list[jax.Array]]
    traced: Callable[[tuple[Any, ...], Any, tuple[Any, ...]], list[Any]]
    explain: Callable[[Exception, tuple[Any, ...], Any], Exception]
    count_error: Callable[[int], Exception]
    keyword_error: Callable[[str], Exception]
    busy_error: Callable[[], Exception]


@final
@dataclass(frozen=True, slots=True)
class CallShape:
    """What decides the generated source.

    Attributes:
        layout: for each argument ``"a"`` (unbound), ``"b"`` (bound) or ``"r"`` (resident).
        fed_from: the output that feeds each resident argument, in order of the arguments.
        effects: the program has side effects whose end JAX should know.
        one_device: the process has no other device, so any array is on the right one.
        follows: results are tied to their device where an argument is.
        watch: ``"auto"`` follows JAX's debugging options, ``"never"`` and ``"always"`` do not.
    """

    layout: str
    fed_from: tuple[int, ...] = ()
    effects: bool = False
    one_device: bool = False
    follows: bool = False
    watch: str = "auto"


@final
class BoundCall:
    """A generated function and the doors to its state.

    Attributes:
        call: the function; takes unbound arguments, returns a list of ``jax.Array``.
        call_one: the same for a program with one result: returns that.
        swap_bound: replaces all bound buffers at once; a running call keeps the old ones. Its
            second argument says whether they tie results (``CallShape.follows``).
        swap_resident: replaces the resident buffers; raises RunError during a call.
        resident: returns the resident buffers.
    """

    __slots__ = ("call", "call_one", "resident", "swap_bound", "swap_resident")

    def __init__(
        self, shape: CallShape, parts: CallParts, avals: Sequence[Any], sharding: Any
    ) -> None:
        """Specialise the call; ``avals`` are those of the unbound arguments."""
        made = _maker(shape)(
            jax_client.ArrayImpl,
            Tracer,
            jax_client.DEBUG_NANS,
            jax_client.DEBUG_INFS,
            jax_client.PROFILE_STATE,
            parts,
            tuple(avals),
            sharding,
            threading.Lock(),
            MISSING,
        )
        self.call, self.call_one, self.swap_bound, self.swap_resident, self.resident = made


def segments(layout: str, buffers: Mapping[int, Any]) -> tuple[tuple[Any, ...], ...]:
    """Group bound buffers into runs of neighbours, as the generated call splices them.

    Args:
        layout: see ``CallShape``.
        buffers: argument index → buffer, one for each ``"b"``.
    """
    groups: list[tuple[Any, ...]] = []
    for start, end in _runs(layout):
        groups.append(tuple(buffers.get(i) for i in range(start, end)))
    return tuple(groups)


def tree_call(
    fast_call: Callable[..., list[jax.Array]], in_tree: Any, out_tree: Any
) -> Callable[..., Any]:
    """Return ``call(*args)`` that flattens pytrees, runs, and rebuilds the results' structure.

    Args:
        fast_call: takes the leaves of ``args``.
        in_tree: the tree of the tuple of arguments.
        out_tree: the tree of the results.
    """
    leaves_of = in_tree.flatten_up_to  # half the price of flattening and comparing trees
    rebuild = rebuild_from(out_tree)

    def call(*args: Any) -> Any:
        try:
            leaves = leaves_of(args)
        except (ValueError, TypeError) as error:
            raise RunError(
                f"call: arguments must have the structure {in_tree}; "
                f"got {jax.tree.structure(args)}. "
                "Pass the same containers as when the function was traced."
            ) from error
        return rebuild(fast_call(*leaves))

    return call


def rebuild_from(tree: Any) -> Callable[[list[Any]], Any]:
    """Return ``leaves -> structure``; lists, tuples and single leaves need no pytree call."""
    leaf = jax.tree.structure(0)
    if tree == leaf:
        return operator.itemgetter(0)
    if all(child == leaf for child in tree.children()):
        if tree == jax.tree.structure([0] * tree.num_leaves):
            return list
        if tree == jax.tree.structure((0,) * tree.num_leaves):
            return tuple
    return tree.unflatten


@final
class _Missing:
    """The default of every parameter: an argument that was not passed."""


MISSING = _Missing()
"""Stands for an argument that was not passed."""


def _runs(layout: str) -> list[tuple[int, int]]:
    """Return (start, end) of each run of bound arguments."""
    runs: list[tuple[int, int]] = []
    for index, kind in enumerate(layout):
        if kind != "b":
            continue
        if runs and runs[-1][1] == index:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return runs


@functools.lru_cache(maxsize=256)
def _maker(shape: CallShape) -> Callable[..., Any]:
    """Compile the source for a shape once."""
    namespace: dict[str, Any] = {}
    exec(compile(_source(shape), "<rlx fast call>", "exec"), namespace)
    return namespace["make"]


def _source(shape: CallShape) -> str:
    """Return the source of ``make``: the call, the same for one result, and doors to its state."""
    count, resident = shape.layout.count("a"), len(shape.fed_from)
    kept = f"({''.join(f'r{i}, ' for i in range(resident))})"
    lines = [
        "def make(Array, Tracer, nans, infs, profile, parts, avals, sharding, lock, missing):",
        "    dispatch, free, admit = parts.dispatch, parts.handlers, parts.admit",
        "    tied, handlers = parts.tied_handlers, free",
        "    composed, traced, explain = parts.composed, parts.traced, parts.explain",
        "    acquire, release = lock.acquire, lock.release",
        "    bound = (); held = False",
        *(f"    v{i} = avals[{i}]; s{i} = sharding" for i in range(count)),
        *(f"    r{i} = None" for i in range(resident)),
        *_function(shape, "call", ""),
        *_function(shape, "call_one", "[0]"),
        "    call.__qualname__ = call_one.__qualname__ = 'compiled graph'",
        "    def swap_bound(new, hold=False):",
        "        nonlocal bound, held",
        "        bound = new; held = hold",
        "    def swap_resident(new):",
        *([f"        nonlocal {', '.join(f'r{i}' for i in range(resident))}"] if resident else []),
        "        if not acquire(False):",
        "            raise parts.busy_error()",
        f"        {kept + ' = new' if resident else 'pass'}",
        "        release()",
        "    def get_resident():",
        f"        return {kept}",
        "    return call, call_one, swap_bound, swap_resident, get_resident",
    ]
    return "\n".join(lines)


def _function(shape: CallShape, name: str, pick: str) -> list[str]:
    """Return the lines of one call function; ``pick`` is put behind the list of results."""
    unbound = [i for i, kind in enumerate(shape.layout) if kind == "a"]
    count, resident = len(unbound), len(shape.fed_from)
    names = [f"a{i}" for i in range(count)]
    given = f"({', '.join(names)}{',' if count == 1 else ''})"
    kept = f"({''.join(f'r{i}, ' for i in range(resident))})"
    changed = [f"v{i}" for i in range(count)] + [f"r{i}" for i in range(resident)]
    if not shape.one_device:
        changed += [f"s{i}" for i in range(count)]
    parameters = "".join(f"{n}=missing, " for n in names) + ("/, " if names else "")
    lines = [f"    def {name}({parameters}*extra, **named):"]
    if changed:
        lines.append(f"        nonlocal {', '.join(changed)}")
    lines += [
        "        if extra:",
        f"            raise parts.count_error({count} + len(extra))",
        "        if named:",
        "            raise parts.keyword_error(next(iter(named)))",
    ]
    for position, index in enumerate(unbound):
        a, v, s = f"a{position}", f"v{position}", f"s{position}"
        elsewhere, remember = f" or {a}.sharding is not {s}", f"; {s} = {a}.sharding"
        if shape.one_device:
            elsewhere = remember = ""
        lines += [
            f"        if type({a}) is not Array or {a}.aval is not {v}{elsewhere}:",
            f"            if {a} is missing:",
            f"                raise parts.count_error({position})",
            f"            if isinstance({a}, Tracer):",
            f"                return traced({given}, bound, {kept}){pick}",
            f"            {a} = admit({index}, {a}); {v} = {a}.aval{remember}",
        ]
    indent = "        "
    if shape.follows:
        committed = " or ".join(["held", *(f"a{i}._committed" for i in range(count))])
        lines.append(f"        handlers = tied if {committed} else free")
    if resident:
        lines += [
            "        if not acquire(False):",
            "            raise parts.busy_error()",
            "        try:",
        ]
        indent += "    "
    buffers = _buffers(shape)
    run = f"dispatch({buffers}).consume_with_handlers(handlers)"
    if shape.effects:
        run = f"dispatch({buffers}, handlers)"
    result, chosen = ("outs = ", "") if resident else ("return ", pick)
    watched = {"never": "", "always": "True"}.get(shape.watch, _watched())
    body = [f"b = bound; {result}{run}{chosen}"]
    if watched:
        body = [
            "b = bound",
            f"if {watched}:",
            f"    {result}composed({buffers}){chosen}",
            "else:",
            f"    {result}{run}{chosen}",
        ]
    lines.append(f"{indent}try:")
    lines += [f"{indent}    {line}" for line in body]
    if resident:
        lines += [f"{indent}    r{i} = outs[{out}]" for i, out in enumerate(shape.fed_from)]
        lines.append(f"{indent}    return outs{pick}")
    lines += [
        f"{indent}except (RuntimeError, ValueError, TypeError) as error:",
        f"{indent}    raise explain(error, {given}, b)",
    ]
    if resident:
        lines += ["        finally:", "            release()"]
    return lines


def _watched() -> str:
    """Return the condition under which JAX must see the call: NaN checks or a profile."""
    recording = ""
    if jax_client.PROFILE_FIELD is not None:
        recording = f" or profile.{jax_client.PROFILE_FIELD} is not None"
    return f"nans.value or infs.value{recording}"


def _buffers(shape: CallShape) -> str:
    """Return the list display of all buffers in the order of the arguments."""
    items: list[str] = []
    position = run = kept = 0
    for index, kind in enumerate(shape.layout):
        if kind == "a":
            items.append(f"a{position}")
            position += 1
        elif kind == "r":
            items.append(f"r{kept}")
            kept += 1
        elif index == 0 or shape.layout[index - 1] != "b":
            items.append(f"*b[{run}]")
            run += 1
    return f"[{', '.join(items)}]"
