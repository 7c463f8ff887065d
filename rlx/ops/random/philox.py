"""RLX's Philox stream inside a graph, in integer arithmetic that every device does alike."""

from __future__ import annotations

import math

import numpy as np

from rlx import dims, rng
from rlx.dtypes import DType
from rlx.ir.attributes import Array
from rlx.ir.graph import Value
from rlx.ir.op import Op, define_op
from rlx.ir.operators import broadcast_to, constant
from rlx.ops.axes import require_at_most
from rlx.ops.random_bits import PHILOX_ROUNDS, PHILOX_WEYL
from rlx.types import Dim, Shape, TensorType


@define_op("philox_bits")
class PhiloxBits(Op):
    """The first words of RLX's Philox stream of a seed.

    y = the words of blocks 0, 1, 2, … of four words each, in C order

    Inputs:
        seed: u32[2]   low and high word of the seed.

    Attributes:
        shape: of the words; at most 2³⁴ of them.

    Result:
        u32[shape]

    Constraints:
        C1: seed is u32[2].
        C2: dims of shape are ≥ 0.

    Source: RLX `Philox4x32`; Salmon et al. 2011, with RLX's first multiplier 0xD2561A75.

    Example:
        >>> import numpy as np
        >>> PhiloxBits(shape=(2,)).evaluate(np.array([42, 0], np.uint32)) == (
        ...     rng.Philox4x32(42).next_u32(2)
        ... )
        array([ True,  True])
    """

    shape: Shape

    def infer(self, seed: TensorType) -> TensorType:
        good = seed == TensorType(DType.U32, (2,))
        text = f"seed is required to be u32[2]; got {seed}. Pass the low and the high word."
        self.require("C1", good, text)
        check_shape(self, "C2", self.shape)
        return TensorType(DType.U32, self.shape)

    def evaluate(self, seed: Array) -> Array:
        shape = tuple(dims.evaluate(d, {}) for d in self.shape)
        whole = int(seed[0]) | int(seed[1]) << 32
        return rng.Philox4x32(whole).next_u32(math.prod(shape)).reshape(shape)

    def decompose(self, seed: Value) -> Value:
        from rlx.ops.shape import Concatenate

        count = dims.product(self.shape)
        if count == 0:
            return broadcast_to(constant(0, DType.U32), self.shape)
        blocks = dims.floordiv_(count + 3, 4)
        column = [word.reshape(blocks, 1) for word in philox_blocks(seed, blocks)]
        words = Concatenate(axis=1)(*column).reshape(blocks * 4)
        return words.narrow(0, 0, count).reshape(self.shape)


def philox_blocks(seed: Value, count: Dim) -> tuple[Value, Value, Value, Value]:
    """The four words of blocks 0 … count − 1 of a seed, each as u32[count]."""
    from rlx.ops.shape import Iota

    zero = broadcast_to(constant(0, DType.U32), (count,))
    c0: Value = Iota(dtype=DType.U32, shape=(count,))()
    c1, c2, c3 = zero, zero, zero
    k0, k1 = words_of(seed)
    steps = [constant(np.uint32(w)) for w in PHILOX_WEYL]
    for _ in range(PHILOX_ROUNDS):
        (high0, low0), (high2, low2) = (
            _product(c, m) for c, m in zip((c0, c2), rng.MULTIPLIERS, strict=True)
        )
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + steps[0], k1 + steps[1]
    return c0, c1, c2, c3


def _product(word: Value, multiplier: np.uint64) -> tuple[Value, Value]:
    """The high and the low word of a product: one multiplication of 64 bits for both."""
    from rlx.ops.bitwise import ShiftRightLogical

    factor, half = (broadcast_to(constant(np.uint64(n)), word.shape) for n in (int(multiplier), 32))
    product = word.convert(DType.U64) * factor
    return ShiftRightLogical()(product, half).convert(DType.U32), product.convert(DType.U32)


def words_of(seed: Value) -> tuple[Value, Value]:
    """The low and the high word of u32[2], as scalars."""
    return seed.narrow(0, 0, 1).reshape(()), seed.narrow(0, 1, 1).reshape(())


def check_shape(op: Op, label: str, shape: tuple[Dim, ...]) -> None:
    """Require dims that are not negative."""
    for size in shape:
        text = f"dims of shape are required to be ≥ 0; got {list(shape)}. Correct the shape."
        require_at_most(op, label, 0, size, text)
