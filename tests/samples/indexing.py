"""Samples of gathers, scatters, dynamic slices and what is made of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.dims import symbol
from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ir.attributes import Literal
from rlx.ops.indexing import (
    DynamicSlice,
    DynamicUpdateSlice,
    Gather,
    GatherElements,
    GatherGeneral,
    GatherNd,
    IndexMode,
    KvAppend,
    ScatterAdd,
    ScatterElements,
    ScatterGeneral,
    ScatterKind,
    ScatterNd,
    Take,
)
from tests.samples.base import (
    INTS,
    UINTS,
    ErrorSample,
    Sample,
    SymbolicSample,
    draw,
)
from tests.samples.shape import DATA

INDEX = (*INTS, *UINTS)
MODES = tuple(IndexMode)
KINDS = tuple(ScatterKind)

B = symbol("b")
Array = np.ndarray[Any, Any]


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _dynamic(rng)
    yield from _gathers(rng)
    yield from _scatters(rng)
    yield from _lookups(rng)
    yield from _updates(rng)


def _dynamic(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in DATA:
        x, starts = draw(rng, dtype, (5, 7), special=True), _starts(rng, DType.I32, (5, 7))
        yield Sample(DynamicSlice(sizes=(2, 7)), (x, *starts), f"{dtype}")
        update = draw(rng, dtype, (3, 2), special=True)
        yield Sample(DynamicUpdateSlice(), (x, update, *starts), f"{dtype}")
    for dtype in INDEX:
        x, (start,) = draw(rng, DType.F32, (65,)), _starts(rng, dtype, (65,))
        yield Sample(DynamicSlice(sizes=(4,)), (x, start), f"start {dtype}")
        yield Sample(DynamicUpdateSlice(), (x, draw(rng, DType.F32, (4,)), start), f"{dtype}")
    for dtype in (DType.I4, DType.I8, DType.U8, DType.I16):  # bounds that the dtype cannot hold
        x, start = draw(rng, DType.F32, (40000,)), np.asarray(rng.integers(0, 8), dtype.numpy)
        yield Sample(DynamicSlice(sizes=(4,)), (x, start), f"long, start {dtype}")
        yield Sample(DynamicUpdateSlice(), (x, draw(rng, DType.F32, (4,)), start), f"long {dtype}")
    for shape, sizes in (((), ()), ((0, 3), (0, 2)), ((1,), (1,)), ((63, 2), (0, 1))):
        x, starts = draw(rng, DType.F32, shape), _starts(rng, DType.I32, shape)
        yield Sample(DynamicSlice(sizes=sizes), (x, *starts), f"{shape}")
        yield Sample(DynamicUpdateSlice(), (x, draw(rng, DType.F32, sizes), *starts), f"{shape}")


def _starts(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """One scalar per axis, maybe outside."""
    least = -3 if dtype.is_signed else 0
    return tuple(np.asarray(rng.integers(least, size + 4), dtype.numpy) for size in shape)


def _indices(
    rng: np.random.Generator, shape: tuple[int, ...], size: int, dtype: DType = DType.I32
) -> Array:
    """Indices that are mostly inside an axis of some size, and sometimes not."""
    least = -2 if dtype.is_signed else 0
    return rng.integers(least, size + 2, shape).astype(dtype.numpy)


def _rows(mode: IndexMode = IndexMode.CLIP, **more: Any) -> GatherGeneral:
    return GatherGeneral(
        slice_sizes=(1, 3), offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,),
        mode=mode, **more,
    )  # fmt: skip


def _gathers(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in DATA:
        x = draw(rng, dtype, (5, 3), special=True)
        yield Sample(_rows(IndexMode.FILL_OR_DROP), (x, _indices(rng, (6, 1), 5)), f"{dtype}")
    for dtype in INDEX:
        x, indices = draw(rng, DType.F32, (300, 3)), _indices(rng, (8, 1), 120, dtype)
        extreme = draw(rng, dtype, (8, 1), special=True)
        for mode in MODES[:2]:
            yield Sample(_rows(mode), (x, indices), f"index {dtype} {mode.value}")
            yield Sample(_rows(mode), (x, extreme), f"extreme index {dtype} {mode.value}")
    fill = Literal(7.5, DType.F32)
    x = draw(rng, DType.F32, (5, 3))
    given = _rows(IndexMode.FILL_OR_DROP, fill_value=fill)
    yield Sample(given, (x, _indices(rng, (9, 1), 5)), "given fill value")
    yield Sample(_rows(), (x, np.zeros((0, 1), np.int32)), "no indices")
    yield Sample(_rows(), (x[:0], np.zeros((0, 1), np.int32)), "no rows, no indices")
    promised = _rows(IndexMode.PROMISE_IN_BOUNDS, indices_are_sorted=True, unique_indices=True)
    yield Sample(promised, (x, np.array([[0], [2], [4]], np.int64)), "promises")
    whole = GatherGeneral(
        slice_sizes=(5, 3), offset_dims=(1, 2), collapsed_slice_dims=(), start_index_map=()
    )
    yield Sample(whole, (x, np.zeros((4, 0), np.int32)), "no components")
    for position in range(12):
        drawn = _draw_windows(rng)
        op = GatherGeneral(
            slice_sizes=drawn["windows"],
            offset_dims=drawn["window_axes"],
            collapsed_slice_dims=drawn["dropped"],
            start_index_map=drawn["mapped"],
            operand_batching_dims=drawn["batching"],
            start_indices_batching_dims=drawn["indices_batching"],
            mode=MODES[position % 3],
        )
        yield Sample(op, (draw(rng, DType.F32, drawn["shape"]), drawn["indices"]), "drawn")


def _scatters(rng: np.random.Generator) -> Iterator[Sample]:
    for number, dtype in enumerate(DATA):
        kinds = (
            KINDS if dtype in (DType.F32, DType.I32, DType.C64) else (KINDS[number % 6], KINDS[0])
        )
        for kind in dict.fromkeys(kinds):
            if not _takes(kind, dtype):
                continue
            # Few updates meet, and all are positive: XLA rounds narrow floats after each.
            op = ScatterGeneral(
                kind=kind, update_window_dims=(1,), inserted_window_dims=(0,),
                scatter_dims_to_operand_dims=(0,),
            )  # fmt: skip
            x, updates = (draw(rng, dtype, shape, low=1) for shape in ((5, 3), (4, 3)))
            indices = rng.permutation(np.array([[0], [2], [2], [7]], np.int32))
            yield Sample(op, (x, indices, updates), f"{dtype} {kind.value}")
    for kind in KINDS:
        op = ScatterGeneral(
            kind=kind, update_window_dims=(), inserted_window_dims=(0,),
            scatter_dims_to_operand_dims=(0,),
        )  # fmt: skip
        x, updates = draw(rng, DType.F32, (9,)), draw(rng, DType.F32, (9,), special=True)
        yield Sample(op, (x, np.arange(9, dtype=np.int64)[:, None], updates), f"{kind} special")
    for dtype in INDEX:
        op = _put(rng.choice(np.array(MODES[:2])))
        x, updates = draw(rng, DType.F32, (300,)), draw(rng, DType.F32, (8,))
        extreme = draw(rng, dtype, (8, 1), special=True)
        yield Sample(op, (x, extreme, updates), f"extreme index {dtype}")
    empty = np.zeros((0, 1), np.int32), np.zeros((0,), np.float32)
    yield Sample(_put(IndexMode.CLIP), (np.ones((4,), np.float32), *empty), "no updates")
    yield Sample(_put(IndexMode.CLIP), (np.ones((0,), np.float32), *empty), "nothing at all")
    for position in range(12):
        drawn = _draw_windows(rng)
        op = ScatterGeneral(
            kind=ScatterKind.ADD if position % 2 else ScatterKind.SET,
            update_window_dims=drawn["window_axes"],
            inserted_window_dims=drawn["dropped"],
            scatter_dims_to_operand_dims=drawn["mapped"],
            operand_batching_dims=drawn["batching"],
            scatter_indices_batching_dims=drawn["indices_batching"],
            mode=MODES[position % 3],
        )
        shape = list(drawn["indices"].shape[:-1])
        left_out = {*drawn["dropped"], *drawn["batching"]}
        kept = [w for axis, w in enumerate(drawn["windows"]) if axis not in left_out]
        for axis, size in zip(drawn["window_axes"], kept, strict=True):
            shape.insert(axis, size)
        # Small whole numbers, so that sums are exact in any order.
        x, updates = (
            rng.integers(-9, 9, s).astype(np.float32) for s in (drawn["shape"], tuple(shape))
        )
        yield Sample(op, (x, drawn["indices"], updates), "drawn")


def _put(mode: IndexMode) -> ScatterGeneral:
    return ScatterGeneral(
        update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,),
        mode=mode,
    )  # fmt: skip


def _takes(kind: ScatterKind, dtype: DType) -> bool:
    return kind is not ScatterKind.SUB or dtype is not DType.BOOL


def _draw_windows(rng: np.random.Generator) -> dict[str, Any]:
    """Axes with random roles, and index vectors for them."""
    rank = int(rng.integers(1, 5))
    shape = tuple(int(n) for n in rng.integers(1, 5, rank))
    roles = rng.choice(["window", "dropped", "batching"], rank, p=[0.5, 0.3, 0.2])
    axes = {role: tuple(np.flatnonzero(roles == role).tolist()) for role in roles}
    windows = tuple(
        int(rng.integers(0 if role == "window" else 1, size + 1)) if role == "window" else 1
        for role, size in zip(roles, shape, strict=True)
    )
    free = [axis for axis in range(rank) if roles[axis] != "batching"]
    count = int(rng.integers(0, len(free) + 1))
    mapped = tuple(int(a) for a in rng.permutation(free)[:count])
    batching = axes.get("batching", ())
    batch = [shape[axis] for axis in batching] + [int(n) for n in rng.integers(1, 4, 2)]
    order = rng.permutation(len(batch))
    batch = [batch[i] for i in order]
    where = [int(np.flatnonzero(order == i)[0]) for i in range(len(batching))]
    kept = len(axes.get("window", ()))
    window_axes = np.sort(rng.permutation(len(batch) + kept)[:kept])
    columns = [_indices(rng, tuple(batch), shape[axis]) for axis in mapped]
    indices = np.stack(columns, -1) if columns else np.zeros((*batch, 0), np.int32)
    return {
        "shape": shape,
        "windows": windows,
        "dropped": axes.get("dropped", ()),
        "mapped": mapped,
        "batching": batching,
        "indices_batching": tuple(where),
        "window_axes": tuple(int(a) for a in window_axes),
        "indices": indices.astype(np.int32),
    }


def _lookups(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in (DType.F32, DType.BF16, DType.I8):
        table = draw(rng, dtype, (5, 3, 2), special=True)
        for axis in range(3):
            indices = _indices(rng, (2, 4), table.shape[axis])
            yield Sample(Gather(axis=axis), (table, indices), f"{dtype} axis {axis}")
            for mode in MODES[:2]:
                yield Sample(Take(axis=axis, mode=mode), (table, indices), f"{mode} {axis}")
    row = draw(rng, DType.F32, (65,))
    yield Sample(Gather(axis=0), (row, np.asarray(64, np.int64)), "scalar index")
    yield Sample(Gather(axis=0), (row, np.zeros((0, 3), np.uint8)), "no indices")
    yield Sample(Take(axis=0), (row[:1], _indices(rng, (63,), 1)), "one element")
    square = draw(rng, DType.F32, (4, 5, 3))
    for axis, shape in ((0, (6, 5, 3)), (1, (4, 1, 3)), (2, (2, 5, 7)), (1, (0, 2, 1))):
        indices = _indices(rng, shape, square.shape[axis])
        yield Sample(GatherElements(axis=axis), (square, indices), f"axis {axis} {shape}")
    for shared, shape in ((0, (6, 2)), (0, (3, 3)), (1, (4, 2, 1)), (2, (4, 5, 0)), (0, (1,))):
        indices = _indices(rng, shape, 3)
        yield Sample(GatherNd(batch_dims=shared), (square, indices), f"{shared} {shape}")


def _updates(rng: np.random.Generator) -> Iterator[Sample]:
    for axis, size in ((0, 3), (1, 65), (1, 0)):
        updates = draw(rng, DType.F32, (6, 4))
        indices = _indices(rng, (updates.shape[axis],), size)
        yield Sample(ScatterAdd(size=size, axis=axis), (updates, indices), f"axis {axis}")
    whole = draw(rng, DType.I32, (63,)), _indices(rng, (63,), 5, DType.I64)
    yield Sample(ScatterAdd(size=5), whole, "i32")
    for kind in KINDS:
        x = rng.integers(-4, 4, (4, 3, 2)).astype(np.float32)
        for shape in ((5, 1), (2, 2, 2), (3,), (0, 1)):
            indices = _indices(rng, shape, 3)
            updates = rng.integers(-4, 4, (*shape[:-1], *x.shape[shape[-1] :])).astype(np.float32)
            yield Sample(ScatterNd(reduction=kind), (x, indices, updates), f"{kind} {shape}")
        for axis, shape in ((0, (6, 3, 2)), (1, (4, 1, 2)), (2, (0, 3, 5))):
            indices = _indices(rng, shape, x.shape[axis], DType.I64 if axis else DType.I32)
            updates = rng.integers(-4, 4, shape).astype(np.float32)
            op = ScatterElements(axis=axis, reduction=kind)
            yield Sample(op, (x, indices, updates), f"{kind} {shape}")
    for pos in (0, 1, 7):
        cache, row = draw(rng, DType.BF16, (2, 8, 3)), draw(rng, DType.BF16, (2, 1, 3))
        yield Sample(KvAppend(axis=1, pos=pos), (cache, row), f"pos {pos}")


def error_samples() -> Iterator[ErrorSample]:
    yield from _dynamic_errors()
    yield from _gather_errors()
    yield from _scatter_errors()
    yield from _lookup_errors()
    yield from _update_errors()


def _dynamic_errors() -> Iterator[ErrorSample]:
    cut = DynamicSlice(sizes=(2,))
    yield ErrorSample(lambda: cut, ("f32[4]",), ShapeError, "C1", "1 and 0")
    yield ErrorSample(lambda: cut, ("f32[4]", "f32[]"), DTypeError, "C2", "got f32[]")
    yield ErrorSample(lambda: cut, ("f32[4]", "i32[1]"), DTypeError, "C2", "got i32[1]")
    yield ErrorSample(lambda: cut, ("f32[1]", "i32[]"), ShapeError, "C3", "got 2")
    put = DynamicUpdateSlice()
    yield ErrorSample(lambda: put, ("f32[4]", "f32[2]"), ShapeError, "C1", "got 0")
    pair = ("f32[4, 4]", "f32[2, 2]")
    yield ErrorSample(lambda: put, (*pair, "i32[]", "i64[]"), DTypeError, "C2", "i32[], i64[]")
    yield ErrorSample(lambda: put, ("f32[4]", "f32[]", "i32[]"), ShapeError, "C3", "got f32[]")
    yield ErrorSample(lambda: put, ("f32[4]", "f32[5]", "i32[]"), ShapeError, "C3", "got 5")
    yield ErrorSample(lambda: put, ("f32[4]", "f16[2]", "i32[]"), DTypeError, "C4", "f16[2]")


def _gather_errors() -> Iterator[ErrorSample]:
    ok = ("f32[5, 3]", "i32[6, 1]")

    def op(**changes: Any) -> GatherGeneral:
        return _rows().replace(**changes)  # type: ignore[return-value]

    def bad(label: str, match: str, *types: str, **changes: Any) -> ErrorSample:
        return ErrorSample(lambda: op(**changes), types or ok, ShapeError, label, match)

    yield ErrorSample(op, ("f32[5, 3]", "f32[6, 1]"), DTypeError, "C1", "f32[6, 1]")
    yield bad("C2", "1 components", "f32[5, 3]", "i32[6, 2]")
    yield bad("C2", "i32[]", "f32[5, 3]", "i32[]")
    yield bad("C3", "(2,)", offset_dims=(2,))
    yield bad("C3", "(1, 0)", offset_dims=(1, 0))
    yield bad("C4", "(2,)", collapsed_slice_dims=(2,))
    yield bad("C4", "(-1,)", start_index_map=(-1,))
    batching = {"operand_batching_dims": (0,), "start_indices_batching_dims": (0,)}
    yield bad("C4", "(0,)", **batching)
    batching["operand_batching_dims"] = (1,)
    yield bad("C5", "equal dims", offset_dims=(), **batching)
    batching["start_indices_batching_dims"] = (1,)
    yield bad("C5", "last axis", "f32[5, 6]", "i32[6, 1]", offset_dims=(), **batching)
    yield bad("C5", "()", operand_batching_dims=(1,), offset_dims=())
    yield bad("C6", "1 sizes", slice_sizes=(1,))
    yield bad("C6", "0 offset_dims", offset_dims=())
    yield bad("C7", "[1, 4]", slice_sizes=(1, 4))
    yield bad("C7", "[2, 3]", slice_sizes=(2, 3))
    yield bad("C7", "[1, -1]", slice_sizes=(1, -1))
    drop = IndexMode.FILL_OR_DROP
    yield bad("C8", "f16", mode=drop, fill_value=Literal(1, DType.F16))
    yield bad("C8", "CLIP", fill_value=Literal(1, DType.F32))


def _scatter_errors() -> Iterator[ErrorSample]:
    ok = ("f32[5, 3]", "i32[6, 1]", "f32[6, 3]")
    base = ScatterGeneral(
        update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
    )

    def bad(label: str, match: str, *types: str, **changes: Any) -> ErrorSample:
        return ErrorSample(lambda: base.replace(**changes), types or ok, ShapeError, label, match)

    types = ("f32[5, 3]", "f32[6, 1]", "f32[6, 3]")
    yield ErrorSample(lambda: base, types, DTypeError, "C1", "f32[6, 1]")
    yield bad("C2", "1 components", "f32[5, 3]", "i32[6, 2]", "f32[6, 3]")
    yield bad("C3", "(2,)", update_window_dims=(2,))
    yield bad("C3", "[7]", "f32[5, 3]", "i32[6, 1]", "f32[7, 3]")
    yield bad("C4", "(2,)", inserted_window_dims=(2,))
    yield bad("C4", "(2,)", scatter_dims_to_operand_dims=(2,))
    batching = {"operand_batching_dims": (0,), "scatter_indices_batching_dims": (0,)}
    yield bad("C4", "(0,)", **batching)
    batching["operand_batching_dims"] = (1,)
    types = ("f32[5, 3]", "i32[6, 1]", "f32[6, 1]")
    yield bad("C5", "equal dims", *types, **batching)
    yield bad("C6", "0 others", inserted_window_dims=())
    yield bad("C7", "got 4", "f32[5, 3]", "i32[6, 1]", "f32[6, 4]")
    types = ("f32[5, 3]", "i32[6, 1]", "f16[6, 3]")
    yield ErrorSample(lambda: base, types, DTypeError, "C8", "f16[6, 3]")
    less = base.replace(kind=ScatterKind.SUB)
    types = ("bool[5, 3]", "i32[6, 1]", "bool[6, 3]")
    yield ErrorSample(lambda: less, types, DTypeError, "C9", "SUB on x: bool")


def _lookup_errors() -> Iterator[ErrorSample]:
    for cls in (Gather, Take):
        yield ErrorSample(cls, ("f32[5]", "f32[2]"), DTypeError, "C1", "f32[2]")
        axis_1 = cls(axis=1)
        yield ErrorSample(lambda op=axis_1: op, ("f32[5]", "i32[2]"), ShapeError, "C2", "got 1")
        yield ErrorSample(cls, ("f32[0]", "i32[2]"), ShapeError, "C3", "f32[0]")
    pair = ("f32[5, 2]", "f32[5, 2]")
    yield ErrorSample(GatherElements, pair, DTypeError, "C1", "got f32")
    pair = ("f32[5, 2]", "i32[5, 2]")
    yield ErrorSample(lambda: GatherElements(axis=2), pair, ShapeError, "C2", "got 2")
    yield ErrorSample(GatherElements, ("f32[5, 2]", "i32[5, 3]"), ShapeError, "C3", "i32[5, 3]")
    yield ErrorSample(GatherElements, ("f32[5, 2]", "i32[5]"), ShapeError, "C3", "i32[5]")
    yield ErrorSample(GatherElements, ("f32[0, 2]", "i32[1, 2]"), ShapeError, "C4", "f32[0, 2]")
    yield ErrorSample(GatherNd, ("f32[5]", "f32[2, 1]"), DTypeError, "C1", "f32[2, 1]")
    yield ErrorSample(
        lambda: GatherNd(batch_dims=2), ("f32[5, 2]", "i32[5, 1]"), ShapeError, "C2", "got 2"
    )
    yield ErrorSample(GatherNd, ("f32[5]", "i32[2, 2]"), ShapeError, "C3", "at most 1")
    yield ErrorSample(GatherNd, ("f32[5]", "i32[2, b]"), ShapeError, "C3", "i32[2, b]")
    shared = GatherNd(batch_dims=1)
    yield ErrorSample(lambda: shared, ("f32[5, 2]", "i32[4, 1]"), ShapeError, "C4", "i32[4, 1]")
    yield ErrorSample(GatherNd, ("f32[0, 2]", "i32[4, 1]"), ShapeError, "C5", "f32[0, 2]")


def _update_errors() -> Iterator[ErrorSample]:
    add = ScatterAdd(size=4)
    yield ErrorSample(lambda: add, ("f32[3]", "f32[3]"), DTypeError, "C1", "f32[3]")
    yield ErrorSample(
        lambda: ScatterAdd(size=4, axis=1), ("f32[3]", "i32[3]"), ShapeError, "C2", "got 1"
    )
    yield ErrorSample(lambda: add, ("f32[3]", "i32[2]"), ShapeError, "C3", "i32[2]")
    yield ErrorSample(lambda: ScatterAdd(size=-1), ("f32[3]", "i32[3]"), ShapeError, "C4", "-1")

    put = ScatterNd()
    types = ("f32[4, 2]", "f32[3, 1]", "f32[3, 2]")
    yield ErrorSample(lambda: put, types, DTypeError, "C1", "f32[3, 1]")
    types = ("f32[4, 2]", "i32[3, 3]", "f32[3, 2]")
    yield ErrorSample(lambda: put, types, ShapeError, "C2", "at most 2")
    types = ("f32[4, 2]", "i32[3, 1]", "f32[3, 3]")
    yield ErrorSample(lambda: put, types, ShapeError, "C3", "f32[3, 2]")
    types = ("f32[4, 2]", "i32[3, 1]", "f16[3, 2]")
    yield ErrorSample(lambda: put, types, DTypeError, "C4", "f16[3, 2]")
    types = ("bool[4, 2]", "i32[3, 1]", "bool[3, 2]")
    less_nd = ScatterNd(reduction=ScatterKind.SUB)
    yield ErrorSample(lambda: less_nd, types, DTypeError, "C5", "SUB")

    each = ScatterElements()
    types = ("f32[4, 2]", "i8[3, 2]", "f32[3, 2]")
    yield ErrorSample(lambda: each, types, DTypeError, "C1", "i8[3, 2]")
    types = ("f32[4, 2]", "i32[3, 2]", "f32[3, 2]")
    yield ErrorSample(lambda: ScatterElements(axis=2), types, ShapeError, "C2", "got 2")
    types = ("f32[4, 2]", "i32[3, 3]", "f32[3, 3]")
    yield ErrorSample(lambda: each, types, ShapeError, "C3", "i32[3, 3]")
    types = ("f32[4, 2]", "i32[3, 2]", "f32[3, 1]")
    yield ErrorSample(lambda: each, types, ShapeError, "C4", "f32[3, 1]")
    types = ("f32[4, 2]", "i32[3, 2]", "f16[3, 2]")
    yield ErrorSample(lambda: each, types, DTypeError, "C5", "f16[3, 2]")
    types = ("bool[4, 2]", "i32[3, 2]", "bool[3, 2]")
    less = ScatterElements(reduction=ScatterKind.SUB)
    yield ErrorSample(lambda: less, types, DTypeError, "C6", "SUB")

    def append(axis: int = 1, pos: int = 0) -> KvAppend:
        return KvAppend(axis=axis, pos=pos)

    ok = ("f32[2, 8]", "f32[2, 1]")
    yield ErrorSample(lambda: append(axis=2), ok, ShapeError, "C1", "got 2")
    yield ErrorSample(append, ("f32[2, 8]", "f32[2, 2]"), ShapeError, "C2", "f32[2, 2]")
    yield ErrorSample(append, ("f32[2, 8]", "f16[2, 1]"), DTypeError, "C3", "f16[2, 1]")
    yield ErrorSample(lambda: append(pos=8), ok, ShapeError, "C4", "got 8")


def symbolic_samples() -> Iterator[SymbolicSample]:
    def wide(*sizes: Any) -> GatherGeneral:
        return _rows().replace(slice_sizes=sizes)  # type: ignore[return-value]

    batched = GatherGeneral(
        slice_sizes=(1, 1), offset_dims=(), collapsed_slice_dims=(1,), start_index_map=(1,),
        operand_batching_dims=(0,), start_indices_batching_dims=(0,),
    )  # fmt: skip
    rows = ScatterGeneral(
        update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
    )
    for op, *types in (
        (DynamicSlice(sizes=(B, 2)), "f32[b + 1, 2]", "i32[]", "i32[]"),
        (DynamicUpdateSlice(), "f32[b + 1, 2]", "f32[b, 1]", "i32[]", "i32[]"),
        (wide(1, B), "f32[b, b]", "i32[6, 1]"),
        (wide(1, 3), "f32[b, 3]", "i32[b, 1]"),
        (batched, "f32[b, 4]", "i32[b, 7, 1]"),
        (rows, "f32[b, 3]", "i32[2*b, 1]", "f32[2*b, 3]"),
        (Gather(axis=1), "f32[2, b, 3]", "i32[b, 2]"),
        (Take(axis=0), "f32[b, 3]", "i32[b]"),
        (GatherElements(axis=1), "f32[b, 3]", "i32[b, 1]"),
        (GatherNd(batch_dims=1), "f32[b, 3, b]", "i32[b, 4, 1]"),
        (ScatterAdd(size=B), "f32[4, 2*b]", "i32[4]"),
        (ScatterNd(), "f32[5, b]", "i32[b, 1]", "f32[b, b]"),
        (ScatterElements(axis=0), "f32[5, b]", "i32[2, b]", "f32[2, b]"),
        (KvAppend(axis=0, pos=B), "f32[2*b, 3]", "f32[1, 3]"),
    ):
        yield SymbolicSample(op, tuple(types), {"b": 3})
