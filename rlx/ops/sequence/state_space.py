"""State-space models: a linear recurrence whose factors depend on the input."""

from __future__ import annotations

from rlx.ir.graph import Value
from rlx.ir.op import Op, define_op
from rlx.ops.patterns import bind_axes, require_one_float, require_positive
from rlx.ops.sequence.loops import Values, scan, spread, zeros
from rlx.types import TensorType


@define_op("selective_scan")
class SelectiveScan(Op):
    """The selective state-space recurrence of Mamba.

    h_t = exp(delta_t · a) ⊙ h_{t−1} + delta_t · b_t · x_t;  y_t = Σ_n c_t · h_t;  h_{−1} = 0

    Inputs:
        x: float[B, S, H]
        delta: float[B, S, H]   step sizes.
        a: float[H, N]          decay rates.
        b: float[B, S, N]       what enters the state.
        c: float[B, S, N]       what is read from it.

    Attributes:
        state_size: N.

    Result:
        Same type as x.

    Constraints:
        C1: the inputs have the axes above; N is state_size.
        C2: one floating dtype for all.
        C3: state_size ≥ 1.

    Numerics: narrower floats than f32 compute in f32, state included; result rounded once.
    Source: Gu & Dao 2023, arXiv:2312.00752; RLX `Op::SelectiveScan`.
    """

    state_size: int

    def infer(
        self, x: TensorType, delta: TensorType, a: TensorType, b: TensorType, c: TensorType
    ) -> TensorType:
        require_positive(self, "C3", state_size=self.state_size)
        bind_axes(
            self,
            "C1",
            {"N": self.state_size},
            x=(x, "B S H"),
            delta=(delta, "B S H"),
            a=(a, "H N"),
            b=(b, "B S N"),
            c=(c, "B S N"),
        )
        require_one_float(self, "C2", x=x, delta=delta, a=a, b=b, c=c)
        return x

    def decompose(self, x: Value, delta: Value, a: Value, b: Value, c: Value) -> Value:
        dtype = x.dtype.compute
        batch, _, width = x.shape
        shape = (batch, width, self.state_size)
        xs = [v.convert(dtype).transpose(1, 0, 2) for v in (x, delta, b, c)]

        def step(consts: Values, carry: Values, now: Values) -> tuple[Values, Values]:
            x_t, delta_t, b_t, c_t = now
            decay = (spread(delta_t, shape, 0, 1) * spread(consts[0], shape, 1, 2)).exp()
            entering = spread(delta_t * x_t, shape, 0, 1) * spread(b_t, shape, 0, 2)
            state = decay * carry[0] + entering
            return [state], [(state * spread(c_t, shape, 0, 2)).sum(2)]

        start = zeros(dtype, shape)
        _, (y,) = scan(step, [start], xs, consts=[a.convert(dtype)])
        return y.transpose(1, 0, 2).convert(x.dtype)


@define_op("mamba2")
class Mamba2(Op):
    """The state-space recurrence of Mamba-2: one decay for each head.

    S_t = exp(dt_t · a) · S_{t−1} + (dt_t · x_t) ⊗ b_t;  y_t = S_t · c_t;  S_{−1} = 0

    Inputs:
        x: float[B, S, H, P]
        dt: float[B, S, H]     step sizes.
        a: float[H]            decay rates.
        b: float[B, S, H, N]   what enters the state.
        c: float[B, S, H, N]   what is read from it.

    Attributes:
        head_dim: P.
        state_size: N.

    Result:
        Same type as x.

    Constraints:
        C1: the inputs have the axes above; P is head_dim, N is state_size.
        C2: one floating dtype for all.
        C3: head_dim and state_size ≥ 1.

    Numerics: narrower floats than f32 compute in f32, state included; result rounded once.
    Source: Dao & Gu 2024, arXiv:2405.21060; RLX `Op::Mamba2`.
    """

    head_dim: int
    state_size: int

    def infer(
        self, x: TensorType, dt: TensorType, a: TensorType, b: TensorType, c: TensorType
    ) -> TensorType:
        require_positive(self, "C3", head_dim=self.head_dim, state_size=self.state_size)
        bind_axes(
            self,
            "C1",
            {"P": self.head_dim, "N": self.state_size},
            x=(x, "B S H P"),
            dt=(dt, "B S H"),
            a=(a, "H"),
            b=(b, "B S H N"),
            c=(c, "B S H N"),
        )
        require_one_float(self, "C2", x=x, dt=dt, a=a, b=b, c=c)
        return x

    def decompose(self, x: Value, dt: Value, a: Value, b: Value, c: Value) -> Value:
        dtype = x.dtype.compute
        batch, _, heads, _ = x.shape
        shape = (batch, heads, self.head_dim, self.state_size)
        wide = [v.convert(dtype) for v in (x, b, c)]
        steps = [dt.convert(dtype).transpose(1, 0, 2), *(v.transpose(1, 0, 2, 3) for v in wide)]

        def step(consts: Values, carry: Values, now: Values) -> tuple[Values, Values]:
            dt_t, x_t, b_t, c_t = now
            decay = (dt_t * spread(consts[0], dt_t.shape, 1)).exp()
            scaled = spread(dt_t, x_t.shape, 0, 1) * x_t
            entering = spread(scaled, shape, 0, 1, 2) * spread(b_t, shape, 0, 1, 3)
            state = spread(decay, shape, 0, 1) * carry[0] + entering
            return [state], [(state * spread(c_t, shape, 0, 1, 3)).sum(3)]

        _, (y,) = scan(step, [zeros(dtype, shape)], steps, consts=[a.convert(dtype)])
        return y.transpose(1, 0, 2, 3).convert(x.dtype)
