"""Rotary positions: the rates at which features turn, and how files stretch them.

Source: Su et al. 2021, arXiv:2104.09864; Peng et al. 2023, arXiv:2309.00071 (YaRN); the Llama 3.1
model card (low and high frequencies).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

KINDS = ("none", "linear", "llama3", "yarn")


@final
@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotations differ from those that the base alone gives.

    Attributes:
        kind: ``"none"``; ``"linear"``: positions are divided; ``"llama3"``: slow features are
            divided, fast ones are not; ``"yarn"``: the same by turns within the original context,
            and scores grow.
        factor: what positions are divided by; ≥ 1 stretches.
        original: positions of the original training, for ``llama3`` and ``yarn``.
        low: ``llama3``: features with fewer turns than this in the original context are divided.
        high: ``llama3``: features with more turns than this are not.
        beta_fast: ``yarn``: the same, for features that are not divided.
        beta_slow: ``yarn``: the same, for features that are divided.
        magnitude: ``yarn``: factor of cosines and sines; 0 for what the factor suggests.
    """

    kind: str = "none"
    factor: float = 1.0
    original: int = 1
    low: float = 1.0
    high: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    magnitude: float = 0.0

    def rates(self, base: float, size: int) -> np.ndarray[Any, Any]:
        """Radians a position, f32[size / 2], of features 2i and 2i + 1 (or i and i + size / 2).

        Args:
            base: of the wavelengths.
            size: features that rotate.
        """
        plain = base ** (-np.arange(0, size, 2, dtype=np.float64) / size)
        slow = plain / self.factor
        if self.kind == "linear":
            return slow.astype(np.float32)
        if self.kind == "llama3":
            turns = self.original * plain / (2 * math.pi)
            share = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        elif self.kind == "yarn":
            first = max(math.floor(self._place(base, size, self.beta_fast)), 0)
            last = min(math.ceil(self._place(base, size, self.beta_slow)), size - 1)
            ramp = (np.arange(size // 2) - first) / max(last - first, 0.001)
            share = 1 - np.clip(ramp, 0, 1)
        else:
            return plain.astype(np.float32)
        return (slow * (1 - share) + plain * share).astype(np.float32)

    def gain(self) -> float:
        """What cosines and sines are multiplied by."""
        if self.kind != "yarn":
            return 1.0
        return self.magnitude or 0.1 * math.log(max(self.factor, 1.0)) + 1.0

    def _place(self, base: float, size: int, turns: float) -> float:
        """The feature (a fraction) that turns so often within the original context."""
        return size * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(base))
