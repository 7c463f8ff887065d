"""Shapes and dtypes of the tensors of a packed weight: one check for codecs and ops."""

from __future__ import annotations

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.quant.schemes import QuantScheme, SchemeKind
from rlx.types import TensorType

_CODES = {
    SchemeKind.INT8: DType.I8,
    SchemeKind.INT8_ASYM: DType.I8,
    SchemeKind.MLX_AFFINE: DType.U32,
    SchemeKind.MLX_MXFP4: DType.U32,
    SchemeKind.MLX_MXFP8: DType.U32,
}
"""Dtypes of codes; all others are u8."""


def code_dtype(scheme: QuantScheme) -> DType:
    """The dtype of a scheme's codes."""
    return _CODES.get(scheme.kind, DType.U8)


def matrix(
    scheme: QuantScheme,
    weight: TensorType,
    scale: TensorType | None,
    zero: TensorType | None,
    size: int = 0,
) -> tuple[int, int]:
    """Check the tensors of a packed weight, and return the shape of its numbers.

    Args:
        scheme: what the bytes mean.
        weight: type of the codes.
        scale: type of the scales, or None.
        zero: type of the zero points, biases or global scale, or None.
        size: K where it is known; 0 where it is not.

    Returns:
        (K, N), or (N, K) for schemes that are stored by rows.

    Raises:
        ShapeError: a tensor is missing, superfluous, symbolic, or of another shape.
        DTypeError: a tensor has another dtype.
    """
    _check_presence(scheme, scale, zero)
    for name, found in (("weight", weight), ("scale", scale), ("zero", zero)):
        if found is not None and not found.is_static:
            raise ShapeError(
                f"{name} of {scheme} is required to have sizes that are numbers; got {found}. "
                "Bind its symbols."
            )
    if weight.dtype is not code_dtype(scheme):
        raise DTypeError(
            f"weight of {scheme} is required to be {code_dtype(scheme)}; got {weight}. "
            "View its bytes so."
        )
    rows, cols = _sizes(scheme, weight, scale, size)
    _check_scale(scheme, weight, scale, rows, cols)
    _check_zero(scheme, weight, scale, zero, rows)
    if size and size != (cols if scheme.is_rows else rows):
        raise ShapeError(
            f"weight of {scheme} is required to have K = {size}; got {weight}, which has K = "
            f"{cols if scheme.is_rows else rows}. Check which axis is which."
        )
    return rows, cols


def _check_presence(scheme: QuantScheme, scale: TensorType | None, zero: TensorType | None) -> None:
    optional = scheme.kind in (SchemeKind.FP8_E4M3, SchemeKind.FP8_E5M2)
    if scale is None and scheme.has_scale and not optional:
        raise ShapeError(f"{scheme} is required to have a scale; got none. Pass it after weight.")
    if scale is not None and not scheme.has_scale:
        raise ShapeError(
            f"{scheme} is required to come without scale, which is in its blocks; got {scale}. "
            "Leave it out."
        )
    if zero is None and scheme.has_zero_point:
        raise ShapeError(f"{scheme} is required to have a zero; got none. Pass it after scale.")
    if zero is not None and not scheme.takes_zero:
        raise ShapeError(f"{scheme} is required to come without zero; got {zero}. Leave it out.")


def _wrong(scheme: QuantScheme, wanted: str, found: TensorType) -> ShapeError:
    return ShapeError(
        f"weight of {scheme} is required to be {wanted}; got {found}. See the scheme's layout."
    )


def _sizes(
    scheme: QuantScheme, weight: TensorType, scale: TensorType | None, size: int
) -> tuple[int, int]:
    """(K, N), or (N, K) for schemes by rows, from the shapes of weight and scale."""
    shape = [d for d in weight.shape if type(d) is int]
    match scheme.kind:
        case SchemeKind.INT4 | SchemeKind.NVFP4:
            if scale is None or scale.rank != 2:
                raise ShapeError(
                    f"scale of {scheme} is required to be [⌈K/{scheme.block}⌉, N]; got {scale}. "
                    "Reshape it."
                )
            blocks, cols = (d for d in scale.shape if type(d) is int)
            rows = size or blocks * scheme.block
            if shape != [-(-rows * cols // 2)]:
                wanted = f"u8[⌈{rows} · {cols} / 2⌉] of K = {rows} and scale {scale}"
                raise _wrong(scheme, wanted, weight)
            return rows, cols
        case SchemeKind.MXFP4X2:
            if len(shape) != 3 or shape[0] != 2:
                raise _wrong(scheme, "u8[2, N, K/2]", weight)
            return shape[1], shape[2] * 2
        case _:
            pass
    if len(shape) != 2:
        wanted = "[N, …] by rows" if scheme.is_rows else "[K, N]"
        raise _wrong(scheme, wanted, weight)
    rows, cols = shape
    if scheme.is_gguf:
        if cols % scheme.block_bytes:
            raise _wrong(scheme, f"rows of whole blocks of {scheme.block_bytes} bytes", weight)
        return rows, cols // scheme.block_bytes * scheme.block_size
    if scheme.is_mlx:
        if cols * 32 % scheme.code_bits:
            raise _wrong(scheme, f"rows of whole codes of {scheme.code_bits} bits", weight)
        return rows, cols * 32 // scheme.code_bits
    return rows, cols


def _check_scale(
    scheme: QuantScheme, weight: TensorType, scale: TensorType | None, rows: int, cols: int
) -> None:
    if scheme.is_rows and scheme.has_scale and cols % scheme.block:
        raise _wrong(scheme, f"rows whose K is a multiple of {scheme.block}", weight)
    if scale is None:
        return
    wanted, dtypes = (-(-rows // scheme.block_size), cols), (DType.F32,)
    match scheme.kind:
        case SchemeKind.FP8_E4M3 | SchemeKind.FP8_E5M2:
            wanted = (cols,)
        case SchemeKind.NVFP4:
            dtypes = (DType.U8,)
        case SchemeKind.MLX_AFFINE:
            wanted, dtypes = (rows, cols // scheme.block), (DType.F32, DType.F16, DType.BF16)
        case SchemeKind.MLX_MXFP4 | SchemeKind.MLX_MXFP8:
            wanted, dtypes = (rows, cols // scheme.block), (DType.U8,)
        case SchemeKind.MXFP4X2:
            wanted, dtypes = (2, rows, cols // scheme.block), (DType.U8,)
        case _:
            pass
    _check("scale", scheme, scale, wanted, dtypes, weight)


def _check_zero(
    scheme: QuantScheme,
    weight: TensorType,
    scale: TensorType | None,
    zero: TensorType | None,
    rows: int,
) -> None:
    if zero is None or scale is None:
        return
    if scheme.kind is SchemeKind.NVFP4:
        _check("zero", scheme, zero, (1,), (DType.F32,), weight)
    else:
        shape = tuple(d for d in scale.shape if type(d) is int)
        _check("zero", scheme, zero, shape, (scale.dtype,), weight)
    del rows


def _check(
    name: str,
    scheme: QuantScheme,
    found: TensorType,
    wanted: tuple[int, ...],
    dtypes: tuple[DType, ...],
    weight: TensorType,
) -> None:
    if found.shape != wanted:
        raise ShapeError(
            f"{name} of {scheme} is required to be {TensorType(dtypes[0], wanted)} for weight: "
            f"{weight}; got {found}. Reshape it, or check the block size."
        )
    if found.dtype not in dtypes:
        raise DTypeError(
            f"{name} of {scheme} is required to be {' or '.join(map(str, dtypes))}; got {found}. "
            "Convert it."
        )
