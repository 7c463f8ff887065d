"""MLIR as jaxlib ships it: contexts, types, text, bytecode and portable artifacts."""

from __future__ import annotations

import functools
import io
import threading
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from jax._src.interpreters import mlir as _mlir
from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]
from jaxlib.mlir import ir as ir
from jaxlib.mlir import passmanager as _passmanager
from jaxlib.mlir.dialects import chlo as chlo
from jaxlib.mlir.dialects import func as func
from jaxlib.mlir.dialects import sdy as sdy
from jaxlib.mlir.dialects import stablehlo as stablehlo

from rlx.errors import CompileError, DTypeError

# jax.extend has all of these; importing it loads Pallas, 0.8 MiB.
_bindings: Any = _jax.mlir

BYTECODE_MAGIC = b"ML\xefR"

MLIR_NAMES: dict[str, str] = {
    "bool": "i1",
    **{f"int{n}": f"i{n}" for n in (2, 4, 8, 16, 32, 64)},
    **{f"uint{n}": f"ui{n}" for n in (2, 4, 8, 16, 32, 64)},
    "bfloat16": "bf16",
    **{f"float{n}": f"f{n}" for n in (16, 32, 64)},
    "complex64": "complex<f32>",
    "complex128": "complex<f64>",
    "float4_e2m1fn": "f4E2M1FN",
    "float6_e2m3fn": "f6E2M3FN",
    "float6_e3m2fn": "f6E3M2FN",
    "float8_e3m4": "f8E3M4",
    "float8_e4m3": "f8E4M3",
    "float8_e4m3b11fnuz": "f8E4M3B11FNUZ",
    "float8_e4m3fn": "f8E4M3FN",
    "float8_e4m3fnuz": "f8E4M3FNUZ",
    "float8_e5m2": "f8E5M2",
    "float8_e5m2fnuz": "f8E5M2FNUZ",
    "float8_e8m0fnu": "f8E8M0FNU",
}
"""NumPy or ml_dtypes dtype name → MLIR element type as written in text."""

_NUMPY_DTYPES: dict[str, np.dtype] = {
    spelled: np.dtype(getattr(ml_dtypes, name, name)) for name, spelled in MLIR_NAMES.items()
}


def new_context() -> ir.Context:
    """Return a fresh context with func, stablehlo, chlo, sdy and the builtin dialects loaded.

    From 0.12 on ``make_ir_context`` gives a thread the same one several times.
    """
    made: ir.Context = getattr(_mlir, "_create_ir_context", _mlir.make_ir_context)()
    return made


_MOST_USES = 16
_MOST_IDLE = 2
_MOST_BYTES = 1 << 18
_idle: list[tuple[ir.Context, int]] = []
_idle_lock = threading.Lock()


def borrowed_context() -> tuple[ir.Context, int]:
    """Return a context that has one borrower at a time, and how many it had; see ``give_back``.

    To load the dialects takes 1.5 ms, a third of what the lowering of a small model does.
    """
    with _idle_lock:
        if _idle:
            return _idle.pop()
    return new_context(), 0


def give_back(borrowed: tuple[ir.Context, int], size: int) -> None:
    """Let others borrow a context, whose module of so many bytes nobody needs any more.

    A context keeps every type and constant that it ever met: after some modules, and after a
    large one, it goes.
    """
    context, uses = borrowed
    with _idle_lock:
        if uses + 1 < _MOST_USES and size <= _MOST_BYTES and len(_idle) < _MOST_IDLE:
            _idle.append((context, uses + 1))


def mlir_name(dtype: np.dtype | type | str) -> str:
    """Return how MLIR writes a dtype: ``float32`` → ``f32``, ``uint8`` → ``ui8``.

    Raises:
        DTypeError: XLA has no such element type.
    """
    name = np.dtype(dtype).name
    spelled = MLIR_NAMES.get(name)
    if spelled is None:
        raise DTypeError(
            f"mlir: dtype must be one that XLA has; got {name}. Use one of {', '.join(MLIR_NAMES)}."
        )
    return spelled


def numpy_dtype(element_type: ir.Type) -> np.dtype:
    """Return the NumPy or ml_dtypes dtype of an MLIR element type.

    Raises:
        DTypeError: there is no NumPy dtype for it (a quantised type, say).
    """
    dtype = _NUMPY_DTYPES.get(str(element_type))
    if dtype is None:
        raise DTypeError(
            f"mlir: element type must have a NumPy dtype; got {element_type}. "
            f"Use one of {', '.join(_NUMPY_DTYPES)}."
        )
    return dtype


def element_type(dtype: np.dtype | type | str, context: ir.Context | None = None) -> ir.Type:
    """Return the MLIR element type of a dtype, in ``context`` or the current one."""
    return ir.Type.parse(mlir_name(dtype), context)


