"""What XLA's compiler for GPUs has to know of a card that is not there.

The text format of XLA's ``GpuTargetConfigProto``; numbers are the vendors' published ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rlx_xla.aot.targets import Chip


@final
@dataclass(frozen=True)
class _Card:
    capability: str
    cores: int
    shared_core: int
    shared_block: int
    cache: int
    ghz: float
    units: int = 128


_CARDS = {
    "t4": _Card("7.5", 40, 65_536, 65_536, 4 << 20, 1.59, 64),
    "a100": _Card("8.0", 108, 167_936, 166_912, 40 << 20, 1.41, 64),
    "h100": _Card("9.0", 132, 233_472, 232_448, 50 << 20, 1.98),
    "h200": _Card("9.0", 132, 233_472, 232_448, 60 << 20, 1.98),
    "b200": _Card("10.0", 148, 233_472, 232_448, 126 << 20, 1.965),
    "mi300x": _Card("gfx942:sramecc+:xnack-", 304, 65_536, 65_536, 4 << 20, 2.1),
}


def target_config(chip: Chip) -> str:
    """The card's description."""
    card = _CARDS[chip.name]
    rocm = chip.platform == "rocm"
    if rocm:
        capability = f'rocm_compute_capability {{ gcn_arch_name: "{card.capability}" }}'
    else:
        major, minor = card.capability.split(".")
        features = "feature_extension: ACCELERATED_FEATURES" if int(major) >= 9 else ""
        capability = f"cuda_compute_capability {{ major: {major} minor: {minor} {features} }}"
    registers = 131_072 if rocm else 65_536
    versions = (
        "dnn_version_info { }"
        if rocm
        else "dnn_version_info { major: 9 minor: 8 patch: 0 } "
        "runtime_version { major: 12 minor: 8 patch: 0 }"
    )
    return f"""gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: {64 if rocm else 32}
  shared_memory_per_block: {65_536 if rocm else 49_152}
  shared_memory_per_core: {card.shared_core} shared_memory_per_block_optin: {card.shared_block}
  threads_per_core_limit: 2048 core_count: {card.cores} fpus_per_core: {card.units}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {int(chip.bandwidth)} l2_cache_size: {card.cache}
  clock_rate_ghz: {card.ghz} device_memory_size: {chip.memory}
  {capability}
  registers_per_core_limit: {registers} registers_per_block_limit: {registers}
}}
platform_name: "{"ROCM" if rocm else "CUDA"}"
{versions}
device_description_str: "{chip.title}"
"""
