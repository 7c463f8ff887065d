"""StableHLO text from a file: checked before MLIR and XLA see it.

Sizes that overflow abort the process inside XLA, and custom calls with lying types crash it
(both measured), so the text may hold neither.
"""

from __future__ import annotations

import math
import re

from rlx.errors import FormatError
from rlx_xla._jax_compat import export, mlir
from rlx_xla._jax_compat.mlir import ir
from rlx_xla.lowering import lapack

MAX_TEXT = 64 * 2**20
"""Characters; a longer text is refused unread."""

MAX_TENSOR_BYTES = 2**40
"""A tensor that claims more than this is refused; elements count as 16 bytes."""

_TENSOR = re.compile(r"(?:tensor|memref|vector)<([0-9x?* ]*)")
_QUOTED = re.compile(r'//[^\n]*|(@|= |loc\()?"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
"""A comment, or a string with what stands before values, symbols and locations."""

_ESCAPES = re.compile(r"\\\\|((?:\\[0-9A-Fa-f]{2})+)")
_DANGEROUS = frozenset({"stablehlo.custom_call", "stablehlo.infeed", "stablehlo.outfeed",
                        "stablehlo.send", "stablehlo.recv"})  # fmt: skip


def check_text(text: str, where: str) -> None:
    """Check foreign StableHLO text before MLIR reads it.

    Args:
        text: the module.
        where: named in errors.

    Raises:
        FormatError: the text is too long, or bytecode, a tensor claims an absurd size, or an
            attribute's name is no UTF-8, which ends the process where Python asks MLIR for it.
    """
    if len(text) > MAX_TEXT:
        raise FormatError(
            f"{where}: at most {MAX_TEXT:,} characters of StableHLO are read; got {len(text):,}."
        )
    if text.startswith(mlir.BYTECODE_MAGIC.decode("latin-1")) or "\0" in text:
        raise FormatError(f"{where}: StableHLO text is required; found bytecode.")
    for match in _TENSOR.finditer(text):
        sizes = [int(n) for n in re.findall(r"\d{1,40}", match.group(1))]
        if math.prod(sizes) * 16 > MAX_TENSOR_BYTES:
            raise FormatError(
                f"{where}: a tensor may hold at most {MAX_TENSOR_BYTES:,} bytes; found "
                f"{match.group(0)[:80]}…>."
            )
    if "\\" in text:
        _require_utf8_keys(text, where)


def _require_utf8_keys(text: str, where: str) -> None:
    """Refuse bytes (written as backslash and two digits) that are no UTF-8 in attributes' names."""
    for quoted in _QUOTED.finditer(text):
        if quoted[1] is not None or "\\" not in (quoted[2] or ""):
            continue
        runs = [match[1] for match in _ESCAPES.finditer(quoted[2]) if match[1]]
        try:
            for run in runs:
                bytes.fromhex(run.replace("\\", "")).decode()
        except UnicodeDecodeError as error:
            raise FormatError(
                f"{where}: names of attributes are required to be UTF-8; found "
                f'"{quoted[2][:80]}". The file is damaged: export it again.'
            ) from error


def parse(text: str, where: str, context: ir.Context) -> ir.Module:
    """Parse foreign StableHLO text.

    Args:
        text: the module.
        where: named in errors.
        context: where the module lives.

    Raises:
        FormatError: bytecode instead of text, a tensor that claims an absurd size, an op that
            reaches outside the program (custom calls, infeed, send and the like), or a call of
            LAPACK that is not as the library needs it.
        CompileError: MLIR refuses the text.
    """
    check_text(text, where)
    module = mlir.parse_module(text, context)
    found: list[str] = []
    wrong: list[str] = []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if operation.name not in _DANGEROUS:
            return ir.WalkResult.ADVANCE
        target = ""
        if "call_target_name" in operation.attributes:
            target = ir.StringAttr(operation.attributes["call_target_name"]).value
        if not lapack.is_known(target):
            found.append(f"{operation.name} {target}".strip())
        elif problem := lapack.fault(operation):
            wrong.append(problem)  # MLIR would wrap an error that is raised in here
        else:
            export.prepare_custom_call(target)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    if found:
        raise FormatError(
            f"{where}: only pure StableHLO and calls of LAPACK are accepted from a file; found "
            f"{', '.join(sorted(set(found))[:5])}. Trace the function again in this process."
        )
    if wrong:
        raise FormatError(f"{where}: {wrong[0]} Trace the function again in this process.")
    return module
