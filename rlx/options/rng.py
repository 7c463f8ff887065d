"""Where a graph's random numbers come from: one policy for a whole run."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import cast, final

from rlx.errors import CompileError, did_you_mean

SEED_LIMIT = 1 << 64
"""Seeds are 64-bit: 0 ≤ seed < SEED_LIMIT."""


@final
class RngBackend(enum.Enum):
    """Which generator draws.

    PHILOX is RLX's own Philox-4x32; ORT repeats ONNX Runtime's CPU streams (minstd_rand0 and the
    polar method); ZERO draws nothing: every result is 0.
    """

    PHILOX = "philox"
    ORT = "ort"
    ZERO = "zero"


@final
@dataclass(frozen=True, kw_only=True)
class RngOptions:
    """The policy of every random op that has no seed of its own.

    Every run starts from the policy again: equal policies give equal numbers, on any device.

    Attributes:
        seed: 0 ≤ seed < 2⁶⁴.
        backend: which generator draws.
    """

    seed: int = 42
    backend: RngBackend = RngBackend.PHILOX

    def __post_init__(self) -> None:
        seed, backend = cast("object", self.seed), cast("object", self.backend)
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < SEED_LIMIT:
            raise CompileError(
                f"RngOptions.seed: required an int in [0, 2**64); got {seed!r}. "
                "Take it modulo 2**64."
            )
        if isinstance(backend, RngBackend):
            return
        if isinstance(backend, str) and backend.lower() == "bnns":
            raise CompileError(_NO_BNNS)
        names = [b.name for b in RngBackend]
        hint = did_you_mean(backend.upper(), names) if isinstance(backend, str) else ""
        raise CompileError(
            f"RngOptions.backend: required a RngBackend ({', '.join(names)}); "
            f"got {backend!r}.{hint}"
        )

    @staticmethod
    def philox(seed: int) -> RngOptions:
        """RLX's own Philox-4x32."""
        return RngOptions(seed=seed, backend=RngBackend.PHILOX)

    @staticmethod
    def ort(seed: int) -> RngOptions:
        """ONNX Runtime's CPU streams, for comparing with its results."""
        return RngOptions(seed=seed, backend=RngBackend.ORT)

    @staticmethod
    def zero() -> RngOptions:
        """Zeros instead of random numbers."""
        return RngOptions(backend=RngBackend.ZERO)

    @staticmethod
    def bnns(seed: int) -> RngOptions:
        """Apple's generator; not available here.

        Raises:
            CompileError: always; says what to use.
        """
        del seed
        raise CompileError(_NO_BNNS)


_NO_BNNS = (
    "RngOptions.bnns: required a generator that XLA's devices can run; BNNS is part of Apple's "
    "Accelerate framework and its streams exist only there. Use RngOptions.philox(seed)."
)
