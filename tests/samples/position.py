"""Samples of rotary position embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, InconclusiveDimError, ShapeError
from rlx.ir.op import Op
from rlx.ops.position import AxialRope2d, Rope, RopeStyle
from tests.samples.base import FLOATS, ErrorSample, Sample, SymbolicSample, draw


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in FLOATS:
        for style in RopeStyle:
            for shape, op, table in (
                ((2, 5, 3, 8), Rope(head_dim=8, n_rot=8), (5, 4)),
                ((2, 3, 5, 8), Rope(head_dim=8, n_rot=4, layout="bhsd"), (5, 2)),
                ((2, 5, 24), Rope(head_dim=8, n_rot=6), (7, 4)),
                ((65, 2), Rope(head_dim=2, n_rot=2), (65, 1)),
                ((1, 1, 1, 7), Rope(head_dim=7, n_rot=2), (1, 1)),
                ((0, 3, 8), Rope(head_dim=4, n_rot=4), (3, 2)),
                ((2, 0, 4), Rope(head_dim=4, n_rot=2), (0, 2)),
                ((2, 5, 3, 8), Rope(head_dim=8, n_rot=8), (2, 6, 4)),
                ((2, 3, 5, 8), Rope(head_dim=8, n_rot=4, layout="bhsd"), (2, 5, 4)),
                ((3, 2, 8), Rope(head_dim=4, n_rot=4), (3, 2, 2)),
            ):
                yield _rope(rng, op.replace(style=style), dtype, shape, table, dtype)
        narrow = Rope(head_dim=8, n_rot=8)
        yield _rope(rng, narrow, dtype, (1, 3, 8), (3, 4), DType.F32)
        for shape, op in (
            ((2, 6, 24), AxialRope2d(end_x=3, end_y=2, head_dim=8, num_heads=3)),
            ((1, 1, 4), AxialRope2d(end_x=1, end_y=1, head_dim=4, num_heads=1)),
            ((0, 12, 16), AxialRope2d(end_x=2, end_y=3, head_dim=16, num_heads=1, repeat_factor=2)),
            (
                (1, 24, 24),
                AxialRope2d(
                    end_x=2, end_y=4, head_dim=12, num_heads=2, theta=100.0, repeat_factor=3
                ),
            ),
        ):
            yield Sample(op, (draw(rng, dtype, shape),), f"{dtype}{list(shape)}")


def _rope(
    rng: np.random.Generator,
    op: Op,
    dtype: DType,
    shape: tuple[int, ...],
    table: tuple[int, ...],
    table_dtype: DType,
) -> Sample:
    angles = rng.uniform(0, 7, table)
    tables = (np.cos(angles).astype(table_dtype.numpy), np.sin(angles).astype(table_dtype.numpy))
    return Sample(op, (draw(rng, dtype, shape), *tables), f"{dtype}{list(shape)}")


def error_samples() -> Iterator[ErrorSample]:
    tables = ("f32[3, 4]", "f32[3, 4]")
    good = ("f32[2, 3, 5, 8]", *tables)

    def rope(**changes: Any) -> Callable[[], Op]:
        return lambda: Rope(**{"head_dim": 8, "n_rot": 8, **changes})

    yield ErrorSample(rope(n_rot=5), good, ShapeError, "C1", "got 5")
    yield ErrorSample(rope(n_rot=10), good, ShapeError, "C1", "from 2 to head_dim = 8; got 10")
    yield ErrorSample(rope(n_rot=0), good, ShapeError, "C1", "got 0")
    yield ErrorSample(rope(layout="sbhd"), good, ShapeError, "C1", "'sbhd'")
    yield ErrorSample(rope(), ("f32[8]", *tables), ShapeError, "C2", "f32[8]")
    yield ErrorSample(rope(layout="bhsd"), ("f32[2, 3, 8]", *tables), ShapeError, "C2", "bhsd")
    yield ErrorSample(rope(), ("f32[2, 3, 5, 4]", *tables), ShapeError, "C3", "heads of 8")
    yield ErrorSample(rope(), ("f32[2, 3, 12]", *tables), ShapeError, "C3", "f32[2, 3, 12]")
    yield ErrorSample(rope(), (good[0], "f32[4]", "f32[4]"), ShapeError, "C4", "f32[4]")
    yield ErrorSample(rope(), (*good[:2], "f32[3, 3]"), ShapeError, "C4", "sin: f32[3, 3]")
    wide = ("f32[3, 8]", "f32[3, 8]")
    yield ErrorSample(rope(), (good[0], *wide), ShapeError, "C4", "n_rot / 2 = 4")
    short = ("f32[2, 4]", "f32[2, 4]")
    yield ErrorSample(rope(), (good[0], *short), ShapeError, "C4", "P ≥ S")
    batch = ("f32[3, 3, 4]", "f32[3, 3, 4]")
    yield ErrorSample(rope(), (good[0], *batch), ShapeError, "C4", "[B, P, W]")
    yield ErrorSample(rope(), ("f32[3, 8]", *batch), ShapeError, "C4", "f32[3, 8]")
    symbolic = ("f32[2, s, 5, 8]", *tables)
    yield ErrorSample(rope(), symbolic, InconclusiveDimError, "C4", "P ≥ S")
    yield ErrorSample(rope(), ("i32[2, 3, 5, 8]", *tables), DTypeError, "C5", "i32")
    yield ErrorSample(rope(), (*good[:2], "f64[3, 4]"), DTypeError, "C5", "sin: f64[3, 4]")

    def axial(**changes: Any) -> Callable[[], Op]:
        given = {"end_x": 2, "end_y": 3, "head_dim": 8, "num_heads": 2, **changes}
        return lambda: AxialRope2d(**given)

    x = ("f32[1, 6, 16]",)
    for changes in ({"end_x": 0}, {"num_heads": 0}, {"repeat_factor": 0}, {"theta": -1.0}):
        (name,) = changes
        yield ErrorSample(axial(**changes), x, ShapeError, "C1", f"{name} = ")
    yield ErrorSample(axial(head_dim=6), x, ShapeError, "C2", "got 6")
    yield ErrorSample(axial(), ("f32[1, 6, 8]",), ShapeError, "C3", "f32[1, 6, 8]")
    yield ErrorSample(axial(), ("f32[6, 16]",), ShapeError, "C3", "f32[6, 16]")
    yield ErrorSample(axial(), ("f32[1, 5, 16]",), ShapeError, "C4", "= 6 tokens")
    yield ErrorSample(axial(), ("f32[1, s, 16]",), InconclusiveDimError, "C4", "= 6 tokens")
    yield ErrorSample(axial(), ("i32[1, 6, 16]",), DTypeError, "C5", "i32")


def symbolic_samples() -> Iterator[SymbolicSample]:
    table = ("f32[s, 4]", "f32[s, 4]")
    binding = {"b": 2, "s": 3}
    yield SymbolicSample(Rope(head_dim=8, n_rot=8), ("f32[b, s, 2, 8]", *table), binding)
    yield SymbolicSample(Rope(head_dim=8, n_rot=4), ("bf16[b, s, 16]", *table), binding)
    rows = ("f32[b, s, 4]", "f32[b, s, 4]")
    yield SymbolicSample(Rope(head_dim=8, n_rot=8), ("f32[b, s, 2, 8]", *rows), binding)
    op = AxialRope2d(end_x=2, end_y=3, head_dim=8, num_heads=2)
    yield SymbolicSample(op, ("f32[b, 6, 16]",), {"b": 2})
