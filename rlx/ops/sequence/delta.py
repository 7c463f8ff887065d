"""The gated delta rule: a matrix-valued state that is corrected at each token."""

from __future__ import annotations

from rlx.ir.graph import Value
from rlx.ir.op import Op, define_op
from rlx.ops.patterns import bind_axes, require_one_float, require_positive
from rlx.ops.sequence.loops import Values, contract, scan, spread, zeros
from rlx.types import Shape, TensorType


@define_op("gated_delta_net")
class GatedDeltaNet(Op):
    """Linear attention by the gated delta rule.

    S = exp(g_t) · S;  d = (v_t − Sᵀ·k_t) · beta_t;  S = S + k_t ⊗ d;  y_t = Sᵀ·q_t / √N

    Inputs:
        q: float[B, S, H, N]
        k: float[B, S, H, N]
        v: float[B, S, H, N]
        g: float[B, S, H]        logarithm of the decay; [B, S, H, N] with gate_per_channel,
            which decays row i of the state by exp(g_i).
        beta: float[B, S, H]     strength of the correction.
        state: float[B, H, N, N] the first state, with carry_state only; 0 without.

    Attributes:
        state_size: N.
        carry_state: whether a state is taken and the last one returned.
        gate_per_channel: whether there is one gate for each row of the state.

    Result:
        Same type as q; with carry_state also the last state, of the type of `state`.

    Constraints:
        C1: the inputs have the axes above; N is state_size.
        C2: one floating dtype for all.
        C3: state_size ≥ 1.
        C4: state is given with carry_state, and only there.

    Numerics: narrower floats than f32 compute in f32, state included; results rounded once.
    Source: Yang et al. 2024, arXiv:2412.06464; RLX `Op::GatedDeltaNet`.
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
        state: TensorType | None = None,
    ) -> TensorType | tuple[TensorType, TensorType]:
        require_positive(self, "C3", state_size=self.state_size)
        self.require(
            "C4",
            (state is not None) == self.carry_state,
            f"state is required with carry_state, and only there; got "
            f"{'none' if state is None else state} with carry_state={self.carry_state}. "
            "Pass it, or change the attribute.",
        )
        check_delta_inputs(self, q, k, v, g, beta, self.state_size, self.gate_per_channel, state)
        return q if state is None else (q, state)

    def decompose(
        self, q: Value, k: Value, v: Value, g: Value, beta: Value, state: Value | None = None
    ) -> Value | tuple[Value, Value]:
        dtype = q.dtype.compute
        batch, _, heads, _ = q.shape
        shape = (batch, heads, self.state_size, self.state_size)
        xs = [time_major(x.convert(dtype)) for x in (q, k, v, g, beta)]
        start = zeros(dtype, shape) if state is None else state.convert(dtype)

        def step(_: Values, carry: Values, now: Values) -> tuple[Values, Values]:
            query, key, value, gate, strength = now
            decayed = spread_gate(gate.exp(), shape) * carry[0]
            found = contract(decayed, key, 2, 2, 2)
            correction = (value - found) * spread(strength, value.shape, 0, 1)
            after = decayed + outer(key, correction, shape)
            y = contract(after, query, 2, 2, 2) * self.state_size**-0.5
            return [after], [y]

        (last,), (y,) = scan(step, [start], xs)
        y = y.transpose(1, 0, 2, 3).convert(q.dtype)
        return y if state is None else (y, last.convert(state.dtype))


def check_delta_inputs(
    op: Op,
    q: TensorType,
    k: TensorType,
    v: TensorType,
    g: TensorType,
    beta: TensorType,
    size: int,
    per_channel: bool,
    state: TensorType | None,
    **others: tuple[TensorType, str],
) -> None:
    """Check C1 (axes) and C2 (dtypes) of the delta rule and its gradient."""
    token = "B S H N"
    inputs: dict[str, tuple[TensorType, str]] = {
        "q": (q, token),
        "k": (k, token),
        "v": (v, token),
        "g": (g, token if per_channel else "B S H"),
        "beta": (beta, "B S H"),
        **others,
    }
    if state is not None:
        inputs["state"] = (state, "B H N N")
    bind_axes(op, "C1", {"N": size}, **inputs)
    require_one_float(op, "C2", **{name: type_ for name, (type_, _) in inputs.items()})


def time_major(x: Value) -> Value:
    """The second axis, of tokens, first."""
    return x.transpose(1, 0, *range(2, x.rank))


def spread_gate(gate: Value, shape: Shape) -> Value:
    """A gate [B, H] or [B, H, N] along the state [B, H, N, N]."""
    return spread(gate, shape, *range(gate.rank))


def outer(key: Value, correction: Value, shape: Shape) -> Value:
    """Products of all pairs: [B, H, N] ⊗ [B, H, N]."""
    return spread(key, shape, 0, 1, 2) * spread(correction, shape, 0, 1, 3)
