"""What each field of ``CompileOptions`` accepts, and which fields change nothing on XLA."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from rlx.dims import DimBinding
from rlx.errors import CompileError, did_you_mean
from rlx.options.dispatch import KernelDispatch
from rlx.options.fusion import FusionOptions, FusionTarget
from rlx.options.precision import Precision, PrecisionPolicy
from rlx.options.rng import RngOptions

Accepts = Callable[[Any], bool]

MATMUL_PRECISIONS = ("default", "high", "highest")
BUCKET_LADDERS = ("pow2", "auto")
_NOTHING = type(None)


def check(name: str, value: Any) -> None:
    """Refuse a value that a field does not take.

    Raises:
        CompileError: with the field, what it takes and what came.
    """
    what, accepts = _FIELDS[name]
    if accepts(value):
        return
    raise CompileError(
        f"CompileOptions.{name}: required {what}; got {_shown(value)}.{_hint(name, value)}"
    )


def without_effect(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Lines on fields that were set and change nothing here, each with its reason."""
    return [
        f"{name}={values[name]!r} has no effect: {reason}"
        for name, reason in _WITHOUT_EFFECT.items()
        if values[name] != defaults[name]
    ]


def _is(*kinds: type) -> Accepts:
    return lambda value: isinstance(value, kinds)


def _whole(least: int) -> Accepts:
    return lambda value: type(value) is int and value >= least


def _names(value: Any) -> bool:
    if not isinstance(value, frozenset | set | list | tuple):
        return False
    return all(isinstance(name, str) for name in cast("Iterable[object]", value))


def _supported(value: Any) -> bool:
    return value is None or callable(value) or _names(value)


def _power_of_two(value: Any) -> bool:
    return type(value) is int and value >= 1 and value & (value - 1) == 0


def _resident(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    pairs = cast("Mapping[object, object]", value).items()
    return all(isinstance(k, str) and type(v) is int and v >= 0 for k, v in pairs)


def _flags(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    pairs = cast("Mapping[object, object]", value).items()
    return all(isinstance(k, str) and isinstance(v, bool | int | float | str) for k, v in pairs)


def _packed(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, Mapping):
        return False
    pairs = cast("Mapping[object, object]", value).items()
    return all(isinstance(k, str) and isinstance(v, bytes | bytearray) for k, v in pairs)


def _ladder(sizes: object) -> bool:
    if isinstance(sizes, str):
        return sizes in BUCKET_LADDERS
    if not isinstance(sizes, list | tuple):
        return False
    steps = list(cast("Iterable[object]", sizes))
    if not steps or not all(type(n) is int and n >= 1 for n in steps):
        return False
    return sorted(set(cast("list[int]", steps))) == steps


def _buckets(value: Any) -> bool:
    if value is None or isinstance(value, str):
        return value is None or value in BUCKET_LADDERS
    if not isinstance(value, Mapping):
        return False
    pairs = cast("Mapping[object, object]", value).items()
    return all(isinstance(k, str) and _ladder(v) for k, v in pairs)


def _scaled(value: Any) -> bool:
    if value is None:
        return True
    from rlx.quant import ScaledQuantConfig  # loads the op families

    return isinstance(value, ScaledQuantConfig)


def _weights(value: Any) -> bool:
    if value is None or value == "packed":
        return True
    if not isinstance(value, str):
        return False
    from rlx.packing import is_scheme  # loads the op families

    return is_scheme(value)


_BOOL = ("a bool", _is(bool))

_FIELDS: dict[str, tuple[str, Accepts]] = {
    "precision": ("a Precision", _is(Precision)),
    "policy": ("a PrecisionPolicy, or None", _is(PrecisionPolicy, _NOTHING)),
    "scaled_quant": ("an rlx.quant.ScaledQuantConfig, or None", _scaled),
    "weights": ("'packed', the name of a scheme as rlx_xla.quantize takes it, or None", _weights),
    "rng": ("an RngOptions", _is(RngOptions)),
    "dce": _BOOL,
    "constant_folding": _BOOL,
    "verbose": _BOOL,
    "fusion_target": ("a FusionTarget, or None", _is(FusionTarget, _NOTHING)),
    "fusion_opts": ("a FusionOptions", _is(FusionOptions)),
    "assert_fusion_clean": _BOOL,
    "supported_ops": ("a set of op names, a predicate on nodes, or None", _supported),
    "dim_binding": ("a mapping (symbol → size), or None", _is(Mapping, DimBinding, _NOTHING)),
    "param_bindings": ("a mapping (param → array), or None", _is(Mapping, _NOTHING)),
    "quant_param_bindings": ("a mapping (param → bytes), or None", _packed),
    "kernel_dispatch": ("a KernelDispatch", _is(KernelDispatch)),
    "scan_unroll_max_length": ("an int ≥ 0", _whole(0)),
    "roll_blocks": ("0 or an int ≥ 2", lambda value: _whole(0)(value) and value != 1),
    "cache_param_invariant": _BOOL,
    "strict": _BOOL,
    "matmul_precision": (
        f"one of {', '.join(map(repr, MATMUL_PRECISIONS))}, or None",
        lambda value: value is None or value in MATMUL_PRECISIONS,
    ),
    "lint_numerics": _BOOL,
    "fusion_report": _BOOL,
    "dispatch_report": _BOOL,
    "ir_dump": ("the name of a folder, or None", _is(str, _NOTHING)),
    "validate": _BOOL,
    "cast_inputs": _BOOL,
    "specialization_cache_size": ("an int ≥ 1", _whole(1)),
    "buckets": (
        "a mapping (symbol → ascending sizes, 'pow2' or 'auto'), 'pow2', 'auto', or None",
        _buckets,
    ),
    "on_unsafe": ("'exact' or 'error'", lambda value: value in ("exact", "error")),
    "constraints": ("a tuple of texts, such as ('seq % 64 == 0',)", _names),
    "donate": ("a set of input names", _names),
    "resident": ("a mapping (input name → number of the output that feeds it)", _resident),
    "compiler_options": ("a mapping (XLA flag → bool, number or text)", _flags),
    "arena_alignment": ("a power of two", _power_of_two),
    "disable_mpsgraph": _BOOL,
    "disable_conv_bias_act_fusion": _BOOL,
    "no_io_peaks_output": _BOOL,
}

_WITHOUT_EFFECT = {
    "arena_alignment": "XLA lays buffers out by itself.",
    "disable_mpsgraph": "MPSGraph is a path of Apple's devices, which XLA does not reach.",
    "disable_conv_bias_act_fusion": "XLA fuses bias and activation into convolutions by itself.",
    "no_io_peaks_output": "peaks-only outputs are never chosen here.",
}
"""Fields that are accepted so that RLX's options carry over; a report names those that were set."""


def _shown(value: Any) -> str:
    simple = isinstance(value, bool | int | float | str | bytes) or value is None
    return repr(value) if simple else type(value).__name__


def _hint(name: str, value: Any) -> str:
    if name == "matmul_precision" and isinstance(value, str):
        return did_you_mean(value, MATMUL_PRECISIONS)
    if name == "buckets" and isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        wrong = [f"{n!r}: {sizes!r}" for n, sizes in pairs if not _ladder(sizes)]
        return f" Correct {wrong[0]}: a list of ints ≥ 1, each above the last." if wrong else ""
    return ""
