"""Running compiled modules: devices, loaded executables, the persistent compile cache."""

from __future__ import annotations

from rlx_xla.runtime import allocator
from rlx_xla.runtime.allocator import keep_large_buffers as keep_large_buffers
from rlx_xla.runtime.arguments import BufferType as BufferType
from rlx_xla.runtime.client import available_devices as available_devices
from rlx_xla.runtime.client import find_device as find_device
from rlx_xla.runtime.client import from_device as from_device
from rlx_xla.runtime.client import to_device as to_device
from rlx_xla.runtime.executable import LoadedExecutable as LoadedExecutable

allocator.apply_environment()  # before anything here starts XLA's CPU, which is too late for it
