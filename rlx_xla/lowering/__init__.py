"""From LIR to StableHLO."""

from typing import Any

from rlx_xla.on_demand import found_in


def __getattr__(name: str) -> Any:
    return found_in(__name__, name, {})  # a submodule
