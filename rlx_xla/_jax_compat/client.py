"""Compile, load, execute: XLA's client as jaxlib 0.7.2 to 0.12 expose it.

Every XLA compile of the project goes through ``compile_module``.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.core
import jax.monitoring
import numpy as np
from jax._src import array as _array
from jax._src import compilation_cache as _compilation_cache
from jax._src import compiler as _compiler
from jax._src import config as _config
from jax._src import dispatch as _dispatch
from jax._src import profiler as _profiler
from jax._src import xla_bridge as _xla_bridge
from jax._src.interpreters import pxla as _pxla
from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]
from jaxlib.version import __version__ as _jaxlib_version

from rlx.errors import CompileError, also
from rlx_xla._jax_compat.culprit import find_culprit
from rlx_xla._jax_compat.mlir import ir, main_types

if TYPE_CHECKING:
    Device: TypeAlias = Any
else:
    Device = jax.Device
ArrayImpl = _array.ArrayImpl
JaxRuntimeError = jax.errors.JaxRuntimeError
BACKEND_COMPILE_EVENT: str = _dispatch.BACKEND_COMPILE_EVENT

DEBUG_NANS = _config.debug_nans
"""``.value`` is True where JAX checks every result for NaN, in this thread."""

DEBUG_INFS = _config.debug_infs
"""``.value`` is True where JAX checks every result for infinities, in this thread."""

PROFILE_STATE: Any = _profiler._profile_state
PROFILE_FIELD: str | None = next(
    (name for name in ("profile_session", "session") if name in vars(PROFILE_STATE)), None
)
"""The field of PROFILE_STATE that is not None while ``jax.profiler`` records."""


_LOG = logging.getLogger(_pxla.__name__)
"""Where JAX says what it compiles; ``jax_log_compiles`` makes a warning of it."""

_HITS = threading.local()


def _count_hits(event: str, **_: Any) -> None:
    if event == "/jax/compilation_cache/cache_hits":
        _HITS.count = cache_hits() + 1


jax.monitoring.register_event_listener(_count_hits)


def cache_hits() -> int:
    """Return how many programs JAX's persistent cache gave this thread in place of a compile.

    On CPUs such a program serialises without its code: what is made of that does not run.
    """
    return getattr(_HITS, "count", 0)


def backend_platforms() -> list[str]:
    """Return the platforms whose backends start here, the default one first: ``["cpu"]``."""
    default = jax.default_backend()
    names = {device.client.platform: None for device in jax.devices()}
    names.update(dict.fromkeys(_xla_bridge.backends()))
    return [default, *(name for name in names if name != default)]


def has_started() -> bool:
    """Tell whether a backend of JAX has started in this process."""
    return bool(_xla_bridge.backends_are_initialized())


def x64_enabled() -> bool:
    """Tell whether JAX makes 64-bit values in this thread."""
    return bool(_config.enable_x64.value)


def compilation_cache_directory() -> str | None:
    """Return the directory of JAX's persistent compilation cache, or None when it is off."""
    return _config.compilation_cache_dir.value or None


def least_cached_seconds() -> float:
    """Return how long a compile takes, in seconds, before JAX's cache keeps its program."""
    return float(_config.persistent_cache_min_compile_time_secs.value)


@contextlib.contextmanager
def without_cache() -> Iterator[None]:
    """Leave JAX's persistent compilation cache alone: nothing is read, nothing written."""
    before = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    _compilation_cache.reset_cache()  # it remembers whether it is used
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        _compilation_cache.reset_cache()


def compile_options_digest(device: Device, compiler_options: Mapping[str, Any] | None) -> str:
    """Return a digest of all options of a compile, those of XLA_FLAGS included."""
    options = _compile_options(device, compiler_options).SerializeAsString()
    return hashlib.sha256(options).hexdigest()[:16]


def settings_digest() -> str:
    """Return a digest of JAX's settings, those of its cache and its logs left out.

    What a function traces to may depend on any of them, in this thread.
    """
    quiet = ("cache", "log", "dump")
    found = {k: v for k, v in jax.config.values.items() if not any(word in k for word in quiet)}
    context: list[Any] = list(_config.trace_context())
    while context and (context[-1] is None or context[-1] is False):
        context.pop()  # settings that JAX 0.12 adds when it loads Pallas
    text = f"{sorted(found.items(), key=str)} {context}"
    text = re.sub(r" at 0x[0-9a-f]+", "", text)  # an object of JAX's that has no text of its own
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hot_path_problem() -> str | None:
    """Return why raw execution cannot be used with this jaxlib, or None when it can."""
    needed = {
        "LoadedExecutable.execute_sharded": getattr(_jax, "LoadedExecutable", None),
        "ExecuteResults.consume_with_handlers": getattr(_jax, "ExecuteResults", None),
        "ArrayImpl.aval": ArrayImpl,
        "ArrayImpl.sharding": ArrayImpl,
        "ArrayImpl._committed": ArrayImpl,
    }
    missing = [name for name, owner in needed.items() if not hasattr(owner, name.rsplit(".", 1)[1])]
    missing += [name for name in ("DeviceList", "batched_device_put") if not hasattr(_jax, name)]
    if missing:
        return f"jaxlib {_jaxlib_version} lacks {', '.join(missing)}"
    return None


