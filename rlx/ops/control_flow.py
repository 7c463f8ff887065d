"""Calls, choices and loops: ops whose attributes are graphs.

Inner graphs have inputs only, no params. Where a body has effects, its tokens come last: among
the operands, among the body's inputs, and among the results (after the body's outputs).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import numpy as np

from rlx import dims
from rlx.dtypes import DType
from rlx.errors import DTypeError, LoweringError
from rlx.ir.op import Op, define_op
from rlx.types import Dim, TensorType

if TYPE_CHECKING:
    from rlx.ir.attributes import Array, Opaque
    from rlx.ir.graph import Graph, Value


GPUS = ("cuda", "rocm")


@final
class CallKind(enum.Enum):
    """Why a body is called rather than written in place."""

    JIT = "jit"
    REMAT = "remat"
    CUSTOM_JVP = "custom_jvp"
    CUSTOM_VJP = "custom_vjp"
    CUSTOM_VMAP = "custom_vmap"


@define_op("call")
class Call(Op):
    """A graph applied to operands; emitted as one function however often it is called.

    Inputs:
        operands: one for each input of the body, in order.

    Attributes:
        body: what is computed.
        name: the function's name, for people.
        kind: where the call comes from: a jit, a rematerialised block, or a function with its
            own derivative or its own rule for batches.
        live: the frontend's own call, which knows that rule or a policy; it is lost when the
            graph is saved, and does not count in equality.

    Result:
        The body's outputs, then its tokens.

    Constraints:
        C1: the body has no params, and an input for each operand.
        C2: each operand has the type of the body's input.

    Source: StableHLO `func.call`, `jax.jit`.
    """

    body: Graph
    name: str = ""
    kind: CallKind = CallKind.JIT
    live: Opaque | None = None

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        _check_inputs(self, "C1", "C2", "body", self.body, _numbered("operands", operands))
        return _result_types(self.body)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return _run(self.body, operands)


@define_op("cond")
class Cond(Op):
    """One of several graphs, chosen by a number.

    y = branches[clamp(index, 0, n − 1)](*operands); false chooses branch 0, true branch 1

    Inputs:
        index: bool[] or i32[]
        operands: what every branch takes.

    Attributes:
        branches: the graphs, in the order of the index.

    Result:
        The outputs of a branch, then its tokens.

    Constraints:
        C1: index is a bool or an i32 of rank 0.
        C2: there is at least one branch; two when index is a bool.
        C3: no branch has params, and each has an input for each operand.
        C4: each operand has the type of every branch's input.
        C5: all branches return the same types.

    Source: StableHLO `case`, `jax.lax.switch`, `jax.lax.cond`; RLX `Op::If`.
    """

    branches: tuple[Graph, ...]

    def infer(self, index: TensorType, *operands: TensorType) -> tuple[TensorType, ...]:
        self.require(
            "C1",
            not index.shape and index.dtype in (DType.BOOL, DType.I32),
            f"index is required to be bool[] or i32[]; got {index}. Reshape or convert it.",
        )
        count = len(self.branches)
        self.require(
            "C2",
            count == 2 if index.dtype is DType.BOOL else count > 0,
            f"branches are required to be two for a bool index and at least one for an i32; "
            f"got {count} with index {index}. Use an i32 index for another number.",
        )
        for number, branch in enumerate(self.branches):
            where = f"branches[{number}]"
            _check_inputs(self, "C3", "C4", where, branch, _numbered("operands", operands))
        first = _result_types(self.branches[0])
        for number, branch in enumerate(self.branches[1:], 1):
            _check_results(
                self,
                "C5",
                branch,
                [
                    (f"result {i} of branches[{number}] (as of branches[0])", t)
                    for i, t in enumerate(first)
                ],
            )
        return first

    def evaluate(self, index: Array, *operands: Array) -> tuple[Array, ...]:
        chosen = min(max(int(index), 0), len(self.branches) - 1)
        return _run(self.branches[chosen], operands)


@define_op("while")
class While(Op):
    """A loop that runs its body as long as a condition holds.

    while cond(*cond_consts, *carry): carry = body(*body_consts, *carry)

    Inputs:
        operands: the condition's constants, the body's constants, the first carry, tokens.

    Attributes:
        cond: (condition's constants, carry) → bool[].
        body: (body's constants, carry, tokens) → carry, tokens.
        cond_consts: number of operands that only the condition reads.
        body_consts: number of operands that only the body reads.

    Result:
        The last carry, then tokens.

    Constraints:
        C1: cond_consts and body_consts are ≥ 0, and there are that many operands.
        C2: cond has no params and no effects, and takes (its constants, carry).
        C3: cond returns one bool[].
        C4: body has no params, and takes (its constants, carry, tokens).
        C5: body returns values of the carry's types.

    Source: StableHLO `while`, `jax.lax.while_loop`; RLX `Op::While`.
    """

    cond: Graph
    body: Graph
    cond_consts: int = 0
    body_consts: int = 0

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        consts = self.cond_consts + self.body_consts
        self.require(
            "C1",
            self.cond_consts >= 0 and self.body_consts >= 0 and consts <= len(operands),
            f"cond_consts and body_consts are required to be ≥ 0 and at most {len(operands)} "
            f"together, the number of operands; got {self.cond_consts} and {self.body_consts}. "
            "Pass the constants first.",
        )
        carry = _numbered("carry", operands[consts:])
        values = [item for item in carry if item[1].dtype is not DType.TOKEN]
        self.require(
            "C2",
            not self.cond.effects,
            "cond is required to have no effects; it returns a token. Move the effect to body.",
        )
        for_cond = _numbered("cond_consts", operands[: self.cond_consts])
        _check_inputs(self, "C2", "C2", "cond", self.cond, [*for_cond, *values])
        found = _result_types(self.cond)
        self.require(
            "C3",
            found == (TensorType(DType.BOOL),),
            f"cond is required to return (bool[]); it returns {_listed(found)}. "
            "Compare or reduce to one truth value.",
        )
        for_body = _numbered("body_consts", operands[self.cond_consts : consts])
        _check_inputs(self, "C4", "C4", "body", self.body, [*for_body, *carry])
        _check_results(self, "C5", self.body, carry)
        return operands[consts:]

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        consts = self.cond_consts + self.body_consts
        for_cond, for_body = operands[: self.cond_consts], operands[self.cond_consts : consts]
        carry = operands[consts:]
        values = len(carry) - len(self.body.effects)
        while bool(_run(self.cond, (*for_cond, *carry[:values]))[0]):
            carry = _run(self.body, (*for_body, *carry))
        return carry


@define_op("scan")
class Scan(Op):
    """A loop over the leading axis of arrays, which carries values and stacks results.

    for t in steps: *carry, *y[t] = body(*consts, *carry, *(x[t] for x in xs))

    Inputs:
        operands: constants, the first carry, the scanned arrays xs, tokens.

    Attributes:
        body: (constants, carry, slices of xs, tokens) → carry, slices of ys, tokens.
        length: number of steps; the leading dim of xs and ys.
        reverse: run from the last step to the first.
        num_consts: number of constants.
        num_carry: number of carried values.
        unroll: steps that one turn of the compiled loop does; no meaning.

    Result:
        The last carry, then each stacked y with the leading dim `length`, then tokens.

    Constraints:
        C1: num_consts and num_carry are ≥ 0, there are that many operands; unroll ≥ 1, length ≥ 0.
        C2: every x has the leading dim `length`.
        C3: body has no params, and takes (constants, carry, slices of xs, tokens).
        C4: body returns values of the carry's types first, then any ys.

    Source: `jax.lax.scan`; RLX `Op::Scan`.
    """

    body: Graph
    length: Dim
    reverse: bool = False
    num_consts: int = 0
    num_carry: int = 0
    unroll: int = 1

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        first = self.num_consts + self.num_carry
        last = len(operands) - len(self.body.effects)
        counts = self.num_consts >= 0 and self.num_carry >= 0 and first <= last
        self.require(
            "C1",
            counts and self.unroll >= 1 and not (isinstance(self.length, int) and self.length < 0),
            f"num_consts and num_carry are required to be ≥ 0 and at most {last} together, "
            "the number of operands before tokens, with unroll ≥ 1 and length ≥ 0; got "
            f"num_consts={self.num_consts}, num_carry={self.num_carry}, unroll={self.unroll}, "
            f"length={self.length}. Pass constants first, then the carry.",
        )
        slices: list[tuple[str, TensorType]] = []
        for name, x in _numbered("xs", operands[first:last]):
            self.require_same_dims(
                "C2",
                x.shape[:1],
                (self.length,),
                f"{name} is required to have the leading dim {self.length}, the scan's length; "
                f"got {x}. Pass arrays of one length.",
            )
            slices.append((f"slice of {name}", x.with_shape(x.shape[1:])))
        consts = _numbered("consts", operands[: self.num_consts])
        carry = _numbered("carry", operands[self.num_consts : first])
        tokens = _numbered("tokens", operands[last:])
        _check_inputs(self, "C3", "C3", "body", self.body, [*consts, *carry, *slices, *tokens])
        ys = [v.type for v in self.body.outputs[self.num_carry :]]
        wanted = [*carry, *_numbered("ys", ys), *tokens]
        _check_results(self, "C4", self.body, wanted)
        return (
            *(t for _, t in carry),
            *(TensorType(y.dtype, (self.length, *y.shape)) for y in ys),
            *(t for _, t in tokens),
        )

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        length = dims.evaluate(self.length, {})
        first = self.num_consts + self.num_carry
        last = len(operands) - len(self.body.effects)
        consts, carry = operands[: self.num_consts], operands[self.num_consts : first]
        xs, tokens = operands[first:last], operands[last:]
        outputs = self.body.outputs[self.num_carry :]
        ys = [
            np.zeros((length, *(dims.evaluate(d, {}) for d in y.type.shape)), y.type.dtype.numpy)
            for y in outputs
        ]
        for step in reversed(range(length)) if self.reverse else range(length):
            results = _run(self.body, (*consts, *carry, *(x[step, ...] for x in xs), *tokens))
            carry = results[: self.num_carry]
            for y, slice_ in zip(ys, results[self.num_carry :], strict=False):
                y[step] = slice_
        return (*carry, *ys, *tokens)


@define_op("platform_index")
class PlatformIndex(Op):
    """Which of several groups of platforms the graph is compiled for.

    Attributes:
        platforms: groups of ``cpu``, ``cuda``, ``rocm``, ``tpu``, ``gpu`` (cuda and rocm); an
            empty group takes every platform.

    Result:
        i32[]   the first group that holds the platform; NumPy counts as ``cpu``.

    Constraints:
        C1: there is at least one group; an empty group stands last.

    Source: `jax.lax.platform_dependent`.
    """

    platforms: tuple[tuple[str, ...], ...]

    def infer(self) -> TensorType:
        self.require(
            "C1",
            bool(self.platforms) and all(self.platforms[:-1]),
            f"platforms are required to be groups, of which only the last may be empty; "
            f"got {self.platforms}. Move the empty group to the end.",
        )
        return TensorType(DType.I32)

    def evaluate(self) -> Array:
        return np.asarray(self.index_of("cpu"), np.int32)

    def index_of(self, platform: str) -> int:
        """The first group that takes a platform.

        Raises:
            LoweringError: none does.
        """
        for number, group in enumerate(self.platforms):
            if not group or platform in group or (platform in GPUS and "gpu" in group):
                return number
        listing = ", ".join("/".join(group) for group in self.platforms)
        raise LoweringError(
            f"platform_index: a branch is required for {platform!r}; there are {listing}. "
            "Add one for it, or a default."
        )


def _run(graph: Graph, arrays: Sequence[Array]) -> tuple[Array, ...]:
    from rlx.ir.interpret import run

    tokens = [np.zeros((), np.bool_)] * len(graph.effects)
    return (*run(graph, arrays), *tokens)


def _result_types(graph: Graph) -> tuple[TensorType, ...]:
    return tuple(v.type for v in (*graph.outputs, *graph.effects))


def _numbered(name: str, types: Sequence[TensorType]) -> list[tuple[str, TensorType]]:
    return [(f"{name}[{i}]", t) for i, t in enumerate(types)]


def _listed(types: Sequence[TensorType]) -> str:
    return f"({', '.join(map(str, types))})"


def _check_inputs(
    op: Op,
    count_label: str,
    type_label: str,
    where: str,
    graph: Graph,
    wanted: Sequence[tuple[str, TensorType]],
) -> None:
    """Require that a graph takes the given types and nothing else."""
    op.require(
        count_label,
        not graph.params,
        lambda: (
            f"{where} is required to have no params; it has "
            f"{', '.join(repr(p.name) for p in graph.params)}. Pass them as operands."
        ),
    )
    op.require(
        count_label,
        len(graph.inputs) == len(wanted),
        lambda: (
            f"{where} is required to take {_listed([t for _, t in wanted])}; "
            f"it takes {_listed([v.type for v in graph.inputs])}. "
            "Pass one operand for each input."
        ),
    )
    for leaf, (name, type_) in zip(graph.inputs, wanted, strict=True):
        if leaf.type == type_:
            continue
        text = (
            f"input {leaf.name!r} of {where} is required to have the type of {name}: {type_}; "
            f"it is {leaf.type}. Convert or reshape the operand."
        )
        _same_type(op, type_label, leaf.type, type_, text)


def _check_results(
    op: Op, label: str, graph: Graph, wanted: Sequence[tuple[str, TensorType]]
) -> None:
    """Require that a graph returns the given types; say what changed and on which line."""
    results = (*graph.outputs, *graph.effects)
    op.require(
        label,
        len(results) == len(wanted),
        lambda: (
            f"graph {graph.name!r} is required to return {_listed([t for _, t in wanted])}; "
            f"it returns {_listed([v.type for v in results])}. Return one value for each."
        ),
    )
    for value, (name, type_) in zip(results, wanted, strict=True):
        if value.type != type_:
            _same_type(op, label, value.type, type_, _drift(name, type_, value))


def _same_type(op: Op, label: str, found: TensorType, wanted: TensorType, text: str) -> None:
    op.require(label, found.dtype is wanted.dtype, text, DTypeError)
    op.require_same_dims(label, found.shape, wanted.shape, text)


def _drift(name: str, before: TensorType, after: Value) -> str:
    """Say how a carried type changes, where, and what would keep it."""
    found = after.type
    where = after.node.location
    because = f" because of {where}" if where else ""
    if found.dtype is not before.dtype:
        advice = f"convert the result to {before.dtype}, or start with {found}"
    elif _one_element(found) and _one_element(before):
        index = "[" + ", ".join("0" for _ in found.shape) + "]" if not before.shape else ""
        shown = f"x{index}" if index else f"x.reshape({list(before.shape)})"
        start = f"zeros({', '.join(map(str, found.shape)) or '()'})"
        advice = f"return {shown} instead of x, or start with {start}"
    else:
        advice = f"reduce or slice the result to {before}, or start with {found}"
    return (
        f"{name} is required to keep its type from step to step; "
        f"{name} {before} -> {found}{because}. Do one of these: {advice}."
    )


def _one_element(type_: TensorType) -> bool:
    return all(isinstance(d, int) and d == 1 for d in type_.shape)
