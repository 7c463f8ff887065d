"""Misuse of the doors of rlx_xla: one clear error each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
import rlx_xla as doors
from rlx.errors import DimError, FormatError, LoweringError, RlxError, RunError, TraceError

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


def test_keywords_of_a_compiled_graph_are_refused_by_name() -> None:
    """Not even where they are called as the arguments of the generated function are."""
    x, y = np.full(2, 5, np.float32), np.ones(2, np.float32)

    def difference(a1: Any, a0: Any) -> Any:
        return a1 - a0

    traced = rlx.Session("cpu").compile(rlx_xla.trace(difference, x, y))
    b = rlx.GraphBuilder("built")
    first, second = b.input("a1", "f32[2]"), b.input("a0", "f32[2]")
    built = rlx.Session("cpu").compile(b.build([first - second, second]))
    for compiled in (traced, built):
        for named, args in (({"a1": x, "a0": y}, ()), ({"a0": y}, (x,)), ({"c": y}, (x, y))):
            with pytest.raises(RunError) as caught:
                compiled(*args, **named)
            assert isinstance(caught.value, TypeError)
            assert str(caught.value) == (
                "call: arguments are required by position, in the order 'a1', 'a0'; got the "
                f"keyword {next(iter(named))!r}. Pass it by position; run(...) takes inputs by "
                "name."
            )
