"""Reduction by a computation of one's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.errors import DTypeError
from rlx.ir.attributes import Array
from rlx.ir.graph import Graph
from rlx.ir.interpret import run
from rlx.ir.op import Op, define_op
from rlx.ops.reduction import numbers
from rlx.types import TensorType


def check_pairs(op: Op, operands: Sequence[TensorType], body: Graph) -> int:
    """Check C2 to C4 of a reduction with a body; return the number of reduced operands.

    C2: the inputs are n ≥ 1 arrays of one shape, then n scalars of their dtypes.
    C3: body takes 2n scalars of these dtypes (accumulators, then elements), no params or effects.
    C4: body returns n scalars of these dtypes.
    """
    count = len(operands) // 2
    op.require(
        "C2",
        count > 0 and len(operands) % 2 == 0,
        lambda: (
            f"operands are required to be n arrays, then n initial scalars; "
            f"got {len(operands)} inputs. Pass one scalar for each array."
        ),
    )
    arrays, scalars = operands[:count], operands[count:]
    for array, scalar in zip(arrays, scalars, strict=True):
        op.require_same_dims(
            "C2",
            array.shape,
            arrays[0].shape,
            lambda: (
                f"arrays are required to have one shape; got {', '.join(map(str, arrays))}. "
                "Broadcast them."
            ),
        )
        op.require(
            "C2",
            not scalar.shape and scalar.dtype is array.dtype,
            lambda array=array, scalar=scalar: (
                f"an initial value is required to be {array.dtype}[]; "
                f"got {scalar}. Reshape or convert it."
            ),
            DTypeError,
        )
    wanted = [TensorType(a.dtype) for a in arrays]
    leaves = [v.type for v in body.inputs]
    op.require(
        "C3",
        leaves == wanted * 2 and not body.params and not body.effects,
        lambda: (
            f"body is required to take ({_list(wanted * 2)}), the accumulators and then the "
            f"elements, without params or effects; it takes ({_list(leaves)}). Rebuild the body."
        ),
    )
    results = [v.type for v in body.outputs]
    op.require(
        "C4",
        results == wanted,
        lambda: (
            f"body is required to return ({_list(wanted)}); it returns ({_list(results)}). "
            "Rebuild the body."
        ),
    )
    return count


def _list(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types))


@define_op("reduce")
class Reduce(Op):
    """Reduce arrays jointly over axes with any associative computation.

    acc = initial; acc = body(acc, x_i) for every i

    Inputs:
        operands: n arrays T_k[...] of one shape, then n initial values T_k[].

    Attributes:
        axes: the axes to remove, increasing.
        body: graph of 2n scalars (accumulators, then elements) with n results.

    Result:
        n arrays without the axes. The order in which elements are combined is not defined.

    Constraints:
        C1: axes are in range and increasing.
        C2: the inputs are n ≥ 1 arrays of one shape, then n scalars of their dtypes.
        C3: body takes 2n scalars of these dtypes.
        C4: body returns n scalars of these dtypes.

    Source: StableHLO `reduce`, `jax.lax.reduce`.
    """

    axes: tuple[int, ...]
    body: Graph

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        count = check_pairs(self, operands, self.body)
        numbers.check_axes(self, self.axes, operands[0])
        kept = [d for i, d in enumerate(operands[0].shape) if i not in self.axes]
        return tuple(x.with_shape(kept) for x in operands[:count])

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        count = len(operands) // 2
        arrays, initial = operands[:count], operands[count:]
        kept = [i for i in range(arrays[0].ndim) if i not in self.axes]
        shape = tuple(arrays[0].shape[i] for i in kept)
        size = int(np.prod(shape))
        rows = (
            [np.transpose(x, [*kept, *self.axes]).reshape(size, -1) for x in arrays] if size else []
        )
        if size and _is_elementwise(self.body):
            return tuple(x.reshape(shape) for x in _in_pairs(self.body, rows, initial))
        results = tuple(np.empty(shape, x.dtype) for x in arrays)
        for position, place in enumerate(np.ndindex(*shape)):
            state = list(initial)
            for elements in zip(*(row[position] for row in rows), strict=True):
                state = run(self.body, [*state, *(np.asarray(e) for e in elements)])
            for result, value in zip(results, state, strict=True):
                result[place] = value
        return results


def _is_elementwise(body: Graph) -> bool:
    """Whether a body says of every place what it says of a scalar."""
    from rlx.ops.fused.regions import is_elementwise
    from rlx.ops.io import Input

    return all(isinstance(n.op, Input) or is_elementwise(n.op) for n in body.nodes())


def _in_pairs(body: Graph, rows: Sequence[Array], initial: Sequence[Array]) -> list[Array]:
    """Combine neighbours along the rows until one is left, all rows at a time.

    Args:
        body: of elementwise ops.
        rows: one array [rows, elements] for each operand.
        initial: its scalars.
    """
    state = list(rows)
    while state[0].shape[1] > 1:
        whole = state[0].shape[1] // 2 * 2
        met = _at_every_place(body, [x[:, start:whole:2] for start in (0, 1) for x in state])
        state = [np.concatenate([m, x[:, whole:]], axis=1) for m, x in zip(met, state, strict=True)]
    first = [np.full(len(x), i, x.dtype) for x, i in zip(state, initial, strict=True)]
    if not state[0].shape[1]:
        return first
    return _at_every_place(body, [*first, *(x[:, 0] for x in state)])


def _at_every_place(body: Graph, arrays: Sequence[Array]) -> list[Array]:
    """What a graph of elementwise ops on scalars gives at each place of arrays."""
    known = dict(zip(body.inputs, arrays, strict=True))
    for node in body.nodes():
        if node.results[0] not in known:
            known[node.results[0]] = node.op.evaluate(*(known[v] for v in node.inputs))
    return [known[v] for v in body.outputs]
