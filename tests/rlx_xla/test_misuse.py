"""Misuse of the doors of rlx_xla: one clear error each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
import rlx_xla as doors
from rlx.errors import (
    CompileError,
    DimError,
    DTypeError,
    FormatError,
    LoweringError,
    RlxError,
    RunError,
    TraceError,
)

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


def _compiled() -> rlx.CompiledGraph:
    b = rlx.GraphBuilder("g")
    return rlx.Session("cpu").compile(b.build(b.input("x", "f32[2]") + b.param("w", "f32[2]")))


NUMBERS = np.ones((4, 32), np.float32)
GARBAGE: list[tuple[Callable[[Any], Any], type[RlxError], str]] = [
    (
        lambda c: rlx.Session("cpu").compile(c), CompileError,
        "compile: a Graph, a Module or a traced function is required; got CompiledGraph. Trace a "
        "JAX function with rlx_xla.trace(fn, ...).",
    ),
    (
        lambda c: c.set_param(["w"], NUMBERS), RunError,
        "set_param: a name is required; got ['w']. Write it in quotes.",
    ),
    (
        lambda c: c.keep(None, from_output=0), RunError,
        "keep: a name is required; got None. Write it in quotes.",
    ),
    (
        lambda c: c.set_kept(["x"], NUMBERS), RunError,
        "set_kept: a kept input is required (none); got ['x']. Declare it with keep(name, "
        "from_output=...).",
    ),
    (
        lambda c: c.share_params_from(None), RunError,
        "share_params_from: a compiled graph is required; got NoneType. Compile it with "
        "rlx.Session(...).compile(...).",
    ),
    (
        lambda c: rlx_xla.trace(c.graph, NUMBERS), TraceError,
        "trace: a function is required; got Graph. Give a JAX function and its arguments.",
    ),
    (
        lambda c: rlx_xla.trace(_same, NUMBERS, donate_argnums=1), TraceError,
        "trace [donate_argnums]: positions of the 1 positional arguments are required; got 1. "
        "Count from 0.",
    ),
    (
        lambda c: rlx_xla.trace(_same, "f32[n]", constraints="m > 3"), DimError,
        "constraint m > 3: symbols of the graph are required (n); got 'm'.",
    ),
    (
        lambda c: rlx.save(c.graph, None), FormatError,
        "save: a path is required; got NoneType.",
    ),
    (
        lambda c: rlx.quant.open_gguf(3), FormatError, "gguf: a path is required; got int.",
    ),
    (
        lambda c: rlx.quant.open_safetensors(b"m"), FormatError,
        "safetensors: a path is required; got bytes.",
    ),
    (
        lambda c: rlx.quant.pack("q8_0", NUMBERS), RlxError,
        "pack: a QuantScheme is required; got 'q8_0'. Write "
        "rlx.quant.QuantScheme.parse('gguf_q8_0'), or another name.",
    ),
    (
        lambda c: rlx.quant.QuantScheme.int8_block(None), RlxError,
        "QuantScheme: block and bits are required to be ints; got None and 0.",
    ),
    (
        lambda c: rlx.TensorType(c.graph.inputs[0], (2,)), DTypeError,
        "dtype: required a dtype or its name; got <Value f32[2] of <input: f32[2] at "
        "test_misuse.py:",
    ),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(GARBAGE)))
def test_what_is_something_else_is_named(number: int) -> None:
    call, error, message = GARBAGE[number]
    with pytest.raises(error) as caught:
        call(_compiled())
    assert str(caught.value).startswith(message)
