"""RLX's random streams in NumPy: the numbers that every device repeats.

``Philox4x32`` is RLX's generator, multiplier quirk included; ``MinstdRand0`` and ``polar_normals``
repeat ONNX Runtime's CPU kernels. ``uniforms`` and ``normals`` draw what a random op means under
a policy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast, final, overload

import numpy as np
import numpy.typing as npt

from rlx.errors import RunError
from rlx.ops.random_bits import HALF, MASK, philox4x32
from rlx.options.rng import SEED_LIMIT, RngBackend, RngOptions

MULTIPLIERS = (np.uint64(0xD2561A75), np.uint64(0xCD9E8D57))
"""RLX's Philox multipliers; the first is not the published 0xD2511F53."""

SEED_STEP = 0x9E3779B97F4A7C15
"""What an op's key is multiplied with before it is added to the policy's seed."""

SMALLEST = np.float32(2.0**-126)
"""The smallest normal f32: what a uniform is raised to before its logarithm is taken."""

_BLOCKS_AHEAD = 64
"""At least so many blocks are computed at once."""

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]


def mixed_seed(seed: int, key: int) -> int:
    """The seed of one op: seed + key · SEED_STEP, modulo 2⁶⁴."""
    return (seed + key * SEED_STEP) % SEED_LIMIT


@final
class Philox4x32:
    """RLX's counter-based stream: four 32-bit words for each block, consumed in order.

    The array forms take the next words of the same stream in C order, so that
    ``[g.uniform(), g.uniform()]`` and ``g.uniform(2)`` are equal.
    """

    def __init__(self, seed: int) -> None:
        """Start the stream of a seed.

        Args:
            seed: 0 ≤ seed < 2⁶⁴; its low and high words are the key.

        Raises:
            RunError: the seed is no such integer.
        """
        given = cast("object", seed)
        integer = isinstance(given, int) and not isinstance(given, bool)
        if not integer or not 0 <= seed < SEED_LIMIT:
            raise RunError(
                f"Philox4x32: seed is required to be an int in [0, 2**64); got {seed!r}. "
                "Take it modulo 2**64."
            )
        self.seed = seed
        self._position = 0
        self._first = -1
        self._buffer = np.empty(0, np.uint32)

    @overload
    def next_u32(self) -> int: ...
    @overload
    def next_u32(self, shape: int | Sequence[int]) -> Words: ...
    def next_u32(self, shape: int | Sequence[int] | None = None) -> int | Words:
        """The next 32-bit word, or an array of them."""
        if shape is None:
            return int(self._next(1)[0])
        return self._next(_size(shape)).reshape(shape)

    @overload
    def uniform(self) -> float: ...
    @overload
    def uniform(self, shape: int | Sequence[int]) -> Floats: ...
    def uniform(self, shape: int | Sequence[int] | None = None) -> float | Floats:
        """The next number in [0, 1): the top 24 bits of a word over 2²⁴; or an f32 array."""
        if shape is None:
            return float(unit_floats(self._next(1))[0])
        return unit_floats(self._next(_size(shape))).reshape(shape)

    @overload
    def normal(self) -> float: ...
    @overload
    def normal(self, shape: int | Sequence[int]) -> Floats: ...
    def normal(self, shape: int | Sequence[int] | None = None) -> float | Floats:
        """The next standard normal number, made of two uniforms; or an f32 array."""
        if shape is None:
            return float(box_muller(self._next(2))[0])
        return box_muller(self._next(2 * _size(shape))).reshape(shape)

    def _next(self, count: int) -> Words:
        start, end = self._position, self._position + count
        if start < self._first or end > self._first + len(self._buffer) or self._first < 0:
            first, last = start // 4, -(-end // 4)
            self._buffer = philox_blocks(self.seed, first, max(last - first, _BLOCKS_AHEAD))
            self._first = 4 * first
        self._position = end
        return self._buffer[start - self._first : end - self._first]


def philox_blocks(seed: int, first: int, count: int) -> Words:
    """The words of ``count`` blocks of RLX's Philox from block ``first``: u32[4 · count]."""
    index = np.arange(first, first + count, dtype=np.uint64)
    nothing = np.zeros_like(index)
    key = (np.uint64(seed) & MASK, np.uint64(seed) >> HALF)
    made = philox4x32([index & MASK, index >> HALF, nothing, nothing], key, MULTIPLIERS)
    return np.stack(made, axis=-1).reshape(-1).astype(np.uint32)


def unit_floats(words: npt.NDArray[Any]) -> Floats:
    """The top 24 bits of each word over 2²⁴, in [0, 1)."""
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def box_muller(words: npt.NDArray[Any]) -> Floats:
    """Standard normals from pairs of words: the cosine branch in f64, rounded once to f32."""
    pairs = unit_floats(words).reshape(-1, 2)
    first = np.maximum(pairs[:, 0], SMALLEST).astype(np.float64)
    angle = 2 * np.pi * pairs[:, 1].astype(np.float64)
    return (np.sqrt(-2 * np.log(first)) * np.cos(angle)).astype(np.float32)


