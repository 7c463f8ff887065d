"""ONNX's nodes that move elements, and matrix products, in our ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.dtypes import DType, as_dtype
from rlx.ir.graph import Value
from rlx.ir.operators import broadcast_to, constant, normalise_axis
from rlx.ops.indexing import ScatterKind
from rlx.ops.shape import EdgeMode
from tests.conformance.independent.case import Case, NotMapped, Results, full, maps

OPS: Any = ops  # classes by name


def sizes(x: Value) -> list[int]:
    """The dims as numbers; all of these graphs have known sizes."""
    return [int(d) for d in x.shape]  # type: ignore[arg-type]


@maps("Concat")
def concat(case: Case) -> Results:
    values = [case.value(i) for i in range(len(case.values))]
    return OPS.Concatenate(axis=case.axis(0))(*values)


@maps("Expand")
def expand(case: Case) -> Results:
    x = case.value()
    shape = np.broadcast_shapes(tuple(sizes(x)), tuple(case.numbers("shape", 1) or ()))
    return OPS.Expand(shape=shape)(x)


@maps("Flatten")
def flatten(case: Case) -> Results:
    x, axis = case.value(), case.get("axis", 1)
    axis = axis + x.rank if axis < 0 else axis
    return x.reshape(int(np.prod(sizes(x)[:axis])), int(np.prod(sizes(x)[axis:])))


@maps("Reshape")
def reshape(case: Case) -> Results:
    x, wanted = case.value(), case.numbers("shape", 1) or []
    if not case.get("allowzero", 0):
        wanted = [sizes(x)[i] if n == 0 else n for i, n in enumerate(wanted)]
    return x.reshape(*wanted)


@maps("Squeeze")
def squeeze(case: Case) -> Results:
    x, axes = case.value(), case.numbers("axes", 1)
    removed = {normalise_axis(a, x.rank) for a in axes or []}
    kept = [n for a, n in enumerate(sizes(x)) if (a not in removed if axes else n != 1)]
    return x.reshape(*kept)


@maps("Unsqueeze")
def unsqueeze(case: Case) -> Results:
    x, axes = case.value(), case.numbers("axes", 1) or []
    places = {normalise_axis(a, x.rank + len(axes)) for a in axes}
    rest = iter(sizes(x))
    return x.reshape(*(1 if a in places else next(rest) for a in range(x.rank + len(axes))))


@maps("Transpose")
def transpose(case: Case) -> Results:
    x = case.value()
    return OPS.Transpose(permutation=tuple(case.get("perm", range(x.rank)[::-1])))(x)


@maps("Tile")
def tile(case: Case) -> Results:
    return OPS.Tile(reps=tuple(case.numbers("repeats", 1) or ()))(case.value())


@maps("Trilu")
def trilu(case: Case) -> Results:
    (diagonal,) = case.numbers("k", 1) or [0]
    return OPS.Trilu(upper=bool(case.get("upper", 1)), diagonal=diagonal)(case.value())


@maps("Split")
def split(case: Case) -> Results:
    x, axis = case.value(), case.axis(0)
    parts = case.numbers("split", 1)
    if parts is None:
        count = case.get("num_outputs", case.outputs)
        most = -(-sizes(x)[axis] // count)
        parts = [min(most, sizes(x)[axis] - i * most) for i in range(count)]
    made = OPS.Split(axis=axis, sizes=tuple(parts))(x)
    return made if isinstance(made, tuple) else (made,)


@maps("Slice")
def sliced(case: Case) -> Results:
    x = case.value()
    starts, ends = case.numbers("starts", 1) or [], case.numbers("ends", 2) or []
    axes = case.numbers("axes", 3) or range(len(starts))
    steps = case.numbers("steps", 4) or [1] * len(starts)
    for start, end, given, step in zip(starts, ends, axes, steps, strict=True):
        axis = normalise_axis(given, x.rank)
        # Python's own rules are those of the node, but for an end that is clamped before 0.
        taken = range(sizes(x)[axis])[slice(start, end if end > -(2**31) else None, step)]
        first = taken[0] if taken else 0
        op = OPS.StridedSlice(axis=axis, start=first, length=len(taken), step=step)
        x = op(x)
    return x


@maps("Pad")
def pad(case: Case) -> Results:
    x, pads = case.value(), case.numbers("pads", 1) or []
    axes = [normalise_axis(a, x.rank) for a in case.numbers("axes", 3) or range(x.rank)]
    low, high = [0] * x.rank, [0] * x.rank
    for place, axis in enumerate(axes):
        low[axis], high[axis] = pads[place], pads[place + len(axes)]
    mode = case.get("mode", "constant")
    if mode == "constant":
        value = case.optional(2, full(x, 0))
        none = (0,) * x.rank
        padding = OPS.Pad(low=tuple(low), high=tuple(high), interior=none)
        return padding(x, value.reshape(()))
    modes = {"edge": EdgeMode.REPLICATE, "reflect": EdgeMode.REFLECT, "wrap": EdgeMode.CIRCULAR}
    return OPS.PadEdges(low=tuple(low), high=tuple(high), mode=modes[mode])(x)


@maps("DepthToSpace", "SpaceToDepth")
def blocks(case: Case) -> Results:
    x, b = case.value(), case.get("blocksize")
    n, c, h, w = sizes(x)
    if case.kind == "SpaceToDepth":
        case.only(mode="DCR")
        wide = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
        return wide.reshape(n, c * b * b, h // b, w // b)
    if case.get("mode", "DCR") == "DCR":
        wide = x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        wide = x.reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return wide.reshape(n, c // (b * b), h * b, w * b)


@maps("Upsample", "Resize")
def resize(case: Case) -> Results:
    x = case.value()
    scales = case.known(2 if case.kind == "Resize" else 1)
    nearest = case.get("mode", "nearest") in (b"nearest", "nearest")
    if not nearest or x.rank != 4 or scales is None or scales.size != 4:
        raise NotMapped("another resizing than to the nearest by scales")
    plain = case.get("nearest_mode", "round_prefer_floor") == "floor" or case.kind == "Upsample"
    if [float(s) for s in scales] == [1, 1, 2, 2]:
        return OPS.ResizeNearest2x()(x)
    if not plain or case.get("coordinate_transformation_mode") != "asymmetric":
        raise NotMapped("another coordinate than index / scale rounded down")
    shape = [int(np.floor(n * s)) for n, s in zip(sizes(x), scales, strict=True)]
    return OPS.Interpolate3d(size=(1, *shape[2:]))(
        x.reshape(*sizes(x)[:2], 1, *sizes(x)[2:])
    ).reshape(*shape)


def wrapped(case: Case, place: int, size: int) -> Value:
    """Indices with negative ones counted from the end."""
    indices, array = case.value(place), case.known(place)
    if array is None or not (array < 0).any():
        return indices
    end = broadcast_to(constant(size, indices.dtype), indices.shape)
    return OPS.Select()(indices < 0, indices + end, indices)


@maps("Gather")
def gather(case: Case) -> Results:
    x, axis = case.value(), case.axis(0)
    return OPS.Gather(axis=axis)(x, wrapped(case, 1, sizes(x)[axis]))


@maps("GatherElements")
def gather_elements(case: Case) -> Results:
    x, axis = case.value(), case.axis(0)
    return OPS.GatherElements(axis=axis)(x, wrapped(case, 1, sizes(x)[axis]))


@maps("GatherND")
def gather_nd(case: Case) -> Results:
    indices = case.known(1)
    if indices is not None and (indices < 0).any():
        raise NotMapped("negative index vectors")
    return OPS.GatherNd(batch_dims=case.get("batch_dims", 0))(case.value(), case.value(1))


KINDS = {
    "none": ScatterKind.SET, "add": ScatterKind.ADD, "mul": ScatterKind.MUL,
    "max": ScatterKind.MAX, "min": ScatterKind.MIN,
}  # fmt: skip


@maps("Scatter", "ScatterElements")
def scatter_elements(case: Case) -> Results:
    x, axis = case.value(), case.axis(0)
    op = OPS.ScatterElements(axis=axis, reduction=KINDS[case.get("reduction", "none")])
    return op(x, wrapped(case, 1, sizes(x)[axis]), case.value(2))


@maps("ScatterND")
def scatter_nd(case: Case) -> Results:
    indices = case.known(1)
    if indices is not None and (indices < 0).any():
        raise NotMapped("negative index vectors")
    op = OPS.ScatterNd(reduction=KINDS[case.get("reduction", "none")])
    return op(case.value(), case.value(1), case.value(2))


@maps("MatMul")
def matmul(case: Case) -> Results:
    return case.value() @ case.value(1)


@maps("MatMulInteger")
def matmul_integer(case: Case) -> Results:
    lhs, rhs = (case.value(i).convert(DType.I32) for i in (0, 1))
    for place, zero in ((0, case.optional(2)), (1, case.optional(3))):
        if (zero is not None and zero.rank == 0) or (zero is not None and sizes(zero) == [1]):
            shift = zero.reshape(()).convert(DType.I32)
            lhs, rhs = (
                (lhs - broadcast_to(shift, lhs.shape), rhs)
                if place == 0
                else (
                    lhs,
                    rhs - broadcast_to(shift, rhs.shape),
                )
            )
        elif zero is not None:
            raise NotMapped("zero points by row")
    return lhs @ rhs


@maps("Gemm")
def gemm(case: Case) -> Results:
    a, b, c = case.value(0), case.value(1), case.optional(2)
    a = a.T if case.get("transA", 0) else a
    b = b.T if case.get("transB", 0) else b
    product = (a @ b) * float(case.get("alpha", 1.0))
    if c is None:
        return product
    return product + broadcast_to(c, product.shape) * float(case.get("beta", 1.0))


@maps("Det")
def det(case: Case) -> Results:
    return OPS.Det()(case.value())


@maps("DFT")
def dft(case: Case) -> Results:
    from rlx.ops.complex_fft import BlockNorm, fft_axis, split_spectrum

    x, last = case.value(), case.value().rank - 1
    (axis,) = case.numbers("axis", 2) or [case.get("axis", -2)]
    axis = normalise_axis(axis, x.rank)
    (length,) = case.numbers("dft_length", 1) or [sizes(x)[axis]]
    missing = [max(length - n, 0) if a == axis else 0 for a, n in enumerate(sizes(x))]
    none = (0,) * x.rank
    x = OPS.Pad(low=none, high=tuple(missing), interior=none)(x, full(x, 0)).narrow(axis, 0, length)
    real = x.narrow(last, 0, 1).reshape(*sizes(x)[:-1])
    zeros = broadcast_to(full(x, 0), real.shape)
    imag = x.narrow(last, 1, 1).reshape(*sizes(x)[:-1]) if sizes(x)[-1] == 2 else zeros
    inverse = bool(case.get("inverse", 0))
    if inverse and case.get("onesided", 0):
        raise NotMapped("the inverse of half a spectrum")
    made = fft_axis(OPS.Complex()(real, imag), axis, inverse=inverse, norm=BlockNorm.FORWARD)
    if case.get("onesided", 0):
        made = made.narrow(axis, 0, length // 2 + 1)
    columns = [v.reshape(*sizes(v), 1) for v in split_spectrum(made)]
    return OPS.Concatenate(axis=last)(*columns)


@maps("BitCast")
def bitcast(case: Case) -> Results:
    import onnx

    target = as_dtype(onnx.helper.tensor_dtype_to_np_dtype(case.get("to")))
    if DType.BOOL in (target, case.value().dtype):
        raise NotMapped("the bits of bool")
    return OPS.BitcastConvert(dtype=target)(case.value())