def tensor_type(
    shape: Sequence[int], dtype: np.dtype | type | str, context: ir.Context | None = None
) -> ir.RankedTensorType:
    """Return ``tensor<shape x dtype>``; all sizes are static, in elements."""
    return ir.RankedTensorType(ir.Type.parse(tensor_type_text(shape, dtype), context))


def tensor_type_text(shape: Sequence[int], dtype: np.dtype | type | str) -> str:
    """Return the text of a tensor type: ``tensor<8x64xf32>``."""
    sizes = "".join(f"{int(size)}x" for size in shape)
    return f"tensor<{sizes}{mlir_name(dtype)}>"


def parse_module(source: str | bytes, context: ir.Context | None = None) -> ir.Module:
    """Parse and verify a StableHLO module from text or MLIR bytecode.

    Bytecode must come from this process or another trusted one: a damaged one can crash the
    parser. Files go through text.

    Args:
        source: text, or bytecode, or text as bytes.
        context: where the module lives; a fresh one if None.

    Raises:
        CompileError: the source is not a valid module.
    """
    context = new_context() if context is None else context
    try:
        module = ir.Module.parse(source, context)
        module.operation.verify()
    except (ir.MLIRError, ValueError) as error:
        raise CompileError(
            f"stablehlo: the source must be a valid module; MLIR says: {error}. "
            "Correct the module or report the op that emitted it."
        ) from error
    return module


def module_text(module: ir.Module, *, locations: bool = False) -> str:
    """Return a module's text, with or without source locations."""
    return str(module.operation.get_asm(enable_debug_info=locations))