def compile_module(
    module: ir.Module,
    device: Device,
    *,
    name: str,
    compiler_options: Mapping[str, Any] | None = None,
    host_callbacks: Sequence[Any] = (),
) -> Any:
    """Compile a StableHLO module for one device and load it.

    The compile is recorded as JAX records its own: the ``jax.monitoring`` event
    ``/jax/core/compile/backend_compile_duration`` in seconds, a log line under
    ``jax_log_compiles``, and a look into JAX's persistent compilation cache where that is on.

    Args:
        module: a module with a function ``main``; it gets the symbol name ``name``.
        device: where it will run.
        name: shown in logs, profiles and events; part of the cache key.
        compiler_options: XLA flags by name, typed as Python values.
        host_callbacks: callbacks that the module calls, in order.

    Returns:
        The loaded executable.

    Raises:
        CompileError: XLA refuses the module (the op and its source line are named where that op
            is refused alone too), or an option is unknown.
    """
    try:
        options = _compile_options(device, compiler_options)
        return _compile(module, device, name, options, host_callbacks)
    except (JaxRuntimeError, ValueError, ir.MLIRError) as error:
        raise also(CompileError, type(error))(
            f"compile {name}: XLA must accept the module for {device}; XLA says: {error}. "
            f"{_where(module, device, name, str(error))}"
        ) from error


def _compile(
    module: ir.Module, device: Device, name: str, options: Any, host_callbacks: Sequence[Any]
) -> Any:
    with module.context:
        module.operation.attributes["sym_name"] = ir.StringAttr.get(name)
    level = logging.WARNING if _config.log_compiles.value else logging.DEBUG
    if _LOG.isEnabledFor(level):
        arguments = ", ".join(f"{d}[{','.join(map(str, s))}]" for d, s in main_types(module)[0])
        _LOG.log(level, "Compiling %s with global shapes and types [%s].", name, arguments)
    with _dispatch.log_elapsed_time(
        "Finished XLA compilation of {fun_name} in {elapsed_time:.9f} sec",
        fun_name=name,
        event=BACKEND_COMPILE_EVENT,
    ):
        return _compiler.compile_or_get_cached(
            device.client,
            module,
            np.array([device], dtype=object),
            options,
            tuple(host_callbacks),
            _jax.DeviceList((device,)),
        )


def _where(module: ir.Module, device: Device, name: str, message: str) -> str:
    """Name the op and line that XLA refuses, with what to do."""

    def refusal(alone: ir.Module) -> str | None:
        try:
            _compile(alone, device, f"{name}_alone", _compile_options(device, None), ())
        except (JaxRuntimeError, ValueError, ir.MLIRError) as error:
            return str(error)
        return None

    found = find_culprit(module, message, refusal)
    if found is None:
        return (
            "No op of it is refused alone: compile parts of the graph to find which ones are "
            "refused together, and leave out compiler_options if any were given."
        )
    return f"The op refused is {found}. Replace it, or compile for another device."


def _compile_options(device: Device, compiler_options: Mapping[str, Any] | None) -> Any:
    return _compiler.get_compile_options(
        num_replicas=1,
        num_partitions=1,
        device_assignment=np.array([[device]], dtype=object),
        env_options_overrides=dict(compiler_options) if compiler_options else None,
        backend=device.client,
    )


def serialize_executable(executable: Any, device: Device) -> bytes:
    """Return XLA's own serialisation of a compiled program, for this jaxlib and machine only.

    Raises:
        CompileError: the platform cannot serialise executables.
    """
    try:
        if hasattr(executable, "serialize"):
            return executable.serialize()
        return device.client.serialize_executable(executable)
    except (JaxRuntimeError, ValueError) as error:
        raise CompileError(
            f"serialize: the platform {device.platform} must support it; XLA says: {error}. "
            "Save the graph instead and compile it where it runs."
        ) from error


def deserialize_executable(blob: bytes, device: Device) -> Any:
    """Load what ``serialize_executable`` gave. The bytes must be trusted: they hold code.

    Raises:
        CompileError: the bytes are damaged, or from another jaxlib or machine.
    """
    options = _compile_options(device, None)
    try:
        return device.client.deserialize_executable(blob, _jax.DeviceList((device,)), options)
    except (JaxRuntimeError, ValueError) as error:
        raise CompileError(
            f"deserialize: the bytes must be an executable for {device}; XLA says: {error}. "
            "Compile the graph again."
        ) from error


def asked_for() -> contextlib.AbstractContextManager[None]:
    """Inside, transfers are explicit ones to JAX's transfer guard.

    They are what the caller asked for by name, or what the library does on its own account: JAX
    does not refuse them under ``"disallow"``, as it does not refuse ``jax.device_put``.
    """
    return _NOTHING if all(guard.value is None for guard in _GUARDS) else _explicit()


