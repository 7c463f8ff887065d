"""What a compiled graph can do on its device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rlx.options.compile import CompileOptions


@final
@dataclass(frozen=True)
class Capabilities:
    """Answers of ``CompiledGraph.capabilities``.

    Attributes:
        device: name of the device.
        platform: the device's kind.
        symbols: symbolic dims, which are bound at each call.
        kept: inputs that live on the device.
        staged: whether something is computed once per binding of params.
        random: whether the graph draws numbers by the policy of ``set_rng``.
        fixed_params: params whose values the compile fixed.
        options: of the compile.
    """

    device: str
    platform: str
    symbols: tuple[str, ...]
    kept: tuple[str, ...]
    staged: bool
    random: bool
    fixed_params: tuple[str, ...]
    options: CompileOptions

    @property
    def is_dynamic(self) -> bool:
        """Whether shapes may change from call to call."""
        return bool(self.symbols)
