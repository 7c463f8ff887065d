"""Which devices may be used, and how one is picked.

===================== =====================================================================
variable              what it sets
===================== =====================================================================
RLX_DEVICE            the device of ``Session()``; without it ``cpu``
RLX_DEVICES           ``DevicePolicy.devices``: the only ones that may be used
RLX_DENY_DEVICES      ``DevicePolicy.deny``: never used
RLX_PREFER_DEVICES    ``DevicePolicy.prefer``: come first, in this order
RLX_DEVICE_CHAIN      ``DevicePolicy.chain``: these alone, tried in this order
RLX_BENCHMARK_PICK    ``DevicePolicy.benchmark_pick``: a flag; measure instead of estimating
===================== =====================================================================

Lists are separated by commas. A name without an index means every device of its kind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast, final

from rlx.device_names import split
from rlx.errors import DeviceError
from rlx.options import env


def default_device() -> str:
    """The device of a session that names none: ``RLX_DEVICE``, or ``cpu``."""
    return env.var("RLX_DEVICE") or "cpu"


@final
@dataclass(frozen=True, kw_only=True)
class DevicePolicy:
    """Which of the available devices may be used, and in which order they are tried.

    Attributes:
        devices: the only ones that may be used; None for all.
        deny: those that may not, whatever else says.
        prefer: those that come first, in this order.
        chain: these alone in exactly this order, the first that can run the graph is taken;
            nothing is estimated or measured.
        benchmark_pick: time the graph on every candidate instead of estimating.
    """

    devices: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()
    chain: tuple[str, ...] = ()
    benchmark_pick: bool = False

    def __post_init__(self) -> None:
        for name in ("devices", "deny", "prefer", "chain"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _names(f"DevicePolicy.{name}", value))

    @staticmethod
    def all() -> DevicePolicy:
        """Every available device."""
        return DevicePolicy()

    @staticmethod
    def only(*devices: str) -> DevicePolicy:
        """These devices alone."""
        return DevicePolicy(devices=devices)

    def with_deny(self, *devices: str) -> DevicePolicy:
        """The same policy without these devices."""
        return dataclasses.replace(self, deny=(*self.deny, *devices))

    def with_prefer(self, *devices: str) -> DevicePolicy:
        """The same policy with these devices first."""
        return dataclasses.replace(self, prefer=devices)

    def with_chain(self, *devices: str) -> DevicePolicy:
        """The same policy with a fixed order."""
        return dataclasses.replace(self, chain=devices)

    def with_benchmark_pick(self, measured: bool = True) -> DevicePolicy:
        """The same policy, with devices compared by measured time."""
        return dataclasses.replace(self, benchmark_pick=measured)

    @staticmethod
    def from_env() -> DevicePolicy:
        """The policy that the environment sets."""
        return DevicePolicy(
            devices=_listed("RLX_DEVICES") or None,
            deny=_listed("RLX_DENY_DEVICES"),
            prefer=_listed("RLX_PREFER_DEVICES"),
            chain=_listed("RLX_DEVICE_CHAIN"),
            benchmark_pick=env.flag("RLX_BENCHMARK_PICK"),
        )

    def allows(self, device: str) -> bool:
        """Whether a device may be used."""
        if _position(device, self.deny) is not None:
            return False
        if self.chain:
            return _position(device, self.chain) is not None
        return self.devices is None or _position(device, self.devices) is not None

    def order(self, devices: Iterable[str]) -> list[str]:
        """Those that may be used, the preferred first; others keep their order."""
        wanted = self.chain or self.prefer
        allowed = [d for d in devices if self.allows(d)]
        last = len(wanted)
        return sorted(allowed, key=lambda d: _or(_position(d, wanted), last))


def _or(position: int | None, default: int) -> int:
    return default if position is None else position


def _position(device: str, names: tuple[str, ...] | None) -> int | None:
    """Where a device stands in a list of names, which may leave the index out."""
    plain, index = split(device)
    for position, name in enumerate(names or ()):
        kind, wanted = split(name)
        if kind == plain and wanted in ("", index):
            return position
    return None


def _names(where: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise DeviceError(f"{where}: a list of device names is required; got {value!r}.")
    names = tuple(cast("Iterable[object]", value))
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise DeviceError(f"{where}: device names are required; got {name!r}.")
    return cast("tuple[str, ...]", names)


def _listed(name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in (env.var(name) or "").split(",") if part.strip())
