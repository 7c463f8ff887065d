"""Counter-based random bits, as JAX's key implementations use them."""

from __future__ import annotations

import enum
from typing import final

import numpy as np

from rlx import dims
from rlx.dtypes import DType
from rlx.errors import DTypeError
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.random_bits import generate, threefry2x32
from rlx.types import Shape, TensorType


@final
class RngAlgorithm(enum.Enum):
    """How bits are generated from a state."""

    DEFAULT = "default"
    THREE_FRY = "three_fry"
    PHILOX = "philox"


@define_op("threefry2x32")
class Threefry2x32(Op):
    """The Threefry-2x32 block cipher with 20 rounds, elementwise.

    (y1, y2) = threefry((k1, k2), (x1, x2))

    Inputs:
        k1: u32[...]   first key word.
        k2: u32[...]   second key word.
        x1: u32[...]   first counter word.
        x2: u32[...]   second counter word.

    Result:
        Two values of the type of x1.

    Constraints:
        C1: all inputs have one shape.
        C2: all inputs are u32.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; `jax.random`.
    """

    def infer(
        self, k1: TensorType, k2: TensorType, x1: TensorType, x2: TensorType
    ) -> tuple[TensorType, TensorType]:
        listing = f"k1: {k1}, k2: {k2}, x1: {x1}, x2: {x2}"
        for type_ in (k1, k2, x1, x2):
            text = f"all inputs are required to be u32; got {listing}. Convert them."
            self.require("C2", type_.dtype is DType.U32, text, DTypeError)
            text = f"all inputs are required to have one shape; got {listing}. Broadcast them."
            self.require_same_dims("C1", type_.shape, x1.shape, text)
        return x1, x1

    def evaluate(self, k1: Array, k2: Array, x1: Array, x2: Array) -> tuple[Array, Array]:
        return threefry2x32((k1, k2), (x1, x2))


@define_op("rng_bit_generator")
class RngBitGenerator(Op):
    """Random bits from a state, and the state that follows.

    Inputs:
        state: u32[4] or u64[2]   a key word of 64 bits and a counter word of 64 bits.

    Attributes:
        algorithm: ``philox``, ``three_fry``, or the platform's ``default`` (philox on a CPU and
            a GPU, the hardware's generator on a TPU).
        dtype: u8, u16, u32 or u64.
        shape: of the bits.

    Result:
        The next state, of the type of `state`; then dtype[shape].

    Constraints:
        C1: state is u32[4] or u64[2].
        C2: dtype is unsigned, of at least 8 bits.

    Numerics: the bits of one state differ between platforms for ``default``; NumPy gives
    philox's.
    Source: StableHLO `rng_bit_generator`; Salmon et al. 2011; the counter layout is XLA's.
    """

    algorithm: RngAlgorithm = RngAlgorithm.DEFAULT
    dtype: DType = DType.U32
    shape: Shape = ()

    def infer(self, state: TensorType) -> tuple[TensorType, TensorType]:
        good = (TensorType(DType.U32, (4,)), TensorType(DType.U64, (2,)))
        text = f"state is required to be u32[4] or u64[2]; got {state}. Use key data of `rbg`."
        self.require("C1", state in good, text)
        self.require(
            "C2",
            self.dtype in (DType.U8, DType.U16, DType.U32, DType.U64),
            f"dtype is required to be u8, u16, u32 or u64; got {self.dtype}. Convert the bits.",
            DTypeError,
        )
        return state, TensorType(self.dtype, self.shape)

    def evaluate(self, state: Array) -> tuple[Array, Array]:
        words = np.ascontiguousarray(state).view(np.uint64)
        threefry = self.algorithm is RngAlgorithm.THREE_FRY
        shape = tuple(dims.evaluate(d, {}) for d in self.shape)
        following, bits = generate(threefry, words, shape, self.dtype.numpy)
        return following.view(state.dtype), bits
