"""Gradients of loops: of the gated delta rule, and of a scan whose step has a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from rlx.errors import DTypeError
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Op, define_op
from rlx.ops.backward.gradients import check_gradient, require_type
from rlx.ops.control_flow import Call, Scan
from rlx.ops.sequence.delta import GatedDeltaNet, outer, spread_gate, time_major
from rlx.ops.sequence.loops import Values, contract, leaf, scan, spread, zeros
from rlx.ops.shape import Concatenate
from rlx.types import Dim, TensorType


@define_op("gated_delta_net_backward")
class GatedDeltaNetBackward(Op):
    """Gradients of gated_delta_net by all its inputs.

    The states are computed again and kept; a second loop runs from the last token to the first.

    Inputs:
        q: float[B, S, H, N]
        k: float[B, S, H, N]
        v: float[B, S, H, N]
        g: float[B, S, H]          [B, S, H, N] with gate_per_channel.
        beta: float[B, S, H]
        dy: float[B, S, H, N]      gradient by the result.
        state: float[B, H, N, N]   with carry_state only.
        d_last: float[B, H, N, N]  gradient by the last state, with carry_state only.

    Attributes:
        state_size: of gated_delta_net.
        carry_state: of gated_delta_net.
        gate_per_channel: of gated_delta_net.

    Result:
        dq, dk, dv, dg, dbeta and, with carry_state, dstate, of the types of the inputs.

    Constraints:
        C1: gated_delta_net takes q, k, v, g, beta and state.
        C2: dy has the type of its result, and d_last that of the last state.
        C3: d_last is given with carry_state, and only there.

    Numerics: narrower floats than f32 compute in f32, states included; results rounded once.
    Source: RLX's backward of `Op::GatedDeltaNet`.
    """

    state_size: int
    carry_state: bool = False
    gate_per_channel: bool = False

    def infer(
        self,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        g: TensorType,
        beta: TensorType,
        dy: TensorType,
        state: TensorType | None = None,
        d_last: TensorType | None = None,
    ) -> tuple[TensorType, ...]:
        self.require(
            "C3",
            (d_last is not None) == self.carry_state,
            f"d_last is required with carry_state, and only there; got "
            f"{'none' if d_last is None else d_last} with carry_state={self.carry_state}. "
            "Pass it, or change the attribute.",
        )
        primals = (q, k, v, g, beta) if state is None else (q, k, v, g, beta, state)
        upstream = {"dy": dy} if d_last is None else {"dy": dy, "d_last": d_last}
        forward = GatedDeltaNet(
            state_size=self.state_size,
            carry_state=self.carry_state,
            gate_per_channel=self.gate_per_channel,
        )
        check_gradient(self, forward, primals, **upstream)
        return primals

    def decompose(
        self,
        q: Value,
        k: Value,
        v: Value,
        g: Value,
        beta: Value,
        dy: Value,
        state: Value | None = None,
        d_last: Value | None = None,
    ) -> tuple[Value, ...]:
        dtype = q.dtype.compute
        batch, _, heads, size = q.shape
        shape = (batch, heads, size, size)
        inputs = [time_major(x.convert(dtype)) for x in (q, k, v, g, beta, dy)]
        start = zeros(dtype, shape) if state is None else state.convert(dtype)

        def forwards(_: Values, carry: Values, now: Values) -> tuple[Values, Values]:
            key, value, gate, strength = now
            decayed = spread_gate(gate.exp(), shape) * carry[0]
            missing = value - contract(decayed, key, 2, 2, 2)
            correction = missing * spread(strength, value.shape, 0, 1)
            return [decayed + outer(key, correction, shape)], [decayed, missing]

        _, (decayed, missing) = scan(forwards, [start], inputs[1:5])

        def backwards(_: Values, carry: Values, now: Values) -> tuple[Values, Values]:
            query, key, gate, strength, upstream, before, lacking = now
            scaled = upstream * self.state_size**-0.5
            factor = spread(strength, lacking.shape, 0, 1)
            correction = lacking * factor
            after = before + outer(key, correction, shape)
            d_state = carry[0] + outer(query, scaled, shape)
            d_query = contract(after, scaled, 3, 2, 2)
            d_correction = contract(d_state, key, 2, 2, 2)
            d_lacking = d_correction * factor
            d_key = contract(d_state, correction, 3, 2, 2) - contract(before, d_lacking, 3, 2, 2)
            d_strength = (d_correction * lacking).sum(2)
            d_before = d_state - outer(key, d_lacking, shape)
            product = before * d_before
            d_gate = product.sum(3) if self.gate_per_channel else product.sum((2, 3))
            d_start = d_before * spread_gate(gate.exp(), shape)
            return [d_start], [d_query, d_key, d_lacking, d_gate, d_strength]

        last = zeros(dtype, shape) if d_last is None else d_last.convert(dtype)
        query, key, _, gate, strength, upstream = inputs
        xs = [query, key, gate, strength, upstream, decayed, missing]
        (d_start,), made = scan(backwards, [last], xs, reverse=True)
        results = [time_major(x).convert(q.dtype) for x in made]
        return tuple(results) if state is None else (*results, d_start.convert(state.dtype))


@define_op("scan_backward")
class ScanBackward(Op):
    """Gradient of a scan with one carried array by its first carry.

    d = upstream; for t from the last step to the first: d, … = body_vjp(carry_t, *xs[t], d), where
    carry_0 = init and carry_t = trajectory[t − 1]; upstream[t − 1] is added where it is a
    trajectory

    Inputs:
        init: float[...]             the first carry.
        trajectory: float[T, ...]    row t is the carry after step t.
        upstream: float[...]         gradient by the last carry, or float[T, ...] by the trajectory.
        xs: T_i[T, ...]              what the steps read.

    Attributes:
        body_vjp: (carry, slices of xs, gradient by the new carry) → (gradient by the carry,
            gradients by the slices).
        length: T, the number of steps.
        save_trajectory: whether upstream is a gradient by the trajectory.

    Result:
        Same type as init.

    Constraints:
        C1: init is floating; trajectory and xs have the leading dim length, and trajectory's rows
            the type of init.
        C2: upstream has the type of init, or of trajectory with save_trajectory.
        C3: body_vjp has no params and takes (init, slices of xs, init).
        C4: body_vjp returns the types of (init, slices of xs).

    Source: RLX `Op::ScanBackward`; it keeps every carry, where RLX can also compute some again.
    """

    body_vjp: Graph
    length: Dim
    save_trajectory: bool = False

    def infer(
        self, init: TensorType, trajectory: TensorType, upstream: TensorType, *xs: TensorType
    ) -> TensorType:
        _check_scan(self, self, init, trajectory, upstream, xs)
        return init

    def decompose(self, init: Value, trajectory: Value, upstream: Value, *xs: Value) -> Value:
        return _run_back(self, init, trajectory, upstream, xs)[0]


@define_op("scan_backward_xs")
class ScanBackwardXs(Op):
    """Gradient of a scan with one carried array by one of the arrays that it reads.

    The loop of `scan_backward`; row t of the result is what body_vjp gives for xs[index] at step t.

    Inputs:
        init: float[...]             the first carry.
        trajectory: float[T, ...]    row t is the carry after step t.
        upstream: float[...]         gradient by the last carry, or float[T, ...] by the trajectory.
        xs: T_i[T, ...]              what the steps read.

    Attributes:
        body_vjp: (carry, slices of xs, gradient by the new carry) → (gradient by the carry,
            gradients by the slices).
        length: T, the number of steps.
        xs_index: which of xs.
        save_trajectory: whether upstream is a gradient by the trajectory.

    Result:
        Type of that array.

    Constraints:
        C1: init is floating; trajectory and xs have the leading dim length, and trajectory's rows
            the type of init.
        C2: upstream has the type of init, or of trajectory with save_trajectory.
        C3: body_vjp has no params and takes (init, slices of xs, init).
        C4: body_vjp returns the types of (init, slices of xs).
        C5: 0 ≤ xs_index < number of xs.

    Source: RLX `Op::ScanBackwardXs`; it keeps every carry, where RLX can also compute some again.
    """

    body_vjp: Graph
    length: Dim
    xs_index: int = 0
    save_trajectory: bool = False

    def infer(
        self, init: TensorType, trajectory: TensorType, upstream: TensorType, *xs: TensorType
    ) -> TensorType:
        _check_scan(self, self, init, trajectory, upstream, xs)
        self.require(
            "C5",
            0 <= self.xs_index < len(xs),
            f"xs_index is required to be in [0, {len(xs)}), one of xs; got {self.xs_index}. "
            "Choose another.",
        )
        return xs[self.xs_index]

    def decompose(self, init: Value, trajectory: Value, upstream: Value, *xs: Value) -> Value:
        return _run_back(self, init, trajectory, upstream, xs)[1 + self.xs_index]


def _check_scan(
    op: Op,
    loop: ScanBackward | ScanBackwardXs,
    init: TensorType,
    trajectory: TensorType,
    upstream: TensorType,
    xs: Sequence[TensorType],
) -> None:
    length, body = loop.length, loop.body_vjp
    rows = TensorType(init.dtype, (length, *init.shape))
    op.require(
        "C1",
        init.dtype.is_float,
        f"init is required to be floating; got {init}. Convert it.",
        DTypeError,
    )
    require_type(op, "C1", "trajectory", trajectory, rows, "rows of the type of init")
    for number, x in enumerate(xs):
        op.require_same_dims(
            "C1",
            x.shape[:1],
            (length,),
            f"xs[{number}] is required to have the leading dim {length}, the scan's length; "
            f"got {x}. Pass arrays of one length.",
        )
    wanted = rows if loop.save_trajectory else init
    require_type(op, "C2", "upstream", upstream, wanted, "what the scan returns")
    slices = [x.with_shape(x.shape[1:]) for x in xs]
    found = [v.type for v in body.inputs]
    op.require(
        "C3",
        not body.params and found == [init, *slices, init],
        f"body_vjp is required to take {_listed([init, *slices, init])} and no params; it takes "
        f"{_listed(found)} and {len(body.params)} params. Change the graph or the inputs.",
    )
    given = [v.type for v in body.outputs]
    op.require(
        "C4",
        given == [init, *slices] and not body.effects,
        f"body_vjp is required to return {_listed([init, *slices])} without effects; it returns "
        f"{_listed(given)}. Change the graph.",
    )


def _listed(types: Sequence[TensorType]) -> str:
    return f"({', '.join(map(str, types))})"


def _run_back(
    loop: ScanBackward | ScanBackwardXs,
    init: Value,
    trajectory: Value,
    upstream: Value,
    xs: Sequence[Value],
) -> list[Value]:
    """The gradients by init and by each of xs."""
    rows = Concatenate(axis=0)(init.reshape(1, *init.shape), trajectory)
    before = rows.narrow(0, 0, loop.length)
    saved = loop.save_trajectory
    types = [init.type, *(x.type.with_shape(x.shape[1:]) for x in (before, *xs))]
    if saved:
        types.append(init.type)
    leaves = [leaf(f"x{i}", t) for i, t in enumerate(types)]
    gradient, carry, slices = leaves[0], leaves[1], leaves[2 : 2 + len(xs)]
    if saved:
        gradient = gradient + leaves[-1]
    made = Call(body=loop.body_vjp, name="body_vjp")(carry, *slices, gradient)
    results = cast("tuple[Value, ...]", made if isinstance(made, tuple) else (made,))
    body = Graph(leaves, (), results, name="step_backward")
    start = zeros(init.dtype, init.shape) if saved else upstream
    last = [upstream] if saved else []
    op = Scan(body=body, length=loop.length, reverse=True, num_carry=1)
    out = op(start, before, *xs, *last)
    return list(cast("tuple[Value, ...]", out if isinstance(out, tuple) else (out,)))
