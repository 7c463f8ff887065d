"""Devices by name, and arrays on them."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np

from rlx.device_names import kind_of, split, unavailable
from rlx.errors import DeviceError, RunError, did_you_mean
from rlx_xla._jax_compat import client as jax_client
from rlx_xla._jax_compat import placement

_GPU_PLATFORMS = ("cuda", "rocm")


def available_devices() -> tuple[str, ...]:
    """Return the names of the attached devices: ``("cpu",)``, ``("cuda:0", "cuda:1", "cpu")``.

    A platform with one device appears by its plain name. The default platform comes first.
    """
    names: list[str] = []
    for platform in _platforms():
        devices = jax.local_devices(backend=platform)
        plain = _plain_name(devices[0])
        names += [plain] if len(devices) == 1 else [f"{plain}:{i}" for i in range(len(devices))]
    return tuple(dict.fromkeys(names))


def find_device(name: str | jax_client.Device | None = None) -> jax_client.Device:
    """Return the device with a name.

    Args:
        name: ``cpu``, ``gpu``, ``cuda``, ``rocm``, ``tpu``, one of their aliases, or the platform
            of any installed PJRT plugin, with an optional index (``"cuda:1"``); None is JAX's
            default device.

    Raises:
        DeviceError: no such platform here, or the index is out of range.
    """
    if isinstance(name, jax.Device):
        return name
    if name is None:
        return jax.local_devices()[0]
    platform, index_text = split(name)
    if index_text and not index_text.isdecimal():
        raise DeviceError(
            f"device {name!r}: the part after ':' must be an index; got {index_text!r}. "
            'Write it as in "cuda:1".'
        )
    devices = _devices_of(platform)
    if not devices:
        available = available_devices()
        if kind_of(platform) is not None:
            raise unavailable(name, available)
        raise DeviceError(
            f"device {name!r}: must be attached and supported by an installed XLA plugin; "
            f"available: {', '.join(available)}.{did_you_mean(platform, available)}"
        )
    index = int(index_text or 0)
    if index >= len(devices):
        raise DeviceError(
            f"device {name!r}: index must be below {len(devices)}, the number of {platform} "
            f"devices; got {index}. Use one of {', '.join(available_devices())}."
        )
    return devices[index]


def device_name(device: jax_client.Device) -> str:
    """Return the name by which ``find_device`` finds a device."""
    devices = jax.local_devices(backend=device.client.platform)
    plain = _plain_name(device)
    return plain if len(devices) == 1 else f"{plain}:{devices.index(device)}"


def to_device(
    value: np.ndarray | jax.Array,
    device: jax_client.Device,
    *,
    copy: bool = True,
    weak: bool = False,
) -> jax.Array:
    """Put an array on a device with its dtype kept, 64-bit ones included.

    To JAX's transfer guard this is an explicit transfer, as ``jax.device_put`` is.

    Args:
        value: host or device array.
        device: where it goes.
        copy: False lets a host array of suitable alignment be aliased; it must then not be
            changed as long as the result lives.
        weak: whether the type of a host array is weak in JAX's sense.
    """
    sharding = jax_client.single_device_sharding(device)
    if isinstance(value, jax.Array):
        if value.is_deleted():
            raise RunError(
                f"to_device: a live array is required; {value.dtype}{list(value.shape)} was "
                "deleted or donated. Pass a fresh array."
            )
        return value if value.devices() == {device} else jax.device_put(value, sharding)
    host = np.asarray(value)
    with jax_client.asked_for():
        return jax_client.put(
            host,
            jax_client.shaped_array(host.shape, host.dtype, weak_type=weak),
            sharding,
            device,
            committed=not is_default(device),
            alias=not copy,
        )


def spread_array(value: np.ndarray | jax.Array, sharding: Any) -> jax.Array:
    """Put an array on the devices of a sharding, with its dtype kept; host arrays are copied."""
    if isinstance(value, jax.Array):
        if value.sharding == sharding or value.sharding.is_equivalent_to(sharding, value.ndim):
            return value
        if sharding.is_fully_addressable or not value.is_fully_addressable:
            return jax.device_put(value, sharding)
    host = np.asarray(value)
    writeable = host.flags.writeable
    with jax_client.asked_for():
        return placement.spread_host(host.copy() if writeable else host, sharding)


def from_device(value: jax.Array) -> np.ndarray:
    """Return the host view of a device array, waiting for it; on the CPU without a copy.

    An array over several processes is gathered, which all of them must ask for.

    Raises:
        RunError: the array was deleted, or donated to a later call.
    """
    if value.is_deleted():
        raise RunError(
            f"from_device: a live array is required; {value.dtype}{list(value.shape)} was deleted "
            "or donated to a later call. Read it before that call, or leave the output out."
        )
    with jax_client.asked_for():
        if not placement.is_everywhere(value):
            return placement.gathered(value)
        return np.asarray(value)


def host_memory() -> int:
    """Return the machine's physical memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def is_default(device: jax_client.Device) -> bool:
    """Tell whether uncommitted JAX arrays land on this device."""
    return device == jax.local_devices()[0]


def _platforms() -> list[str]:
    return jax_client.backend_platforms()


def _devices_of(platform: str) -> list[Any]:
    present = _platforms()
    if platform == "gpu":
        wanted = [p for p in present if p in ("gpu", *_GPU_PLATFORMS)]
    elif platform in _GPU_PLATFORMS:
        wanted = [p for p in present if p == platform or p == "gpu"]
    else:
        wanted = [p for p in present if p.lower() == platform]
    for name in wanted:
        devices = jax.local_devices(backend=name)
        if platform not in _GPU_PLATFORMS or _plain_name(devices[0]) == platform:
            return list(devices)
    return []


def plugin_platforms() -> list[str]:
    """Names of the attached platforms that are none of RLX's XLA devices: PJRT plugins."""
    names = [p.lower() for p in _platforms()]
    kinds = [(name, kind_of(name)) for name in names if name != "gpu"]
    return [name for name, kind in kinds if kind is None or kind.reach != "xla"]


def _plain_name(device: jax_client.Device) -> str:
    if device.platform != "gpu":
        return device.platform.lower()
    return "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"
