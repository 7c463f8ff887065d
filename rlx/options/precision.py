"""In which precision a session computes."""

from __future__ import annotations

import enum
from typing import final


@final
class Precision(enum.Enum):
    """The dtype that a graph's floats are computed in.

    F32 leaves every dtype as the graph says.
    """

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
