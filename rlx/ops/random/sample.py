"""Draws from logits: what a language model does with its last row."""

from __future__ import annotations

import math

from rlx.dtypes import DType
from rlx.ir.graph import Value
from rlx.ir.op import Op, define_op
from rlx.ops.axes import require_at_most
from rlx.ops.elementwise import FLOATING, require_kind
from rlx.options.rng import SEED_LIMIT, RngBackend
from rlx.types import TensorType


@define_op("sample")
class Sample(Op):
    """An index drawn from each row of logits.

    p = softmax(logits / temperature) over what top_k and top_p keep;
    y = the first index whose cumulative p is ≥ r, r the next uniform of the stream

    Inputs:
        logits: float[B, V]

    Attributes:
        top_k: keep values that are ≥ the k-th largest, ties included; 0 keeps all.
        top_p: keep the shortest run of probabilities, largest first and ties by index, whose sum
            is ≥ top_p; 1 keeps all. It is taken after top_k.
        temperature: divides the logits, as 1e-6 where it is smaller; 0 takes the largest.
        seed: of the stream of uniforms, one for each row in order; 0 takes the policy's.

    Result:
        i32[B]; at temperature 0 the smallest index of the largest value.

    Constraints:
        C1: logits are [B, V] with V ≥ 1.
        C2: logits are real floats.
        C3: top_k ≥ 0, 0 < top_p ≤ 1, and temperature is finite and ≥ 0.
        C4: 0 ≤ seed < 2⁶⁴.

    Numerics: probabilities are f32, f64 for f64 logits, and are added in whole parts of 2⁻³⁰, so
    that devices choose alike; a row that holds NaN gives some index in range.
    Source: RLX `Op::Sample`; Holtzman et al. 2019 (top_p). NumPy's meaning is that of the default
    policy.
    """

    top_k: int = 0
    top_p: float = 1.0
    temperature: float = 1.0
    seed: int = 0

    def infer(self, logits: TensorType) -> TensorType:
        text = f"logits are required to be [B, V] with V ≥ 1; got {logits}. Reshape them."
        self.require("C1", logits.rank == 2, text)
        require_at_most(self, "C1", 1, logits.shape[1], text)
        require_kind(self, "C2", "logits", logits, FLOATING)
        warm = math.isfinite(self.temperature) and self.temperature >= 0
        self.require(
            "C3",
            self.top_k >= 0 and 0 < self.top_p <= 1 and warm,
            "top_k ≥ 0, 0 < top_p ≤ 1 and a finite temperature ≥ 0 are required; got "
            f"{self.top_k}, {self.top_p} and {self.temperature}. Correct the attribute.",
        )
        self.require(
            "C4",
            0 <= self.seed < SEED_LIMIT,
            f"seed is required to be in [0, 2**64); got {self.seed}. Take it modulo 2**64.",
        )
        return TensorType(DType.I32, logits.shape[:1])

    def decompose(self, logits: Value) -> Value:
        from rlx.ops.random.seeded import default_seed, seeded

        return seeded(self, (logits,), default_seed(), RngBackend.PHILOX)
