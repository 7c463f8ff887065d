"""``jax.export``: symbolic dimensions and artifacts as StableHLO modules."""

from __future__ import annotations

import importlib.util
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
from jax import export as _export

from rlx.errors import FormatError, TraceError
from rlx.ir.foreign_files import wrong_file
from rlx_xla._jax_compat import mlir

Exported = _export.Exported

_SEAL = struct.Struct("<12sI")
_SEAL_MARK = b"rlx-xla crc:"
_PORTABLE = b"StableHLO_v"
"""What a module in a portable artifact begins with, behind its magic number."""


def export_function(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    platforms: Sequence[str] | None = None,
    allow_custom_calls: Sequence[str] = (),
) -> Exported:
    """Trace and lower a function for platforms that need not be here.

    Args:
        fn: a JAX function.
        args: pytrees of arrays or ``jax.ShapeDtypeStruct``, symbolic dims included.
        kwargs: keyword arguments, the same.
        platforms: ``cpu``, ``cuda``, ``rocm``, ``tpu``; the default backend's if None.
        allow_custom_calls: targets of custom calls that may pass although JAX does not promise
            to keep them stable.

    Raises:
        TraceError: JAX cannot export the function (callbacks, say).
    """
    try:
        return _export.export(
            jax.jit(fn, keep_unused=True),
            platforms=None if platforms is None else tuple(platforms),
            disabled_checks=[
                _export.DisabledSafetyCheck.custom_call(target) for target in allow_custom_calls
            ],
        )(*args, **(kwargs or {}))
    except (NotImplementedError, ValueError) as error:
        where = ", ".join(platforms) if platforms else "this platform"
        raise TraceError(
            f"export: the function must be exportable for {where}; JAX says: {error}. "
            "Remove callbacks and effects, or export the graph instead."
        ) from error


def exported_module(exported: Exported, context: mlir.ir.Context | None = None) -> mlir.ir.Module:
    """Return the StableHLO module of an artifact made in this process or another trusted one."""
    return mlir.from_portable(exported.mlir_module_serialized, context)


def serialize_exported(exported: Exported) -> bytes:
    """Return an artifact's bytes.

    Raises:
        FormatError: the package ``flatbuffers`` is missing.
    """
    _require_flatbuffers()
    return bytes(exported.serialize())


def deserialize_exported(data: bytes) -> Exported:
    """Read a trusted artifact.

    Raises:
        FormatError: the bytes are not an artifact, or ``flatbuffers`` is missing.
    """
    _require_flatbuffers()
    try:
        return _export.deserialize(bytearray(data))
    except (ValueError, AssertionError, TypeError, LookupError, struct.error) as error:
        raise FormatError(
            f"export: the bytes must be a jax.export artifact; reading them failed: {error!r}. "
            "Write it again with rlx_xla.export or jax.export."
        ) from error


def sealed(data: bytes) -> bytes:
    """The bytes of a ``jax.export`` file with a checksum behind them, which JAX does not read."""
    return data + _SEAL.pack(_SEAL_MARK, zlib.crc32(data))


@final
@dataclass(frozen=True)
class Reading:
    """Who reads a file, for messages.

    Attributes:
        where: the function that was called.
        wanted: what it takes, with its article.
        what: the file, in words.
    """

    where: str
    wanted: str
    what: str

    def damaged(self, found: str) -> FormatError:
        """An error for a program that was exported, and is no longer whole."""
        return FormatError(
            f"{self.where} [file]: {self.wanted} is required; {self.what} is damaged: {found}. "
            "Write it again.",
            label="file",
        )


FOREIGN = Reading(
    "from_stablehlo",
    "StableHLO text, MLIR bytecode, a portable artifact or a jax.export file",
    "what was given",
)


def read_artifact(data: bytes, reading: Reading = FOREIGN) -> tuple[bytes, tuple[str, ...]]:
    """Take the module out of a foreign artifact; nothing in the file is executed.

    Args:
        data: the bytes of a ``jax.export`` file.
        reading: who reads it, for messages.

    Returns:
        The portable StableHLO artifact inside, and the platforms it was made for.

    Raises:
        FormatError: the bytes are not such a file, or ``flatbuffers`` is missing.
    """
    _require_flatbuffers()
    if len(data) >= _SEAL.size:
        mark, wanted = _SEAL.unpack_from(data, len(data) - _SEAL.size)
        if mark == _SEAL_MARK and zlib.crc32(memoryview(data)[: -_SEAL.size]) != wanted:
            raise reading.damaged("its checksum is that of other bytes")
    from jax._src.export import serialization_generated as generated

    try:
        root: Any = generated.Exported.GetRootAsExported(bytearray(data), 0)
        found = root.MlirModuleSerializedAsNumpy()
        module = b"" if isinstance(found, int) else found.tobytes()
        count = min(root.PlatformsLength(), 16)
        platforms = tuple(root.Platforms(i).decode() for i in range(count))
    except (struct.error, ValueError, TypeError, LookupError, OverflowError):
        module, platforms = b"", ()
    if not module.startswith(mlir.BYTECODE_MAGIC):
        if _PORTABLE in data:
            raise reading.damaged(f"its {len(data)} bytes do not hold what their lengths say")
        raise wrong_file(reading.where, reading.wanted, reading.what, data, "Export it again.")
    return module, platforms


def prepare_custom_call(target: str) -> None:
    """Load what a custom call's code needs: without it LAPACK's targets crash on the CPU."""
    if target.startswith(("lapack_", "blas_")):
        from jaxlib.cpu import _lapack

        _lapack.initialize()


def _require_flatbuffers() -> None:
    if importlib.util.find_spec("flatbuffers") is None:
        raise FormatError(
            "export: artifacts need the package flatbuffers, which JAX does not install; it is "
            "missing. Run: pip install flatbuffers."
        )
