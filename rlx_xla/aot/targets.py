"""Names of accelerators that can be compiled for without having one, and what they are.

``tpu:v5e:2x2`` is a TPU generation and a topology of chips, ``cuda:h100`` a GPU. Numbers are the
vendors' published ones for one device; where a chip shows itself as two devices (v4, tpu7x), each
has half of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from rlx.errors import DeviceError, did_you_mean


@final
@dataclass(frozen=True, kw_only=True)
class Chip:
    """One device of an accelerator.

    Attributes:
        platform: ``tpu``, ``cuda`` or ``rocm``.
        name: our name, such as ``v5e``.
        title: the vendor's name.
        memory: bytes of device memory.
        bandwidth: bytes of device memory read in a second.
        flops: bf16 operations in a second (f16 for GPUs without bf16).
        clock: cycles in a second; 0 where no estimate of cycles is made.
        per_chip: devices of one chip.
        rank: axes of a topology.
    """

    platform: str
    name: str
    title: str
    memory: int
    bandwidth: float
    flops: float
    clock: float = 0.0
    per_chip: int = 1
    rank: int = 1


def _tpu(
    name: str,
    title: str,
    gib: float,
    gbps: float,
    tflops: float,
    ghz: float,
    *,
    per_chip: int = 1,
    rank: int = 2,
) -> Chip:
    return Chip(
        platform="tpu",
        name=name,
        title=title,
        memory=int(gib * 2**30),
        bandwidth=gbps * 1e9,
        flops=tflops * 1e12,
        clock=ghz * 1e9,
        per_chip=per_chip,
        rank=rank,
    )


def _gpu(platform: str, name: str, title: str, gb: float, gbps: float, tflops: float) -> Chip:
    return Chip(
        platform=platform,
        name=name,
        title=title,
        memory=int(gb * 1e9),
        bandwidth=gbps * 1e9,
        flops=tflops * 1e12,
    )


CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        _tpu("v2", "TPU v2", 8, 350, 22.5, 0.7, per_chip=2),
        _tpu("v3", "TPU v3", 16, 450, 61.5, 0.94, per_chip=2),
        _tpu("v4", "TPU v4", 16, 614, 137.5, 1.05, per_chip=2, rank=3),
        _tpu("v5e", "TPU v5 lite", 15.75, 819, 197, 1.5),
        _tpu("v5p", "TPU v5", 95, 2765, 459, 1.75, rank=3),
        _tpu("v6e", "TPU v6 lite", 31.25, 1640, 918, 1.75),
        _tpu("tpu7x", "TPU7x", 96, 3690, 1153, 2.2, per_chip=2, rank=3),
        _gpu("cuda", "t4", "Tesla T4", 15.8, 320, 65),
        _gpu("cuda", "a100", "NVIDIA A100 80GB", 84.9, 2039, 312),
        _gpu("cuda", "h100", "NVIDIA H100 80GB", 84.9, 3352, 989),
        _gpu("cuda", "h200", "NVIDIA H200", 150.7, 4800, 989),
        _gpu("cuda", "b200", "NVIDIA B200", 191, 8000, 2250),
        _gpu("rocm", "mi300x", "AMD Instinct MI300X", 206, 5300, 1307),
    )
}

_ALIASES = {
    "v5litepod": "v5e", "v5lite": "v5e", "v5": "v5p", "v6": "v6e", "trillium": "v6e",
    "v7x": "tpu7x", "v7": "tpu7x", "tpu7": "tpu7x", "ironwood": "tpu7x",
}  # fmt: skip
_SIZES = {  # chips → topology that clouds give for so many
    2: {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"},
    3: {1: "1x1x1", 4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4"},
}


@final
@dataclass(frozen=True, kw_only=True)
class Target:
    """What is compiled for.

    Attributes:
        name: the whole name, such as ``tpu:v5e:2x2``.
        chip: one of its devices.
        topology: chips along each axis; ``(1,)`` for a GPU.
        options: what the compiler's topology takes besides its name.
    """

    name: str
    chip: Chip
    topology: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def platform(self) -> str:
        """``tpu``, ``cuda`` or ``rocm``."""
        return self.chip.platform

    @property
    def devices(self) -> int:
        """How many devices it shows."""
        return math.prod(self.topology) * self.chip.per_chip

    @property
    def topology_name(self) -> str:
        """What the compiler calls the topology."""
        if self.platform != "tpu":
            return ""
        return f"{self.chip.name}:{'x'.join(map(str, self.topology))}"


def known_targets() -> list[str]:
    """A name for each kind of device, one chip each."""
    return [parse_target(f"{chip.platform}:{chip.name}").name for chip in CHIPS.values()]


def parse_target(name: str) -> Target:
    """Read a target's name.

    Takes ``tpu:v5e:2x2``, ``tpu:v5e`` (one chip), what clouds say (``v5litepod-8``, ``v5e-1``,
    ``v7x``) and ``cuda:h100`` or ``h100``; a GPU may have a count, ``cuda:h100:1``.

    Raises:
        DeviceError: the name is unknown, or the topology has the wrong number of axes; the known
            are listed.
    """
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _unknown(name)
    parts = name.strip().lower().split(":")
    platform = parts.pop(0) if parts[0] in ("tpu", "cuda", "rocm") and len(parts) > 1 else None
    kind, _, count = parts[0].partition("-")
    chip = CHIPS.get(_ALIASES.get(kind, kind))
    if chip is None or (platform is not None and chip.platform != platform) or len(parts) > 2:
        raise _unknown(name)
    size = parts[1] if len(parts) == 2 else count
    if chip.platform != "tpu":
        if size not in ("", "1"):
            raise DeviceError(
                f"target {name!r}: one GPU is compiled for ahead of time; got {size}. Leave it out."
            )
        return Target(name=f"{chip.platform}:{chip.name}", chip=chip, topology=(1,))
    topology = _topology(name, chip, size)
    options = {} if math.prod(topology) > 1 else {"chips_per_host_bounds": [1, 1, 1]}
    label = f"tpu:{chip.name}:{'x'.join(map(str, topology))}"
    return Target(name=label, chip=chip, topology=topology, options=options)


def _topology(name: str, chip: Chip, size: str) -> tuple[int, ...]:
    if size.isdigit() or not size:
        # Clouds count the cores of the generations whose chips show two.
        chips = int(size or chip.per_chip)
        by_cores = chip.name in ("v2", "v3", "v4") or (not size and chip.per_chip > 1)
        chips = chips // 2 if by_cores and chips > 1 else chips
        sizes = _SIZES[chip.rank]
        if chips not in sizes:
            raise DeviceError(
                f"target {name!r}: a number of chips that a {chip.title} is sold in is required "
                f"({', '.join(map(str, sizes))}); got {chips}. Give a topology, such as "
                f"tpu:{chip.name}:{sizes[4]}."
            )
        size = sizes[chips]
    if not re.fullmatch(r"\d+(x\d+)*", size):
        raise DeviceError(
            f"target {name!r}: a topology such as {_SIZES[chip.rank][4]} is required; got {size!r}."
        )
    topology = tuple(int(n) for n in size.split("x"))
    if len(topology) != chip.rank or 0 in topology:
        raise DeviceError(
            f"target {name!r}: a topology of {chip.rank} axes, such as {_SIZES[chip.rank][4]}, is "
            f"required for {chip.title}; got {size}."
        )
    if math.prod(topology) > 1 and any(n % 2 for n in topology[:2]):
        ones = "x".join("1" * chip.rank)
        raise DeviceError(
            f"target {name!r}: one chip ({ones}), or a topology whose first two axes are even (a "
            f"host has 2x2 chips), is required; got {size}. Take "
            f"{', '.join(list(_SIZES[chip.rank].values())[1:4])} or larger."
        )
    return topology


def _unknown(name: str) -> DeviceError:
    known = known_targets()
    hint = did_you_mean(str(name), known)
    return DeviceError(
        f"target {name!r} is unknown; known are {', '.join(known)}, TPUs with any topology "
        f"(tpu:v5e:2x4) and as clouds name them (v5litepod-8).{hint}"
    )
