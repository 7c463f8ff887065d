"""How ops are fused: RLX's targets and options."""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields
from typing import final

from rlx.errors import CompileError


@final
class FusionTarget(enum.Enum):
    """For which kind of device fusion chooses its patterns and limits."""

    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"
    TPU = "tpu"
    METAL = "metal"
    MLX = "mlx"
    WGPU = "wgpu"


@final
@dataclass(frozen=True, kw_only=True)
class FusionOptions:
    """What fusion may do.

    Attributes:
        skip_fusion: recognise nothing.
        scan_trees: recognise selective scans that a tree of products computes
            (``jax.lax.associative_scan``) too. Their steps keep an Inf where the tree's product of
            decays has vanished and makes NaN of it, so that it is not done unasked.
        unfuse_elementwise_regions: take chains of elementwise ops apart again at the end; XLA
            fuses them by itself.
        max_steps: most ops in one elementwise region; None for no limit.
        max_inputs: most inputs of one elementwise region; None for no limit.
    """

    skip_fusion: bool = False
    scan_trees: bool = False
    unfuse_elementwise_regions: bool = True
    max_steps: int | None = None
    max_inputs: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            limit = field.name.startswith("max_")
            sound = isinstance(value, bool)
            if limit:
                sound = value is None or (type(value) is int and value >= 1)
            if not sound:
                what = "an int ≥ 1, or None" if limit else "a bool"
                raise CompileError(f"FusionOptions.{field.name}: required {what}; got {value!r}.")

    @staticmethod
    def for_target(target: FusionTarget) -> FusionOptions:
        """RLX's options of a target: at most 32 steps and 16 inputs where it is no CPU."""
        if target is FusionTarget.CPU:
            return FusionOptions()
        return FusionOptions(max_steps=32, max_inputs=16)

    @staticmethod
    def for_cpu() -> FusionOptions:
        """RLX's options for a CPU."""
        return FusionOptions.for_target(FusionTarget.CPU)
