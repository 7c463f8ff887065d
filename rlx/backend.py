"""What a backend is, and how one is found for a device name.

A backend is found through the entry-point group ``rlx.backends`` at the first use of a device
name, or registered with ``register_backend``. An entry point has the device's name and names a
function of the full device name (``cuda:1``) that returns the backend; one called ``*`` names a
function that returns such functions by device name. ``interpret`` is the NumPy backend of RLX.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from rlx.device_names import split, unregistered
from rlx.dtypes import DType
from rlx.errors import DeviceError, RegistryError, RunError
from rlx.ir.graph import Node
from rlx.ir.op import Op
from rlx.ir.plan import Implementation, Lir, Refusals
from rlx.options.compile import CompileOptions
from rlx.sharding import Sharding
from rlx.signature import Signature
from rlx.types import TensorType


class AbstractExecutable(abc.ABC):
    """A compiled static graph on one device.

    Attributes:
        fast_call: takes one value per graph input in order (host arrays or device arrays),
            resident inputs left out; returns a list of device arrays, one per output.
        phases: seconds by phase: ``lower``, ``xla``.
        decisions: what the backend chose by itself for this program, each with its reason.
    """

    fast_call: Callable[..., list[Any]]
    phases: Mapping[str, float]
    decisions: Sequence[str] = ()

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
    def stablehlo(self, *, kernels: bool = False) -> str:
        """The program as text; with ``kernels`` as it was compiled, else as others can read it."""

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
        lacks: dtypes that it does not compute in; a precision policy keeps f32 for them.
    """

    device: str
    platform: str
    lacks: frozenset[DType] = frozenset()

    @abc.abstractmethod
    def claims(self, op: type[Op]) -> bool:
        """Whether there is a way to carry out an op, for some attributes and types."""

    def has_kernels(self, op: type[Op]) -> bool:
        """Whether there are kernels for an op, for some attributes and types."""
        del op
        return True

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

    def spread(self, value: Any, type_: TensorType, sharding: Sharding) -> Any:
        """Put an array on the devices of a mesh; a backend with one device puts it there whole."""
        del sharding
        return self.to_device(value, type_)

    def part_to_device(self, part: Any, whole: Any, type_: TensorType) -> Any:
        """Put a host array on the device that was cut out of ``whole``, a device array.

        A backend whose arrays know more than their type passes it on here.
        """
        del whole
        return self.to_device(part, type_)

    @abc.abstractmethod
    def from_device(self, value: Any) -> Any:
        """A device array as a NumPy array."""

    def asked_for(self) -> contextlib.AbstractContextManager[None]:
        """Entered while a caller's inputs by name are put on the device, as asked for.

        A backend that can be told to refuse transfers lets these pass.
        """
        return contextlib.nullcontext()

    def is_traced(self, value: Any) -> bool:
        """Whether a value is no array yet, but stands for one while a function is traced."""
        del value
        return False

    def resized(
        self, value: Any, split: Sequence[int], kept: Sequence[int], shape: Sequence[int]
    ) -> Any:
        """A traced value in other sizes; needed where ``is_traced`` may say yes.

        Args:
            value: what is traced.
            split: sizes that it is reshaped to first.
            kept: sizes that each of these axes is cut, or extended with zeros, to.
            shape: sizes that the result is reshaped to.
        """
        del split, kept
        raise RunError(
            f"call on {self.device}: arrays are required; got {type(value).__name__} for one of "
            f"{list(shape)}. Call it with arrays."
        )

    @abc.abstractmethod
    def is_ready(self, value: Any) -> bool:
        """Whether a device array has been computed, so that reading it does not wait."""


Factory = Callable[[str], AbstractBackend]
_FACTORIES: dict[str, Factory] = {}
_GROUP = "rlx.backends"
_ANY = "*"
"""Name of entry points whose function tells at run time which devices it has."""


def register_backend(device: str, factory: Factory) -> None:
    """Make a device name known; replaces an earlier factory of that name.

    Args:
        device: the name without an index: ``"cuda"``; an alias of RLX's stands for its device.
        factory: called with the full name (``"cuda:1"``); returns the backend.

    Raises:
        RegistryError: the name holds an index, or the factory cannot be called.
    """
    plain, index = split(device)
    if index or ":" in device or plain == _ANY:
        raise RegistryError(
            f"register_backend: a device name without an index is required; got {device!r}. "
            f"Register {plain!r}; the factory gets the index."
        )
    if not callable(factory):
        raise RegistryError(
            f"register_backend: a function of the device's name is required for {device!r}; got "
            f"{type(factory).__name__}."
        )
    _FACTORIES[plain] = factory


def registered_devices() -> list[str]:
    """Device names that have a backend, whether or not such a device is attached.

    The platforms of PJRT plugins are known once one of them was used; ``available_devices``
    looks for them.
    """
    named = {p.name for p in entry_points(group=_GROUP)} - {_ANY}
    return sorted({*_FACTORIES, "interpret", *named})


def available_devices() -> list[str]:
    """Names of the devices that can be used here and now, those of PJRT plugins included."""
    found: list[str] = []
    try:
        plugins = _discovered()
    except DeviceError:  # a package that does not load brings no device
        plugins = {}
    for name in sorted({*registered_devices(), *plugins}):
        try:
            backend_for(name)
        except DeviceError:
            continue
        found.append(name)
    return found


def backend_for(device: str) -> AbstractBackend:
    """Return the backend of a device name, in any of its spellings.

    Raises:
        DeviceError: the name is unknown, or no such device is attached; the available are listed.
        RegistryError: two packages bring a backend for the name, or what was registered gives
            none.
    """
    plain, index = split(device)
    factory = _FACTORIES.get(plain) or _find(plain)
    if factory is None:
        raise unregistered(device, registered_devices())
    full = f"{plain}:{index}" if index else plain
    made = factory(full)
    if not isinstance(cast("object", made), AbstractBackend):
        raise RegistryError(
            f"device {full!r}: its factory is required to return an rlx.backend.AbstractBackend; "
            f"got {type(made).__name__}. Correct what register_backend was given."
        )
    return made


def _find(name: str) -> Factory | None:
    if name == "interpret":
        from rlx.numpy_backend import create

        return _FACTORIES.setdefault(name, create)
    points = list({p.value: p for p in entry_points(group=_GROUP, name=name)}.values())
    if len(points) > 1:
        listing = ", ".join(f"{p.value} ({_package(p)})" for p in points)
        raise RegistryError(
            f"device {name!r}: one backend is required; entry points bring {listing}. Uninstall "
            "one, or choose with rlx.register_backend."
        )
    factory = _load(points[0]) if points else _discovered().get(name)
    return None if factory is None else _FACTORIES.setdefault(name, factory)


def _discovered() -> dict[str, Factory]:
    """Devices that packages find at run time: the platforms of PJRT plugins."""
    found: dict[str, Factory] = {}
    for point in entry_points(group=_GROUP, name=_ANY):
        found.update(_load(point)())
    return found


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise DeviceError(
            f"device {point.name!r}: its backend {point.value} of {_package(point)} does not load: "
            f"{error}. Reinstall that package."
        ) from error


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown package"
