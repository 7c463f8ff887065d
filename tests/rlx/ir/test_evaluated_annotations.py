# An op in a module without `from __future__ import annotations`, as in a notebook.
"""Ops whose annotations are values and not text."""

import enum
from typing import final

import pytest

import rlx
from rlx.dtypes import DType
from rlx.errors import RegistryError
from rlx.ir.op import Op, define_op
from rlx.types import TensorType


@final
class Side(enum.Enum):
    """An enum of this module."""

    LEFT = "left"


@final
@define_op("test_evaluated")
class Evaluated(Op):
    """The identity, with attributes of every kind.

    y = x
    """

    factor: float = 1.0
    dtype: DType | None = None
    axes: tuple[int, ...] = ()
    side: Side = Side.LEFT
    kinds: tuple[DType, ...] = ()

    def infer(self, x: TensorType) -> TensorType:
        return x

    def evaluate(self, x):
        return x


def test_the_op_prints_parses_and_checks_its_attributes() -> None:
    b = rlx.GraphBuilder("g")
    op = Evaluated(factor=2, dtype=DType.F32, axes=(1, 2), kinds=(DType.I8,))
    graph = b.build(op(b.input("x", "f32[2]")))
    assert rlx.same(rlx.parse(str(graph)), graph)
    with pytest.raises(TypeError, match="'axes' is required to be tuple"):
        Evaluated(axes=("a",))


def test_other_annotations_are_refused() -> None:
    class Wrong(Op):
        """An attribute outside of the closed set."""

        x: complex = 0j

        def infer(self, x: TensorType) -> TensorType:
            return x

    with pytest.raises(RegistryError, match=r"Wrong\.x is annotated 'complex'; 'complex' is"):
        define_op("test_wrong_annotation")(Wrong)
