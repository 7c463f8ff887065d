"""What a backend is, and how one is found for a device name.

A backend is found through the entry-point group ``rlx.backends`` at the first use of a device
name, or registered with ``register_backend``. ``interpret`` is the NumPy backend of RLX itself.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, final

from rlx.errors import DeviceError, did_you_mean
from rlx.ir.graph import Node
from rlx.ir.plan import Implementation, Lir, Refusals
from rlx.options.compile import CompileOptions
from rlx.signature import Signature
from rlx.types import TensorType


class AbstractExecutable(abc.ABC):
    """A compiled static graph on one device.

    Attributes:
        fast_call: takes one value per graph input in order (host arrays or device arrays),
            resident inputs left out; returns a list of device arrays, one per output.
        phases: seconds by phase: ``lower``, ``xla``.
    """

    fast_call: Callable[..., list[Any]]
    phases: Mapping[str, float]

    @abc.abstractmethod
    def caller(self, signature: Signature) -> Callable[..., Any]:
        """Return a function of the caller's arguments that gives the caller's structure."""

    @abc.abstractmethod
    def bind(self, params: Mapping[str, Any]) -> None:
        """Bind device arrays to params, all at once for calls that start afterwards.

        Resident inputs (``CompileOptions.resident``) are set in the same way.
        """

    @abc.abstractmethod
    def resident(self) -> dict[str, Any]:
        """Device arrays of the resident inputs that have a value, by name."""

    @abc.abstractmethod
    def clone(self) -> AbstractExecutable:
        """The same compiled program with nothing bound."""

    @abc.abstractmethod
    def stablehlo(self) -> str:
        """The program as text."""

    @abc.abstractmethod
    def cost(self) -> dict[str, float]:
        """Estimates by name, such as ``flops`` and ``bytes accessed``."""

    @abc.abstractmethod
    def memory(self) -> dict[str, int]:
        """Bytes: ``argument``, ``output``, ``temp``, ``code``."""


class AbstractBackend(abc.ABC):
    """A way to compile for one device.

    Attributes:
        device: name of the device, such as ``cuda:1``.
        platform: the device's kind, such as ``cuda``.
    """

    device: str
    platform: str

    @abc.abstractmethod
    def choose(self, node: Node, options: CompileOptions) -> Implementation | Refusals:
        """Choose how a node is carried out."""

    @abc.abstractmethod
    def compile(
        self, lir: Lir, signature: Signature, options: CompileOptions
    ) -> AbstractExecutable:
        """Compile a static graph in which nothing is left to decide."""

    @abc.abstractmethod
    def to_device(self, value: Any, type_: TensorType) -> Any:
        """Put a host or device array of exactly this type on the device; dtypes are kept."""

    @abc.abstractmethod
    def from_device(self, value: Any) -> Any:
        """A device array as a NumPy array."""

    @abc.abstractmethod
    def is_ready(self, value: Any) -> bool:
        """Whether a device array has been computed, so that reading it does not wait."""


@final
@dataclass(frozen=True)
class _Unreachable:
    """A device that RLX knows and that XLA does not reach."""

    title: str


_UNREACHABLE = {
    "metal": _Unreachable("Metal"), "mlx": _Unreachable("MLX"), "ane": _Unreachable("ANE"),
    "wgpu": _Unreachable("GPU (wgpu)"), "vulkan": _Unreachable("Vulkan"),
    "opengl": _Unreachable("OpenGl"), "directx": _Unreachable("DirectX"),
    "webgpu": _Unreachable("WebGpu"), "oneapi": _Unreachable("OneApi"),
    "xdna": _Unreachable("Xdna"), "egpu": _Unreachable("Egpu"),
    "hexagon": _Unreachable("Hexagon"), "qnn": _Unreachable("QNN"),
}  # fmt: skip

_XLA_DEVICES = ("cpu", "cuda", "gpu", "rocm", "tpu")
"""Names that the package rlx-xla registers where it is installed."""

Factory = Callable[[str], AbstractBackend]
_FACTORIES: dict[str, Factory] = {}


def register_backend(device: str, factory: Factory) -> None:
    """Make a device name known; replaces an earlier factory of that name.

    Args:
        device: the name without an index: ``"cuda"``.
        factory: called with the full name (``"cuda:1"``); returns the backend.
    """
    _FACTORIES[device] = factory


def registered_devices() -> list[str]:
    """Device names that have a backend, whether or not such a device is attached."""
    return sorted({*_FACTORIES, "interpret", *(p.name for p in entry_points(group="rlx.backends"))})


def available_devices() -> list[str]:
    """Names of the devices that can be used here and now."""
    found: list[str] = []
    for name in registered_devices():
        try:
            backend_for(name)
        except DeviceError:
            continue
        found.append(name)
    return found


def backend_for(device: str) -> AbstractBackend:
    """Return the backend of a device name.

    Raises:
        DeviceError: the name is unknown, or no such device is attached; the available are listed.
    """
    if not isinstance(device, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DeviceError(f"device: a name such as 'cpu' or 'cuda:1' is required; got {device!r}.")
    kind = device.partition(":")[0].lower()
    factory = _FACTORIES.get(kind)
    if factory is None:
        factory = _find(kind)
    if factory is None:
        raise _unknown(device, kind)
    return factory(device.lower())


def _find(kind: str) -> Factory | None:
    if kind == "interpret":
        from rlx.numpy_backend import create

        _FACTORIES[kind] = create
        return create
    for point in entry_points(group="rlx.backends", name=kind):
        factory: Factory = point.load()
        _FACTORIES[kind] = factory
        return factory
    return None


def _unknown(device: str, kind: str) -> DeviceError:
    known = registered_devices()
    listing = ", ".join(known)
    if kind in _UNREACHABLE:
        return DeviceError(
            f"device {_UNREACHABLE[kind].title} is not available — XLA does not reach it; "
            f"registered: {listing}. Register a backend for it with rlx.register_backend, or "
            "install a PJRT plugin."
        )
    if kind in _XLA_DEVICES:
        return DeviceError(
            f"no backend registered for device {device!r}; registered: {listing}. "
            "Install rlx-xla, which registers XLA's devices (pip install rlx-xla)."
        )
    names = [*known, *_XLA_DEVICES, *_UNREACHABLE]
    return DeviceError(
        f"no backend registered for device {device!r}; registered: {listing}."
        f"{did_you_mean(kind, names)} Add one with rlx.register_backend."
    )
