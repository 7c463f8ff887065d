"""The devices that RLX knows by name: titles, features, aliases, and the texts about them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from rlx.errors import DeviceError, did_you_mean


@final
@dataclass(frozen=True)
class DeviceKind:
    """A kind of device.

    Attributes:
        name: what a session takes: ``cuda``.
        title: the name that people read: ``CUDA``.
        feature: RLX's name of the feature that brings it.
        aliases: other names that a session takes.
        reach: ``xla`` where the package rlx-xla brings it, ``rlx`` where RLX itself does, and
            ``plugin`` where only a PJRT plugin or a registered backend can.
    """

    name: str
    title: str
    feature: str
    aliases: tuple[str, ...] = ()
    reach: str = "plugin"


KINDS = (
    DeviceKind("cpu", "CPU", "cpu", ("host",), "xla"),
    DeviceKind("cuda", "CUDA", "cuda", ("nvidia",), "xla"),
    DeviceKind("rocm", "ROCm", "rocm", ("amd", "hip"), "xla"),
    DeviceKind("tpu", "TPU", "tpu", (), "xla"),
    DeviceKind("gpu", "GPU", "gpu", (), "xla"),
    DeviceKind("interpret", "Interpreter", "interpret", ("numpy", "interpreter"), "rlx"),
    DeviceKind("metal", "Metal", "metal", ("mps",)),
    DeviceKind("mlx", "MLX", "mlx"),
    DeviceKind("ane", "ANE", "ane", ("coreml",)),
    DeviceKind("wgpu", "GPU (wgpu)", "gpu"),
    DeviceKind("vulkan", "Vulkan", "vulkan", ("vk",)),
    DeviceKind("opengl", "OpenGl", "opengl", ("gl",)),
    DeviceKind("directx", "DirectX", "directx", ("dx", "dx12", "d3d12")),
    DeviceKind("webgpu", "WebGpu", "webgpu"),
    DeviceKind("xdna", "Xdna", "xdna"),
    DeviceKind("egpu", "Egpu", "egpu"),
    DeviceKind("oneapi", "OneApi", "oneapi", ("sycl", "xpu")),
    DeviceKind("hexagon", "Hexagon", "qnn", ("qnn",)),
)
"""RLX's sixteen devices, where its ``Gpu`` is ``wgpu`` here; ``gpu`` is the attached GPU of XLA;
``interpret`` is the NumPy interpreter."""

_BY_NAME = {
    spelling.lower(): kind for kind in KINDS for spelling in (kind.name, *kind.aliases, kind.title)
}


def kind_of(name: str) -> DeviceKind | None:
    """The kind of a device name without an index, by any spelling; None for a stranger's."""
    return _BY_NAME.get(name.strip().lower())


def split(device: str) -> tuple[str, str]:
    """Split a device name into its plain lower-case name and its index: ``("cuda", "1")``.

    Aliases become the name that they stand for; a name that RLX does not know stays.

    Raises:
        DeviceError: not a text, or an empty one.
    """
    if not isinstance(device, str) or not device.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DeviceError(f"device: a name such as 'cpu' or 'cuda:1' is required; got {device!r}.")
    plain, _, index = device.strip().partition(":")
    kind = kind_of(plain)
    return (kind.name if kind else plain.strip().lower()), index


def full_name(device: str) -> str:
    """The name that people read, with the index: ``"CUDA:1"``, ``"GPU (wgpu)"``.

    A device that RLX does not know keeps its own name.
    """
    plain, index = split(device)
    kind = kind_of(plain)
    title = kind.title if kind else plain
    return f"{title}:{index}" if index else title


def unavailable(device: str, available: Iterable[str]) -> DeviceError:
    """The error for a device that has a backend and is not attached.

    Args:
        device: the name that was asked for.
        available: names of the devices that are.
    """
    plain, _ = split(device)
    kind = kind_of(plain)
    feature = kind.feature if kind else plain
    install = "Install JAX for it, or use one of these." if _is_xla(kind) else "Use one of these."
    return DeviceError(
        f"device {full_name(device)} is not available — the `{feature}` feature is enabled but no "
        f"such device/driver was found on this host; available: {', '.join(available)}. {install}"
    )


def unregistered(device: str, registered: Iterable[str]) -> DeviceError:
    """The error for a device without a backend.

    Args:
        device: the name that was asked for.
        registered: device names that have a backend.
    """
    plain, _ = split(device)
    kind = kind_of(plain)
    known = list(registered)
    listing = ", ".join(known)
    if kind is None:
        names = [*known, *_BY_NAME]
        return DeviceError(
            f"no backend registered for device {device!r}; registered: {listing}."
            f"{did_you_mean(plain, names)} Add one with rlx.register_backend, or install a PJRT "
            "plugin of that name."
        )
    if _is_xla(kind):
        return DeviceError(
            f"no backend registered for device {full_name(device)} — enable feature "
            f"`{kind.feature}` (or call rlx.register_backend({plain!r}, ...)); registered: "
            f"{listing}. Install rlx-xla, which registers XLA's devices (pip install rlx-xla)."
        )
    return DeviceError(
        f"device {kind.title} is not available — enable the `{kind.feature}` Cargo feature: that "
        f"is RLX's own; XLA does not reach it; registered: {listing}. Install a PJRT plugin named "
        f"{plain!r}, or register a backend with rlx.register_backend({plain!r}, ...)."
    )


def _is_xla(kind: DeviceKind | None) -> bool:
    return kind is not None and kind.reach == "xla"
