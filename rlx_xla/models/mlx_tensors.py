"""Matrices of a model folder that MLX quantised: which they are, in what scheme, and their sizes.

Source: the layout of ``mlx.nn.QuantizedLinear`` and ``quantization`` in ``config.json`` (mlx-lm).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NoReturn, final

from rlx.dtypes import DType
from rlx.quant import QuantScheme
from rlx.quant.schemes import MLX_BITS
from rlx.types import TensorType

_GROUPS = (32, 64, 128)
_MODES = ("affine", "mxfp4", "mxfp8")
_FLOATS = (DType.F32, DType.F16, DType.BF16)


@final
class MlxSchemes:
    """What ``quantization`` of a ``config.json`` says; a matrix may have a scheme of its own."""

    def __init__(self, config: Mapping[str, Any], fail: Callable[[str, object], NoReturn]) -> None:
        """Read it; a config without it quantises nothing.

        Args:
            config: the content of ``config.json``.
            fail: raises an error with what is required and what was found.
        """
        said = config.get("quantization") or config.get("quantization_config")
        if said is not None and not isinstance(said, dict):
            fail("config.json: quantization is required to be an object", said)
        if isinstance(said, dict) and "group_size" not in said:
            # Another library's, whose tensors have other names and forms.
            fail(
                "config.json: quantization is required to be MLX's, with group_size and bits",
                said.get("quant_method", sorted(said)),
            )
        self._said: Mapping[str, Any] = said or {}
        self._fail = fail

    def parts(self, source: str, held: Container[str]) -> tuple[str, ...]:
        """Names of scales and biases beside a tensor; none where it holds numbers."""
        if not self._said or not source.endswith(".weight"):
            return ()
        stem = source.removesuffix("weight")
        if f"{stem}scales" not in held:
            return ()
        names = (f"{stem}scales", f"{stem}biases")
        return names if names[1] in held else names[:1]

    def scheme(self, source: str) -> QuantScheme:
        """The scheme of a quantised tensor."""
        own = self._said.get(source.removesuffix(".weight"))
        said = {**self._said, **own} if isinstance(own, dict) else self._said
        mode, bits, group = said.get("mode", "affine"), said.get("bits", 4), said["group_size"]
        if mode not in _MODES:
            self._fail(f"config.json: mode of {source} is required to be of {_MODES}", mode)
        if mode == "affine":
            if type(bits) is not int or bits not in MLX_BITS:
                self._fail(f"config.json: bits of {source} are required to be of {MLX_BITS}", bits)
            if type(group) is not int or group not in _GROUPS:
                wanted = f"config.json: group_size of {source} is required to be of {_GROUPS}"
                self._fail(wanted, group)
            return QuantScheme.mlx_affine(bits, group)
        if group != 32 or bits != int(mode[-1]):
            wanted = f"config.json: {mode} of {source} is required to have groups of 32"
            self._fail(f"{wanted} and {mode[-1]} bits", (group, bits))
        return QuantScheme.mlx_mxfp4(32) if mode == "mxfp4" else QuantScheme.mlx_mxfp8(32)


def quantised_shape(
    source: str,
    scheme: QuantScheme,
    codes: TensorType,
    parts: Sequence[TensorType],
    fail: Callable[[str, object], NoReturn],
) -> tuple[int, ...]:
    """Return N and K of a quantised matrix whose parts fit each other.

    Args:
        source: its name.
        scheme: of it.
        codes: type of its codes.
        parts: types of scales and biases.
        fail: raises an error with what is required and what was found.
    """
    found = ", ".join(map(str, (codes, *parts)))
    wide = 0 if len(codes.shape) != 2 else codes.shape[1]
    bits = scheme.bits or int(scheme.kind.value[-1])
    if codes.dtype is not DType.U32 or not isinstance(wide, int) or wide * 32 % bits:
        fail(f"{source} ({scheme}) is required to be u32[N, K · {bits} / 32]", found)
    rows, inner = codes.shape[0], wide * 32 // bits
    dtypes = _FLOATS if scheme.has_zero_point else (DType.U8,)
    wanted = (rows, inner // scheme.block)
    good = inner % scheme.block == 0 and all(
        part.shape == wanted and part.dtype in dtypes and part.dtype is parts[0].dtype
        for part in parts
    )
    if not good or len(parts) != 1 + scheme.has_zero_point:
        names = "scales and biases" if scheme.has_zero_point else "scales alone"
        kinds = ", ".join(map(str, dtypes))
        fail(
            f"{source} ({scheme}) is required to have {names} [N, K / {scheme.block}] of {kinds}",
            found,
        )
    return (int(str(rows)), inner)
