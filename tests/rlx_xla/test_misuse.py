"""Misuse of the doors of rlx_xla: one clear error each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx_xla as doors
from rlx.errors import DimError, FormatError, LoweringError, RlxError, TraceError

rlx_xla: Any = doors


def _same(x: Any) -> Any:
    return x


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: rlx_xla.stablehlo(3), LoweringError,
            "stablehlo: a Graph or a traced function is required; got int. Trace a JAX function "
            "with rlx_xla.trace(fn, ...).",
        ),
        (
            lambda: rlx_xla.quantize(3, "q4_k"), TraceError,
            "quantize: what rlx_xla.trace gave, or quantize itself, is required; got int. Trace "
            "the function first, with params=.",
        ),
        (
            lambda: rlx_xla.load_artifact(3), FormatError,
            "load_artifact: a path is required; got int.",
        ),
        (
            lambda: rlx_xla.load_export(3), FormatError,
            "load_export: a path is required; got int.",
        ),
        (
            lambda: rlx_xla.trace(_same, 1.0, params="weights"), TraceError,
            "trace [params]: positions of arguments are required; got 'weights'. Give numbers; "
            "for names write params=lambda name: name.startswith('encoder/').",
        ),
        (
            lambda: rlx_xla.trace(_same, 1.0, donate_argnums=(0.5,)), TraceError,
            "trace [donate_argnums]: positions of arguments are required; got (0.5,). Give "
            "numbers.",
        ),
        (
            lambda: rlx_xla.trace(_same, "f32[seq]", constraints=("sep % 4 == 0",)), DimError,
            "constraint sep%4 == 0: symbols of the graph are required (seq); got 'sep'. Did you "
            "mean 'seq'?",
        ),
        (
            lambda: rlx_xla.trace(_same, 1.0, constraints=("n > 3",)), DimError,
            "constraint n > 3: symbols of the graph are required (it has none); got 'n'.",
        ),
        (
            lambda: rlx_xla.jit(_same, options=3), TraceError,
            "jit [options]: a CompileOptions is required; got int. Write "
            "options=rlx.CompileOptions(...).",
        ),
    ],
)  # fmt: skip
def test_what_is_not_meant_is_refused(
    call: Callable[[], Any], error: type[RlxError], message: str
) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_positions_may_be_numbers_of_numpy() -> None:
    traced = rlx_xla.trace(lambda w, x: w * x, np.ones(3), "f32[3]", params=np.array([0]))
    assert list(traced.params) == ["w"]