@final
class MinstdRand0:
    """The C++ standard's ``minstd_rand0``: x ← 16807 · x mod (2³¹ − 1)."""

    MODULUS = 2**31 - 1
    MULTIPLIER = 16807

    def __init__(self, seed: int) -> None:
        """Start from a 32-bit seed; one that is 0 modulo 2³¹ − 1 counts as 1."""
        self._state = seed % self.MODULUS or 1

    def next(self, count: int) -> npt.NDArray[np.uint64]:
        """The next ``count`` states, each in [1, 2³¹ − 2]."""
        modulus = np.uint64(self.MODULUS)
        powers = np.full(1, self.MULTIPLIER, np.uint64)
        while len(powers) < count:
            powers = np.concatenate([powers, powers * powers[-1] % modulus])
        states = powers[:count] * np.uint64(self._state) % modulus
        if count:
            self._state = int(states[-1])
        return states

    def uniform(self, count: int) -> Floats:
        """f32 numbers in [0, 1) as ``std::generate_canonical<float>`` gives them."""
        unit = (self.next(count) - np.uint64(1)).astype(np.float32) * np.float32(2.0**-31)
        return np.minimum(unit, np.nextafter(np.float32(1), np.float32(0)))


def polar_normals(engine: MinstdRand0, count: int) -> Floats:
    """Standard normals by Marsaglia's polar method in f32, as libstdc++ orders them.

    Of an accepted pair (x, y) the second gives the first number.
    """
    one, two = np.float32(1), np.float32(2)
    found: list[Floats] = []
    missing = count
    while missing > 0:
        pairs = (two * engine.uniform(2 * missing) - one).reshape(-1, 2)
        x, y = pairs[:, 0], pairs[:, 1]
        square = x * x + y * y
        kept = (square <= one) & (square != 0)
        square = square[kept]
        logs = np.log(square.astype(np.float64)).astype(np.float32)
        scale = np.sqrt(np.float32(-2) * logs / square)
        found.append((pairs[kept][:, ::-1] * scale[:, None]).reshape(-1))
        missing -= len(found[-1])
    return np.concatenate([*found, np.empty(0, np.float32)])[:count]


def ort_seed(seed: int, key: int, op_seed: float | None) -> int:
    """The 32-bit seed that ONNX Runtime's kernel gets: the op's own, or seed + key.

    Args:
        seed: the policy's.
        key: the op's.
        op_seed: the op's own seed or None; truncated, saturating in u32, NaN counts as 0.
    """
    if op_seed is None:
        return (seed + key) & 0xFFFFFFFF
    if math.isnan(op_seed):
        return 0
    return int(min(max(op_seed, 0.0), float(0xFFFFFFFF)))


def uniforms(
    options: RngOptions, count: int, *, key: int = 0, op_seed: float | None = None
) -> Floats:
    """Numbers in [0, 1) that an op with this key draws under a policy; f32[count]."""
    if options.backend is RngBackend.ZERO:
        return np.zeros(count, np.float32)
    if options.backend is RngBackend.ORT:
        return MinstdRand0(ort_seed(options.seed, key, op_seed)).uniform(count)
    return Philox4x32(mixed_seed(options.seed, key)).uniform(count)


def normals(
    options: RngOptions, count: int, *, key: int = 0, op_seed: float | None = None
) -> Floats:
    """Standard normals that an op with this key draws under a policy; f32[count]."""
    if options.backend is RngBackend.ZERO:
        return np.zeros(count, np.float32)
    if options.backend is RngBackend.ORT:
        return polar_normals(MinstdRand0(ort_seed(options.seed, key, op_seed)), count)
    return Philox4x32(mixed_seed(options.seed, key)).normal(count)


def gumbel01(rng: Philox4x32, shape: int | Sequence[int] = ()) -> Floats:
    """Standard Gumbel numbers, −ln(−ln u), with u raised to the smallest normal; f32[shape]."""
    unit = np.maximum(rng.uniform(shape), SMALLEST).astype(np.float64)
    return np.asarray(-np.log(-np.log(unit)), np.float32)


def gumbel_max_argmax(logits: npt.ArrayLike, rng: Philox4x32) -> npt.NDArray[np.int32]:
    """Draw an index from softmax(logits) over the last axis, by the Gumbel-max trick.

    Args:
        logits: float[..., V], V ≥ 1.
        rng: its stream gives one uniform for each logit, in C order.

    Returns:
        i32[...]; the smallest index of those that tie.

    Raises:
        RunError: there is nothing to choose from.
    """
    array = np.asarray(logits, np.float32)
    if not array.ndim or not array.shape[-1]:
        raise RunError(
            "gumbel_max_argmax: logits are required to have a last axis with at least one "
            f"element; got shape {array.shape}. Pass [..., V]."
        )
    noisy = array + gumbel01(rng, array.shape)
    return np.argmax(noisy, axis=-1).astype(np.int32)


def _size(shape: int | Sequence[int]) -> int:
    return shape if isinstance(shape, int) else math.prod(shape)
