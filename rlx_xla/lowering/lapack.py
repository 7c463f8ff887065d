"""LAPACK's routines as custom calls: what each takes and gives, checked before a file's call runs.

XLA hands the buffers of a call to the library by their types. The library trusts them: a result
that is too small is written past its end. So a call from a file must be, to the last size and
attribute, one of those in the table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from rlx_xla._jax_compat import mlir
from rlx_xla._jax_compat.mlir import ir

_TARGET = re.compile(r"lapack_([sdcz])([a-z0-9]+)_ffi")
_ELEMENTS = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}
_REAL = {"s": np.float32, "d": np.float64, "c": np.float32, "z": np.float64}
_COMPLEX = {"s": np.complex64, "d": np.complex128, "c": np.complex64, "z": np.complex128}
_IGNORED = frozenset({
    "api_version", "backend_config", "call_target_name", "called_computations", "has_side_effect",
    "mhlo.backend_config", "mhlo.frontend_attributes", "mhlo.sharding", "operand_layouts",
    "output_operand_aliases", "result_layouts", "sdy.sharding", "sdy.sharding_rule",
})  # fmt: skip


@final
@dataclass(frozen=True)
class Routine:
    """The types of a routine's operands and results, after common leading axes.

    A type is T (the routine's dtype), R (its real one), C (its complex one) or i (i32), followed
    by a letter for each size: m and n of the matrix, k = min(m, n), h = n − 1, and those that
    follow from another operand. Other letters stand for any size.

    Attributes:
        operands: of real dtypes and of complex ones alike.
        results: the same.
        complex_results: where those of complex dtypes differ.
        choices: each attribute's name and values: the characters that LAPACK takes.
        dtypes: the letters of the dtypes that there are.
        flags: names of attributes that are truth values.
    """

    operands: str
    results: str
    complex_results: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    dtypes: str = "sdcz"
    flags: tuple[str, ...] = ()


_UPLO = (("uplo", "LU"),)
_SVD = Routine("Tmn", "Tmn Rk Tmu Tvn i", choices=(("mode", "ASN"),))
_EIGH = "Tnn Rn i"
_TRIDIAGONAL = "Tnn Rn Rh Th i"

ROUTINES: dict[str, Routine] = {
    "gees": Routine("Tnn", "Tnn Tnn Tn Tn i i", "Tnn Tnn Tn i i", (("mode", "NV"), ("sort", "N"))),
    "geev": Routine(
        "Tnn", "Tn Tn Cnn Cnn i", "Tn Tnn Tnn i", (("compute_left", "NV"), ("compute_right", "NV"))
    ),
    "gehrd": Routine("Tnn", "Tnn Th i"),
    "geqp3": Routine("Tmn in", "Tmn in Tk"),
    "geqrf": Routine("Tmn", "Tmn Tk"),
    "gesdd": _SVD,
    "gesvd": _SVD,
    "getrf": Routine("Tmn", "Tmn ik i"),
    "gtsv": Routine("Tn Tn Tn Tnr", "Tn Tn Tn Tnr i"),
    "heevd": Routine("Tnn", _EIGH, choices=(("mode", "NV"), *_UPLO), dtypes="cz"),
    "hetrd": Routine("Tnn", _TRIDIAGONAL, choices=_UPLO, dtypes="cz"),
    "ormqr": Routine("Tsq Tq Tmn", "Tmn", dtypes="sd", flags=("left", "transpose")),
    "orgqr": Routine("Tmn Tq", "Tmn", dtypes="sd"),
    "potrf": Routine("Tnn", "Tnn i", choices=_UPLO),
    "syevd": Routine("Tnn", _EIGH, choices=(("mode", "NV"), *_UPLO), dtypes="sd"),
    "sytrd": Routine("Tnn", _TRIDIAGONAL, choices=_UPLO, dtypes="sd"),
    "trsm": Routine(
        "Tss Tmn", "Tmn", choices=(("diag", "NU"), ("side", "LR"), ("trans_x", "NTC"), *_UPLO)
    ),
    "ungqr": Routine("Tmn Tq", "Tmn", dtypes="cz"),
    "unmqr": Routine("Tsq Tq Tmn", "Tmn", dtypes="cz", flags=("left", "transpose")),
}


def is_known(target: str) -> bool:
    """Whether a custom call's target is a routine of the table."""
    found = _TARGET.fullmatch(target)
    routine = None if found is None else ROUTINES.get(found[2])
    return routine is not None and found is not None and found[1] in routine.dtypes


def fault(operation: ir.Operation) -> str:
    """What is wrong with a custom call to a known target; an empty string if nothing is."""
    target = ir.StringAttr(operation.attributes["call_target_name"]).value
    letter, name = _TARGET.fullmatch(target).groups()  # type: ignore[union-attr]
    routine = ROUTINES[name]
    given = _types(operation.operands)
    taken = _types(operation.results)
    if given is None or taken is None:
        return f"{target}: operands and results are required to be arrays of known sizes."
    config = _config(operation)
    problem = _attribute_fault(operation, routine, config)
    if problem:
        return f"{target}: {problem}"
    complex_results = routine.complex_results if letter in "cz" else ""
    sizes: dict[str, int] = {}
    if any(0 in shape for _, shape in given):
        return f"{target}: sizes are required to be positive: the library divides by them."
    lead = given[0][1][: len(given[0][1]) - len(routine.operands.split()[0][1:])] if given else ()
    for side, found, said in (
        ("operands", given, routine.operands),
        ("results", taken, complex_results or routine.results),
    ):
        wanted = said.split()
        if side == "results":
            _follow(name, config, sizes)
        if len(found) != len(wanted) or not all(
            _fits(f, w, letter, lead, sizes) for f, w in zip(found, wanted, strict=True)
        ):
            listing = ", ".join(f"{np.dtype(d)}{list(shape)}" for d, shape in found)
            return f"{target}: {side} are required to be {said}; got {listing}."
    if not _sizes_hold(name, config, sizes):
        return f"{target}: its sizes and attributes do not belong together: {sizes}, {config}."
    attributes = _attributes(operation)
    lines = (routine.operands, complex_results or routine.results)
    keys = ("operand_layouts", "result_layouts")
    for key, found, line in zip(keys, (given, taken), lines, strict=True):
        matrices = [len(word) == 3 for word in line.split()]
        wanted = [_layout(len(s), m) for (_, s), m in zip(found, matrices, strict=True)]
        said = [list(map(int, layout)) for layout in attributes.get(key, ())]
        if said != wanted:
            return f"{target}: {key} are required to be {wanted}, column by column; got {said}."
    return ""


def _types(values: Sequence[ir.Value]) -> list[tuple[Any, tuple[int, ...]]] | None:
    found = [mlir.static_type(v.type) for v in values]
    return None if None in found else [f for f in found if f is not None]


def _config(operation: ir.Operation) -> dict[str, int] | None:
    """The integer attributes by name; None where there are others."""
    if "mhlo.backend_config" not in operation.attributes:
        return {}
    config: Any = operation.attributes["mhlo.backend_config"]
    if not isinstance(config, ir.DictAttr):
        return None
    entries: list[Any] = [(entry.name, entry.attr) for entry in config]
    if not all(isinstance(value, ir.IntegerAttr | ir.BoolAttr) for _, value in entries):
        return None
    return {name: int(value.value) for name, value in entries}


def _attribute_fault(
    operation: ir.Operation, routine: Routine, config: dict[str, int] | None
) -> str:
    attributes = _attributes(operation)
    unknown = sorted(set(attributes) - _IGNORED)
    if unknown:
        return f"attributes are required to be LAPACK's; got {', '.join(unknown)} too."
    if len(attributes.get("called_computations", ())):
        return "no functions are required; got called_computations."
    if "has_side_effect" in attributes and attributes["has_side_effect"].value:
        return "no side effect is required; got has_side_effect."
    wanted = [*(name for name, _ in routine.choices), *routine.flags]
    if routine is ROUTINES["gehrd"]:
        wanted = ["high", "low"]
    if config is None or sorted(config) != sorted(wanted):
        told = "others" if config is None else ", ".join(config) or "none"
        return f"settings are required to be {', '.join(wanted) or 'none'}; got {told}."
    for name, letters in routine.choices:
        if not 0 < config[name] < 128 or chr(config[name]) not in letters:
            return f"{name} is required to be one of {', '.join(letters)}; got {config[name]}."
    return ""


def _attributes(operation: ir.Operation) -> dict[str, Any]:
    named: list[Any] = [operation.attributes[i] for i in range(len(operation.attributes))]
    return {a.name: a.attr for a in named}


def _follow(name: str, config: dict[str, int] | None, sizes: dict[str, int]) -> None:
    """Give the letters of results that follow from the operands."""
    n = sizes.get("n", 0)
    m = sizes.get("m", n)
    sizes["k"], sizes["h"] = min(m, n), max(n - 1, 0)
    if name in ("gesdd", "gesvd"):
        small = config is not None and chr(config["mode"]) == "S"
        sizes["u"], sizes["v"] = (sizes["k"], sizes["k"]) if small else (m, n)


def _sizes_hold(name: str, config: dict[str, int] | None, sizes: dict[str, int]) -> bool:
    n = sizes.get("n", 0)
    given = config or {}
    if name == "gehrd":
        return 1 <= given["low"] <= max(given["high"], 1) and given["high"] <= n
    if name in ("orgqr", "ungqr"):
        return sizes["q"] <= n <= sizes["m"]
    if name in ("ormqr", "unmqr"):
        return sizes["q"] <= sizes["s"] == (sizes["m"] if given["left"] else n)
    if name == "trsm":
        return sizes["s"] == (sizes["m"] if chr(given["side"]) == "L" else n)
    return True


def _fits(
    found: tuple[Any, tuple[int, ...]],
    wanted: str,
    letter: str,
    lead: tuple[int, ...],
    sizes: dict[str, int],
) -> bool:
    dtype, shape = found
    kind = {"T": _ELEMENTS, "R": _REAL, "C": _COMPLEX}.get(wanted[0])
    if np.dtype(dtype) != (np.int32 if kind is None else kind[letter]):
        return False
    if len(shape) != len(lead) + len(wanted) - 1 or shape[: len(lead)] != lead:
        return False
    return all(
        sizes.setdefault(axis, size) == size
        for axis, size in zip(wanted[1:], shape[len(lead) :], strict=True)
    )


def _layout(rank: int, matrix: bool) -> list[int]:
    """Axes from the fastest on: a matrix's rows run first, other axes last to first."""
    order = list(range(rank))[::-1]
    return [rank - 2, rank - 1, *order[2:]] if matrix else order
