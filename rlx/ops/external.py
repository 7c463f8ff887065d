"""Opaque nodes: what a frontend met and RLX does not model, and which still runs."""

from __future__ import annotations

from typing import Any

from rlx.dtypes import DType
from rlx.errors import TraceError
from rlx.ir.attributes import Opaque
from rlx.ir.op import Op, define_op
from rlx.types import Shape, TensorType


@define_op("external")
class External(Op):
    """A foreign computation, kept as it is; passes treat it as a black box.

    Inputs:
        operands: any types; a token for each kind of effect comes last.

    Attributes:
        name: what it is called where it comes from, such as a JAX primitive's name.
        dtypes: element types of the results.
        shapes: shapes of the results.
        effect: the kinds of effect, or an empty string.
        stablehlo: pairs (platform, StableHLO text) from which it is lowered and saved.
        live: the computation in memory (a jaxpr), lost when the graph is saved.

    Result:
        One value per dtype and shape, those of the tokens included.

    Source: `DESIGN.md`, opaque node.
    """

    name: str
    dtypes: tuple[DType, ...] = ()
    shapes: tuple[Shape, ...] = ()
    effect: str = ""
    stablehlo: tuple[tuple[str, str], ...] = ()
    live: Opaque | None = None

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        del operands
        return tuple(TensorType(d, s) for d, s in zip(self.dtypes, self.shapes, strict=True))

    def evaluate(self, *operands: Any) -> Any:
        if self.live is None or self.live.evaluate is None:
            raise TraceError(
                f"external: {self.name!r} has no NumPy meaning here, because only its StableHLO "
                "text is left. Compile the graph instead of interpreting it, or trace it again."
            )
        return self.live.evaluate(*operands)
