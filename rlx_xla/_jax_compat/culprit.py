"""Finds the op for which XLA refuses a module: XLA's messages say what is wrong, not where."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

from rlx_xla._jax_compat.mlir import func, ir

MAX_SECONDS = 10.0
"""Time for the search; it runs only after a compile has failed."""

MAX_OPS = 200
"""Distinct ops that are tried."""

_STRUCTURE = frozenset(
    {
        "builtin.module", "func.func", "func.return", "func.call", "stablehlo.return",
        "stablehlo.constant", "stablehlo.while", "stablehlo.case",
    }
)  # fmt: skip
_PLACE = re.compile(r'"(?!-")([^"\n]+)":(\d+):\d+')


def find_culprit(
    module: ir.Module, message: str, refusal: Callable[[ir.Module], str | None]
) -> str | None:
    """Name the first op that XLA refuses also when it stands alone, with its source line.

    Args:
        module: what XLA has refused.
        message: what XLA said; ops that it mentions are tried first.
        refusal: compiles a module; returns XLA's message, or None when XLA accepts it.

    Returns:
        ``stablehlo.fft at model.py:12``, or None when every op alone compiles.
    """
    candidates: dict[str, ir.Operation] = {}
    for operation in _operations(module.operation):
        if operation.name not in _STRUCTURE:
            candidates.setdefault(_key(operation), operation)
    ordered = sorted(candidates.values(), key=lambda op: not _mentioned(op, message))
    end = time.perf_counter() + MAX_SECONDS
    for operation in ordered[:MAX_OPS]:
        alone = _alone(operation)
        found = refusal(alone) if alone is not None else None
        if found is not None and _status(found) == _status(message):
            return f"{operation.name} at {_place(module, operation)}"
        if time.perf_counter() > end:
            break
    return None


def _operations(root: ir.Operation) -> Iterator[ir.Operation]:
    """Every op that computes on tensors, without those inside reducers and comparators."""
    pending = [root]
    while pending:
        operation = pending.pop()
        yield operation
        if operation.name in _STRUCTURE:
            inner = [
                child.operation
                for region in operation.regions
                for block in region.blocks
                for child in block.operations
            ]
            pending.extend(reversed(inner))


def _key(operation: ir.Operation) -> str:
    """Text that equal ops share; operands count by type only."""
    types = [str(v.type) for v in (*operation.operands, *operation.results)]
    # Iterating attributes gives names from jaxlib 0.9 on, and pairs before.
    names = [named if isinstance(named, str) else named.name for named in operation.attributes]
    attributes = [f"{name}={operation.attributes[name]}" for name in names]
    regions = [str(block) for region in operation.regions for block in region.blocks]
    return "|".join([operation.name, *types, *attributes, *regions])


def _mentioned(operation: ir.Operation, message: str) -> bool:
    names = [operation.name.split(".")[-1].replace("_", "-")]
    if "call_target_name" in operation.attributes:
        names = [ir.StringAttr(operation.attributes["call_target_name"]).value]
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message) for name in names)


def _alone(operation: ir.Operation) -> ir.Module | None:
    """Return a module whose main is this op, or None where the op needs what is around it."""
    inputs = [v.type for v in operation.operands]
    outputs = [v.type for v in operation.results]
    with operation.context, operation.location:
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", (inputs, outputs))
        block = main.add_entry_block()
        with ir.InsertionPoint(block):
            copy = operation.clone()
            for position, argument in enumerate(block.arguments):
                copy.operands[position] = argument
            func.ReturnOp(list(copy.results))
        try:
            module.operation.verify()
        except ir.MLIRError:
            return None
    return module


def _place(module: ir.Module, operation: ir.Operation) -> str:
    """Source line of an op; where it has none, that of the call of its function."""
    for _ in range(8):
        found = _PLACE.search(str(operation.location))
        if found is not None:
            return f"{found[1]}:{found[2]}"
        caller = _caller(module, operation)
        if caller is None:
            break
        operation = caller
    return "an unknown line"


def _caller(module: ir.Module, operation: ir.Operation) -> ir.Operation | None:
    owner = operation.parent
    while owner is not None and owner.name != "func.func":
        owner = owner.parent
    if owner is None:
        return None
    name = str(ir.StringAttr(owner.attributes["sym_name"]).value)
    return next(
        (
            other
            for other in _operations(module.operation)
            if other.name == "func.call"
            and ir.FlatSymbolRefAttr(other.attributes["callee"]).value == name
        ),
        None,
    )


def _status(message: str) -> str:
    """Return the status that starts a message of XLA: ``NOT_FOUND``."""
    return message.split(":", 1)[0].strip()
