"""A program: MLIR bytecode or a portable artifact on stdin, StableHLO text on stdout.

It runs in a process of its own with limits on time and memory, because damaged bytecode crashes
or hangs MLIR's reader. It imports nothing of JAX but the MLIR bindings, and so starts quickly.

Input: one line of JSON, then the module. The line has ``kind`` ("bytecode", "portable" or
"text"), ``types`` (argument types to refine dynamic shapes with, or null), ``memory`` (bytes of
address space beyond what the imports take), ``seconds`` of processor time, and ``characters``
that the text may have. Output: the text. Exit code 3: the module is refused, stderr says why.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

REFUSED = 3


def main() -> int:
    """Convert one module; return the exit code."""
    head = json.loads(sys.stdin.buffer.readline())
    data = sys.stdin.buffer.read()
    if head["types"] is not None:
        import jaxlib._jax  # noqa: F401  loaded before memory is limited
    _limit(head["memory"], head["seconds"])
    try:
        with _context() as context, ir.Location.unknown():
            module = _read(head["kind"], data, context)
            if head["types"] is not None:
                module = _refine(module, head["types"])
            module.operation.verify()
            text = str(module.operation.get_asm(enable_debug_info=True))
    except (ir.MLIRError, ValueError, RuntimeError, MemoryError) as error:
        sys.stderr.write(str(error)[:2000] or type(error).__name__)
        return REFUSED
    if len(text) > head["characters"]:
        sys.stderr.write(f"its text has {len(text):,} characters, more than {head['characters']:,}")
        return REFUSED
    sys.stdout.buffer.write(text.encode())
    return 0


def _limit(memory: int, seconds: int) -> None:
    limits = [(resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0)]
    if sys.platform == "linux":
        with open("/proc/self/statm") as statm:
            taken = int(statm.read().split()[0]) * resource.getpagesize()
        limits.append((resource.RLIMIT_AS, taken + memory))
    for kind, limit in limits:
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def _context() -> ir.Context:
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    return context


def _read(kind: str, data: bytes, context: ir.Context) -> ir.Module:
    if kind == "portable":
        return stablehlo.deserialize_portable_artifact(context, data)
    return ir.Module.parse(data.decode() if kind == "text" else data, context)


def _refine(module: ir.Module, types: list[str]) -> ir.Module:
    """Put static argument types in place of dynamic ones, and compute all other shapes."""
    from io import BytesIO

    import jaxlib._jax

    stablehlo.register_stablehlo_passes()
    pipeline = f"builtin.module(stablehlo-refine-arguments{{types={','.join(types)}}})"
    passmanager.PassManager.parse(pipeline).run(module.operation)
    buffer = BytesIO()
    module.operation.write_bytecode(file=buffer)
    native: Any = jaxlib._jax
    refine = native.mlir.refine_polymorphic_shapes
    return ir.Module.parse(refine(buffer.getvalue(), True, True), module.context)


if __name__ == "__main__":
    sys.exit(main())
