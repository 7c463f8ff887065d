"""Which values a region takes from outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlx_xla._jax_compat.mlir import ir


def captured_values(op: ir.Operation) -> Iterator[ir.Value]:
    """Values that the regions of an op use and that are defined outside of it, once each."""
    yield from _captured(list(op.regions))


def captured_by(region: ir.Region, among: Sequence[ir.Value]) -> list[ir.Value]:
    """Those of some values that one region uses."""
    used = set(_captured([region]))
    return [v for v in among if v in used]


def _captured(regions: Sequence[ir.Region]) -> Iterator[ir.Value]:
    inside: set[ir.Value] = set()
    for block in _blocks(regions):
        inside.update(block.arguments)
        for view in block.operations:
            inside.update(view.operation.results)
    seen: set[ir.Value] = set()
    for block in _blocks(regions):
        for view in block.operations:
            for value in view.operation.operands:
                if value not in inside and value not in seen:
                    seen.add(value)
                    yield value


def _blocks(regions: Sequence[ir.Region]) -> Iterator[ir.Block]:
    """Every block of some regions, at any depth."""
    stack = list(regions)
    while stack:
        for block in stack.pop().blocks:
            yield block
            for view in block.operations:
                stack.extend(view.operation.regions)
