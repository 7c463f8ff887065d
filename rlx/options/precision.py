"""In which precision a session computes, and which ops a policy lowers."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
        overrides: label pattern → precision, the first that matches wins over the classes.
    """

    name: str
    low: tuple[tuple[OpClass, Precision], ...] = ()
    overrides: tuple[tuple[str, Precision], ...] = ()

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

    def override(self, pattern: str, precision: Precision) -> PrecisionPolicy:
        """The policy with a precision of their own for the ops under some labels.

        Args:
            pattern: a label such as ``encoder/*/head``, with ``*``, ``?`` and ``[...]`` as in file
                names (``*`` takes any number of levels).
            precision: what those ops compute in; F32 leaves them as they are. A pattern given
                earlier wins.

        Raises:
            CompileError: the pattern is no text, or empty, or the precision no Precision.
        """
        if not isinstance(cast("object", pattern), str) or not pattern:
            raise CompileError(
                "PrecisionPolicy.override: the pattern of a label is required, such as "
                f"'encoder/*'; got {pattern!r}."
            )
        if not isinstance(cast("object", precision), Precision):
            raise CompileError(
                f"PrecisionPolicy.override: a Precision is required for {pattern!r}; got "
                f"{precision!r}. Use rlx.Precision."
            )
        return replace(self, overrides=(*self.overrides, (pattern, precision)))

    def precision_of(self, kind: OpClass) -> Precision:
        """The precision that a class of ops computes in."""
        return dict(self.low).get(kind, Precision.F32)

    def __str__(self) -> str:
        shown = [f"{kind.value}={precision.value}" for kind, precision in self.low]
        if self.name != "custom":
            shown = []
        shown += [f"{pattern!r}={precision.value}" for pattern, precision in self.overrides]
        return f"{self.name}({', '.join(shown)})" if shown else self.name


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


def effective(precision: Precision, policy: PrecisionPolicy | None) -> PrecisionPolicy | None:
    """The policy that two options come to; None where the graph's dtypes stay.

    A policy goes before a precision. A precision alone lowers every class, as ALWAYS_F16 does.
    """
    if policy is not None:
        return policy if policy.low or policy.overrides else None
    if precision is Precision.F32:
        return None
    classes: dict[OpClass, Precision] = dict.fromkeys((*_MOST, OpClass.REDUCTION), precision)
    return _policy(f"always_{precision.value}", classes)