@contextlib.contextmanager
def _explicit() -> Iterator[None]:
    with _config.explicit_device_put_scope(), _config.explicit_device_get_scope():
        yield


_NOTHING = contextlib.nullcontext()
_GUARDS = (
    _config.transfer_guard_host_to_device,
    _config.transfer_guard_device_to_host,
    _config.transfer_guard_device_to_device,
)


def single_device_sharding(device: Device) -> Any:
    """Return the sharding of arrays that live whole on one device."""
    return jax.sharding.SingleDeviceSharding(device)


def shaped_array(shape: Sequence[int], dtype: np.dtype, *, weak_type: bool = False) -> Any:
    """Return the aval of an array; 64-bit dtypes stay, whatever ``jax_enable_x64`` says."""
    return jax.core.ShapedArray(tuple(shape), np.dtype(dtype), weak_type=weak_type)


def result_handler(aval: Any, sharding: Any, *, committed: bool) -> Any:
    """Return the C++ handler that turns one result buffer into a ``jax.Array``."""
    return _pxla.global_aval_to_result_handler(aval, sharding, committed)


def put(
    value: np.ndarray, aval: Any, sharding: Any, device: Device, *, committed: bool, alias: bool
) -> jax.Array:
    """Copy (or alias) a host array to a device, whatever ``jax_enable_x64`` says.

    JAX's transfer guard applies as to an argument of ``jax.jit``, outside of ``asked_for``.

    Args:
        value: a host array of the aval's shape and dtype.
        aval: its aval, see ``shaped_array``.
        sharding: its sharding, see ``single_device_sharding``.
        device: the device.
        committed: whether the result is tied to its device.
        alias: let the result use the host array's memory where it can; the array must not be
            changed as long as the result lives.
    """
    semantics = _jax.HostBufferSemantics
    return _jax.batched_device_put(
        aval,
        sharding,
        [value],
        [device],
        committed,
        host_buffer_semantics=(
            semantics.ZERO_COPY if alias else semantics.IMMUTABLE_UNTIL_TRANSFER_COMPLETES
        ),
        enable_x64=True,
    )


def putter(device: Device, *, committed: bool) -> Callable[[np.ndarray, Any], jax.Array]:
    """Return ``put(host array, aval)`` with everything else fixed; aliases as ``jax.jit`` does."""
    place = _jax.batched_device_put
    sharding, devices = single_device_sharding(device), [device]
    semantics = _jax.HostBufferSemantics.ZERO_COPY

    def put_host(value: np.ndarray, aval: Any) -> jax.Array:
        return place(aval, sharding, [value], devices, committed, False, semantics, True)

    return put_host


def uncommitted(array: jax.Array) -> jax.Array:
    """Return an array on one device as one that is free to move; nothing is copied."""
    parts = [shard.data for shard in array.addressable_shards]
    return ArrayImpl(array.aval, array.sharding, parts, committed=False, _skip_checks=True)


def is_only_device() -> bool:
    """Tell whether this process sees one device of one platform and no other."""
    backends = _xla_bridge.backends()
    return len(backends) == 1 and jax.device_count() == 1


def executor_with_tokens(executable: Any, device: Device) -> Callable[[list[Any], Any], list[Any]]:
    """Return ``run(buffers, handlers)`` for a program with side effects.

    Its end becomes known to JAX, so that ``jax.effects_barrier`` waits for it.
    """

    def run(buffers: list[Any], handlers: Any) -> list[Any]:
        results = executable.execute_sharded(buffers, with_tokens=True)
        token = results.consume_token()
        _dispatch.runtime_tokens.set_output_runtime_token(device, token.get_token(0))
        return results.consume_with_handlers(handlers)

    return run


def cost_analysis(executable: Any) -> dict[str, float]:
    """Return XLA's own cost estimate by its property names, empty where it has none."""
    try:
        cost = executable.cost_analysis()
    except (JaxRuntimeError, NotImplementedError):
        return {}
    if isinstance(cost, list):
        cost = cost[0] if cost else {}
    return dict(cost)


def memory_analysis(executable: Any) -> dict[str, int]:
    """Return bytes: argument, output, alias, temp, code; empty where XLA does not say."""
    try:
        stats = executable.get_compiled_memory_stats()
    except (JaxRuntimeError, NotImplementedError):
        return {}
    return {
        "argument": int(stats.argument_size_in_bytes),
        "output": int(stats.output_size_in_bytes),
        "alias": int(stats.alias_size_in_bytes),
        "temp": int(stats.temp_size_in_bytes),
        "code": int(stats.generated_code_size_in_bytes),
    }


def optimized_hlo(executable: Any) -> str:
    """Return the text of the HLO that XLA made of a module."""
    return "\n".join(module.to_string() for module in executable.hlo_modules())
