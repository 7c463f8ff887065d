"""In which precision a session computes, and which ops a policy lowers."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast, final

from rlx.errors import CompileError


@final
class Precision(enum.Enum):
    """The dtype that a graph's floats are computed in.

    F32 leaves every dtype as the graph says.
    """

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"


@final
class OpClass(enum.Enum):
    """What kind of work an op does, as precision policies see it.

    COMPUTE: matmul-like ops, convolutions, attention. REDUCTION: norms, softmax, reductions,
    exp, log, losses. ELEMENTWISE: the other ops on single elements. DATA_MOVEMENT: reshapes,
    transposes, gathers. BOUNDARY: inputs, params, constants.
    """

    COMPUTE = "compute"
    REDUCTION = "reduction"
    ELEMENTWISE = "elementwise"
    DATA_MOVEMENT = "data_movement"
    BOUNDARY = "boundary"


@final
@dataclass(frozen=True)
class PrecisionPolicy:
    """Which classes of ops compute in a low precision; all others stay in f32.

    Reductions always accumulate in f32, and the dtypes of inputs, params and outputs stay.

    Attributes:
        name: what it prints as.
        low: class → precision of the classes that are not F32, in the order of ``OpClass``.
    """

    name: str
    low: tuple[tuple[OpClass, Precision], ...] = ()

    ALWAYS_F32: ClassVar[PrecisionPolicy]
    ALWAYS_F16: ClassVar[PrecisionPolicy]
    AUTO_MIXED: ClassVar[PrecisionPolicy]
    AUTO_MIXED_CONSERVATIVE: ClassVar[PrecisionPolicy]
    AUTO_MIXED_BF16: ClassVar[PrecisionPolicy]
    AUTO_MIXED_BF16_SAFE: ClassVar[PrecisionPolicy]

    @staticmethod
    def custom(classes: Mapping[OpClass, Precision]) -> PrecisionPolicy:
        """A policy from a precision per class; F32 for those that are left out.

        Raises:
            CompileError: a key is no OpClass or a value no Precision, or the boundary is lowered.
        """
        if not isinstance(cast("object", classes), Mapping):
            raise CompileError(
                "PrecisionPolicy.custom: a mapping (OpClass → Precision) is required; got "
                f"{type(classes).__name__}."
            )
        for key, value in cast("Mapping[object, object]", classes).items():
            if not isinstance(key, OpClass) or not isinstance(value, Precision):
                raise CompileError(
                    "PrecisionPolicy.custom: a mapping (OpClass → Precision) is required; got "
                    f"{key!r}: {value!r}. Use rlx.options.precision.OpClass and rlx.Precision."
                )
        if classes.get(OpClass.BOUNDARY, Precision.F32) is not Precision.F32:
            raise CompileError(
                "PrecisionPolicy.custom: inputs, params and constants are required to keep their "
                f"dtypes; got {classes[OpClass.BOUNDARY]} for OpClass.BOUNDARY. Leave it out."
            )
        return _policy("custom", dict(classes))

    def precision_of(self, kind: OpClass) -> Precision:
        """The precision that a class of ops computes in."""
        return dict(self.low).get(kind, Precision.F32)

    def __str__(self) -> str:
        shown = ", ".join(f"{kind.value}={precision.value}" for kind, precision in self.low)
        return f"{self.name}({shown})" if self.name == "custom" else self.name


def _policy(name: str, classes: Mapping[OpClass, Precision]) -> PrecisionPolicy:
    chosen = {kind: classes.get(kind, Precision.F32) for kind in OpClass}
    return PrecisionPolicy(
        name, tuple((kind, p) for kind, p in chosen.items() if p is not Precision.F32)
    )


_MOST = (OpClass.COMPUTE, OpClass.ELEMENTWISE, OpClass.DATA_MOVEMENT)

PrecisionPolicy.ALWAYS_F32 = _policy("always_f32", {})
PrecisionPolicy.ALWAYS_F16 = _policy(
    "always_f16", dict.fromkeys((*_MOST, OpClass.REDUCTION), Precision.F16)
)
PrecisionPolicy.AUTO_MIXED = _policy("auto_mixed", dict.fromkeys(_MOST, Precision.F16))
PrecisionPolicy.AUTO_MIXED_CONSERVATIVE = _policy(
    "auto_mixed_conservative", {OpClass.COMPUTE: Precision.F16}
)
PrecisionPolicy.AUTO_MIXED_BF16 = _policy("auto_mixed_bf16", dict.fromkeys(_MOST, Precision.BF16))
# RLX's safe variant: matmuls stay in f32, where bf16 diverged on large models.
PrecisionPolicy.AUTO_MIXED_BF16_SAFE = _policy(
    "auto_mixed_bf16_safe", {OpClass.ELEMENTWISE: Precision.BF16}
)


def require_own_dtypes(where: str, precision: Precision, policy: PrecisionPolicy | None) -> None:
    """Refuse whatever would change the dtypes that a graph computes in.

    Raises:
        CompileError: the precision is not F32, or the policy lowers a class of ops.
    """
    if precision is not Precision.F32:
        raise CompileError(
            f"{where}: precision is required to be Precision.F32, which leaves the graph's own "
            f"dtypes; got {precision!s}. Convert in the graph with .convert(...)."
        )
    if policy is not None and policy.low:
        raise CompileError(
            f"{where}: policy is required to be None or PrecisionPolicy.ALWAYS_F32, which leave "
            f"the graph's own dtypes; got {policy}. Convert in the graph with .convert(...)."
        )