def module_bytecode(module: ir.Module) -> bytes:
    """Return a module's MLIR bytecode; the module stays as it is."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(file=buffer)
    return buffer.getvalue()


def copy_module(module: ir.Module) -> ir.Module:
    """Return an independent copy in a fresh context."""
    return ir.Module.parse(module_bytecode(module), new_context())


def stablehlo_version() -> str:
    """Return the version of StableHLO that this jaxlib writes: ``"1.17.0"``."""
    return stablehlo.get_current_version()


def minimum_stablehlo_version() -> str:
    """Return the oldest StableHLO version that this jaxlib can still write."""
    return stablehlo.get_minimum_version()


def to_portable(module: ir.Module, version: str | None = None) -> bytes:
    """Return a module as a portable (VHLO) artifact; the module stays as it is.

    Args:
        module: a StableHLO module.
        version: the StableHLO version to write for; this jaxlib's own if None.

    Raises:
        CompileError: an op or type of the module does not exist in that version.
    """
    target = stablehlo_version() if version is None else version
    try:
        return _bindings.serialize_portable_artifact(module_bytecode(module), target)
    except (ValueError, RuntimeError) as error:
        raise CompileError(
            f"stablehlo: the module must be expressible in version {target}; MLIR says: {error}. "
            f"Use a version between {minimum_stablehlo_version()} and {stablehlo_version()}."
        ) from error


def from_portable(artifact: bytes, context: ir.Context | None = None) -> ir.Module:
    """Parse a trusted portable artifact into a StableHLO module.

    Raises:
        CompileError: the artifact is damaged or newer than this jaxlib.
    """
    context = new_context() if context is None else context
    try:
        if _DESERIALIZE_TAKES_CONTEXT:
            return _bindings.deserialize_portable_artifact(artifact, context)
        return parse_module(_bindings.deserialize_portable_artifact(artifact), context)
    except (ir.MLIRError, ValueError, RuntimeError) as error:
        raise CompileError(
            f"stablehlo: the artifact must be readable by StableHLO {stablehlo_version()}; "
            f"MLIR says: {error}. Write it for an older version, or install a newer jaxlib."
        ) from error


def _deserialize_takes_context() -> bool:
    """Tell whether jaxlib returns a module in a given context (0.10) or its text (before)."""
    signature = _bindings.deserialize_portable_artifact.__doc__ or ""
    return "context" in signature.split("\n", 1)[0]


_DESERIALIZE_TAKES_CONTEXT = _deserialize_takes_context()


def main_function(module: ir.Module) -> func.FuncOp:
    """Return the public function ``main``.

    Raises:
        CompileError: the module has none.
    """
    for operation in module.body.operations:
        if isinstance(operation, func.FuncOp) and operation.name.value == "main":
            return operation
    raise CompileError(
        "stablehlo: a module must have a function @main; found none. Name the entry function main."
    )


def main_types(
    module: ir.Module,
) -> tuple[list[tuple[np.dtype, tuple[int, ...]]], list[tuple[np.dtype, tuple[int, ...]]]]:
    """Return argument types and result types of ``main`` as (dtype, shape) pairs.

    Raises:
        CompileError: there is no main, or a type is not a static ranked tensor.
    """
    function_type = main_function(module).type
    return (
        [_static_type(t) for t in function_type.inputs],
        [_static_type(t) for t in function_type.results],
    )


def _static_type(type_: ir.Type) -> tuple[np.dtype, tuple[int, ...]]:
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        raise CompileError(
            f"stablehlo: arguments and results of @main must be static tensors; got {type_}. "
            "Bind the dynamic dimensions first."
        )
    return numpy_dtype(type_.element_type), tuple(type_.shape)


def mark_donated(module: ir.Module, indices: Sequence[int]) -> None:
    """Mark arguments of ``main`` as buffers that XLA may reuse for results, in place.

    An argument that already names its output (``tf.aliasing_output``) is left alone.
    """
    if not indices:
        return
    main = main_function(module)
    with module.context:
        count = len(main.type.inputs)
        old: Any = main.arg_attrs if "arg_attrs" in main.attributes else [None] * count
        attributes = [{} if a is None else {n.name: n.attr for n in a} for a in old]
        for index in indices:
            if "tf.aliasing_output" not in attributes[index]:
                attributes[index]["jax.buffer_donor"] = ir.BoolAttr.get(True)
        main.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in attributes])


def drop_boundary_shardings(module: ir.Module) -> None:
    """Take the shardings of arguments and results from ``main``, in place."""
    main = main_function(module)
    with module.context:
        for name in ("arg_attrs", "res_attrs"):
            if name not in main.attributes:
                continue
            old: Any = main.attributes[name]
            kept = [{n.name: n.attr for n in a if n.name != "sdy.sharding"} for a in old]
            main.attributes[name] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in kept])


def merge_module(
    source: ir.Module, target: ir.Module, name: str, symbols: ir.SymbolTable | None = None
) -> str:
    """Move every symbol of ``source`` into ``target``; ``main`` becomes a private function.

    Both modules must live in one context. ``source`` is consumed. Symbols that clash with
    those of ``target`` get fresh names.

    Args:
        source: a module with a function ``main``.
        target: the module that grows.
        name: the wished name of the function that was ``main``.
        symbols: the symbol table of ``target`` that its owner keeps using, if there is one.

    Returns:
        The name that ``main`` got.
    """
    return _mlir.merge_mlir_modules(target, name, source, symbols)


def legalize_chlo(module: ir.Module) -> None:
    """Replace every CHLO op of a module by StableHLO ops, in place.

    Raises:
        CompileError: MLIR cannot.
    """
    if not _passes_registered:
        stablehlo.register_stablehlo_passes()
        _passes_registered.append(True)
    pipeline = "builtin.module(func.func(chlo-legalize-to-stablehlo),canonicalize)"
    try:
        with module.context:
            _passmanager.PassManager.parse(pipeline).run(module.operation)
    except (ir.MLIRError, ValueError, RuntimeError) as error:
        raise CompileError(
            f"stablehlo: every CHLO op must have a form in StableHLO; MLIR says: {error}."
        ) from error


_passes_registered: list[bool] = []


def dense_elements(array: np.ndarray) -> ir.DenseElementsAttr:
    """Return an array as an attribute in the current context, bit for bit, for every dtype."""
    element = element_type(array.dtype)
    shape = list(array.shape)
    data: Any = np.ascontiguousarray(array)
    if data.dtype == np.bool_:
        return _dense_bool(data, shape, element)
    # A dtype of ml_dtypes: hand over its bits. NumPy's own may have come out of a pickle.
    if np.dtype(data.dtype.type).isbuiltin != 1:
        data = data.view({1: np.uint8, 2: np.uint16}[data.dtype.itemsize])
    return ir.DenseElementsAttr.get(data, type=element, shape=shape)


def _dense_bool(data: Any, shape: list[int], element: ir.Type) -> ir.DenseElementsAttr:
    """Bits take a byte each in newer versions of MLIR; older ones pack eight into a byte."""
    if _bools_are_bytes():
        return ir.DenseElementsAttr.get(data.view(np.uint8), type=element, shape=shape)
    if 1 < data.size <= 8:  # a single packed byte would be taken for a splat
        bits = [ir.BoolAttr.get(bool(b)) for b in data.reshape(-1)]
        return ir.DenseElementsAttr.get(bits, ir.RankedTensorType.get(shape, element))
    packed: Any = np.packbits(data, bitorder="little")
    return ir.DenseElementsAttr.get(packed, type=element, shape=shape)


@functools.cache
def _bools_are_bytes() -> bool:
    with new_context():
        bit = ir.IntegerType.get_signless(1)
        try:
            ones: Any = np.ones(16, np.uint8)
            ir.DenseElementsAttr.get(ones, type=bit, shape=[16])
        except ValueError:
            return False
    return True


def static_type(type_: ir.Type) -> tuple[np.dtype, tuple[int, ...]] | None:
    """Return dtype and shape of a static ranked tensor type, or None for any other type."""
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return None
    dtype = _NUMPY_DTYPES.get(str(type_.element_type))
    return None if dtype is None else (dtype, tuple(type_.shape))
