"""Misuse of the doors (options, bind, verify, passes, load, warm): one clear error each."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops as typed_ops
from rlx.errors import (
    CompileError,
    DimError,
    DTypeError,
    FormatError,
    ParseError,
    PassError,
    RlxError,
    RunError,
    ShapeError,
    VerifyError,
)
from rlx.ir.rewrite import rewrite

ops: Any = typed_ops
door: Any = rlx
DEVICES = [d for d in ("interpret", "cpu") if d in rlx.registered_devices()]
X = np.ones(2, np.float32)


def _graph() -> rlx.Graph:
    b = rlx.GraphBuilder("g")
    x, w = b.input("x", "f32[2]"), b.param("w", "f32[2]")
    return b.build(x * w + x)


def _symbolic() -> rlx.Graph:
    b = rlx.GraphBuilder("s")
    x = b.input("x", "f32[n]")
    return b.build(x + x)


@pytest.mark.parametrize(
    "options",
    [
        {"specialization_cache_size": "a"}, {"specialization_cache_size": 1.5},
        {"kernel_dispatch": "native"}, {"dim_binding": 3}, {"param_bindings": 3},
        {"donate": "x"}, {"compiler_options": 3},
        {"compiler_options": {1: True}}, {"compiler_options": {"xla_flag": [1]}},
        {"cast_inputs": "yes"}, {"validate": 1},
    ],
)  # fmt: skip
def test_options_of_another_type_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(CompileError, match=rf"CompileOptions\.{next(iter(options))}: required"):
        rlx.CompileOptions(**options)


def test_dispatch_of_another_type_is_refused() -> None:
    for wrong in ({"policy": "force_native"}, {"forced": "argmax.cpu.ffi"}, {"native_ops": 3}):
        with pytest.raises(CompileError, match=r"KernelDispatch\."):
            rlx.KernelDispatch(**wrong)  # type: ignore[arg-type]
    with pytest.raises(CompileError, match=r"'argmx' is not registered\. Did you mean 'argmax'"):
        rlx.KernelDispatch(native_ops=frozenset({"argmx"}))


@pytest.mark.parametrize("device", DEVICES)
def test_options_that_name_nothing_are_refused(device: str) -> None:
    session = rlx.Session(device)
    for donate in ({"X"}, {"w"}):
        options = rlx.CompileOptions(donate=frozenset(donate))
        with pytest.raises(CompileError, match=r"donate: names of inputs are required \(x\)"):
            session.compile(_graph(), options=options)
    with pytest.raises(DimError, match="symbols are none; got 'n'"):
        session.compile(_graph(), options=rlx.CompileOptions(dim_binding={"n": 1}))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: rlx.bind(_graph(), {"n": 1}), DimError),
        (lambda: rlx.bind(_graph(), None), DimError),
        (lambda: rlx.bind(_symbolic(), {"n": 2**70}), ShapeError),
        (lambda: rlx.verify(None), VerifyError),
        (lambda: rlx.interpret(None), VerifyError),
        (lambda: rlx.passes.run(_graph(), None), PassError),
        (lambda: rewrite(_graph(), lambda node: 3), PassError),
        (lambda: rewrite(_graph(), lambda node: (None,)), PassError),
        (lambda: rlx.bind(ops, {"n": 2}), DimError),
        (lambda: rlx.infer_bindings(_graph, {"x": (2,)}), DimError),
        (lambda: rlx.infer_bindings(_symbolic(), [(2,)]), DimError),
        (lambda: rlx.infer_bindings(_symbolic(), {"x": 2}), DimError),
        (lambda: rlx.parse(None), ParseError),
        (lambda: rlx.load(3), FormatError),
        (lambda: rlx.load_params(None), FormatError),
    ],
)
def test_doors_refuse(call: Callable[[], Any], error: type[RlxError]) -> None:
    with pytest.raises(error):
        call()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bindings", [{"n": 1}, [3], 3])
def test_warm_takes_a_list_of_mappings(device: str, bindings: Any) -> None:
    compiled = rlx.Session(device).compile(_symbolic())
    with pytest.raises(DimError, match="warm"):
        compiled.warm(bindings)
    with pytest.raises(RunError, match="different lengths"):
        compiled([[1.0], [1.0, 2.0]])
    assert np.asarray(compiled(X)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("field", "value"),
    [("inputs", ()), ("inputs", None), ("inputs", (1, 2)), ("op", None), ("op", ops.Neg()),
     ("types", ()), ("results", ()), ("location", 3)],
)  # fmt: skip
def test_a_damaged_graph_does_not_compile(device: str, field: str, value: Any) -> None:
    graph = _graph()
    object.__setattr__(graph.outputs[0].node, field, value)
    with pytest.raises(VerifyError):
        rlx.Session(device).compile(graph)
    with pytest.raises(VerifyError):
        rlx.interpret(graph, {"x": X}, {"w": X})


@pytest.mark.parametrize("device", DEVICES)
def test_a_cyclic_graph_does_not_compile(device: str) -> None:
    graph = _graph()
    last = graph.outputs[0]
    product = last.node.inputs[0].node
    object.__setattr__(product, "inputs", (last, product.inputs[1]))
    with pytest.raises(VerifyError, match="cycle"):
        rlx.Session(device).compile(graph)
    with pytest.raises(VerifyError, match="cycle"):
        rlx.interpret(graph, {"x": X}, {"w": X})


@pytest.mark.parametrize("device", DEVICES)
def test_a_result_larger_than_memory_is_an_error(device: str) -> None:
    graph = rlx.GraphBuilder().build(ops.Iota(shape=(2**58,), dtype=rlx.DType.F32, axis=0)())
    with pytest.raises(RlxError, match="memory"):
        rlx.Session(device).compile(graph).run({})
    with pytest.raises(RunError, match="memory"):
        rlx.interpret(graph, {})


@pytest.mark.parametrize("device", DEVICES)
def test_cast_inputs_converts_as_the_op_convert(device: str) -> None:
    b = rlx.GraphBuilder()
    x = b.input("x", "i32[5]")
    graph = b.build(x)
    compiled = rlx.Session(device).compile(graph, options=rlx.CompileOptions(cast_inputs=True))
    given = np.array([1.5, np.nan, np.inf, -np.inf, 1e10])
    limits = np.iinfo(np.int32)
    found = compiled.run({"x": given})[0]
    assert found.tolist() == [1, 0, limits.max, limits.min, limits.max]
    for wrong in (np.ones(5, complex), np.array(list("abcde")), np.array([None] * 5)):
        with pytest.raises(RlxError):
            compiled.run({"x": wrong})


@pytest.mark.parametrize("device", DEVICES)
def test_results_do_not_give_away_a_param(device: str) -> None:
    b = rlx.GraphBuilder()
    w = b.param("w", "f32[2, 1]")
    compiled = rlx.Session(device).compile(b.build(w, w.reshape((2,))))
    compiled.set_param("w", np.ones((2, 1), np.float32))
    for result in compiled.run({}):
        with pytest.raises(ValueError, match="read-only"):
            result[...] = 7


@pytest.mark.parametrize("device", DEVICES)
def test_a_call_sees_all_old_or_all_new_params(device: str) -> None:
    b = rlx.GraphBuilder()
    params = [b.param(f"p{i}", "f32[]") for i in range(64)]
    compiled = rlx.Session(device).compile(b.build(params))
    names = [v.name for v in compiled.graph.params]
    compiled.set_params(dict.fromkeys(names, 0.0))
    stop = threading.Event()
    torn: list[set[float]] = []

    def read() -> None:
        while not stop.is_set():
            seen = {float(a) for a in compiled.run({})}
            if len(seen) > 1:
                torn.append(seen)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    reader = threading.Thread(target=read)
    reader.start()
    for k in range(100):
        compiled.set_params(dict.fromkeys(names, float(k)))
    stop.set()
    reader.join()
    sys.setswitchinterval(interval)
    assert not torn


def test_a_compile_holds_up_only_its_own_shape() -> None:
    compiled = rlx.Session("interpret").compile(_symbolic())
    compiled(X)
    cache = compiled._cache  # pyright: ignore[reportPrivateUsage]
    build, begun, proceed = cache._build, threading.Event(), threading.Event()  # pyright: ignore

    def slow(binding: Any, reason: str) -> Any:
        begun.set()
        assert proceed.wait(10)
        return build(binding, reason)

    cache._build = slow  # pyright: ignore[reportPrivateUsage]
    done: list[int] = []
    callers = [
        threading.Thread(target=lambda: done.append(len(compiled(np.ones(3, np.float32)))))
        for _ in range(2)
    ]
    for caller in callers:
        caller.start()
    assert begun.wait(10)
    hot = threading.Thread(target=lambda: done.append(len(compiled(X))))
    hot.start()
    hot.join(5)
    assert done == [2]
    proceed.set()
    for caller in callers:
        caller.join(10)
    assert done == [2, 3, 3]
    assert compiled.specializations().misses == 2


def test_calls_nested_too_deeply_are_an_error() -> None:
    graph: rlx.Graph | None = None
    for _ in range(600):
        b = rlx.GraphBuilder()
        x = b.input("x", "f32[2]")
        y: Any = x if graph is None else ops.Call(name="inner", body=graph)(x)
        graph = b.build(y[0] if isinstance(y, tuple) else y)
    assert graph is not None
    with pytest.raises(RunError, match="nested less deeply"):
        rlx.interpret(graph, {"x": X})
    inlined = rlx.passes.run(graph, [rlx.passes.InlineCalls()], quiet=True)
    assert rlx.interpret(inlined, {"x": X})[0].tolist() == [1.0, 1.0]


def test_values_are_no_arrays() -> None:
    x = rlx.GraphBuilder().input("x", "f32[3]")
    with pytest.raises(DTypeError, match=r"no \[0\]; use narrow"):
        x[0]
    with pytest.raises(DTypeError, match=r"rlx\.constant"):
        np.ones(3, np.float32) + x  # type: ignore[operator]
    with pytest.raises(TypeError, match="does not support ufuncs"):
        np.sin(x)  # type: ignore[call-overload]
    assert (np.float32(2) * x).type == x.type  # type: ignore[operator]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g: door.same(g, 3), VerifyError, "same: a Graph is required; got int."),
        (lambda g: door.same(None, g), VerifyError, "same: a Graph is required; got NoneType."),
        (
            lambda _: door.passes.run(3, []), PassError,
            "run: a Graph is required; got int. For a traced function give traced.graph.",
        ),
        (
            lambda _: door.rewrite("g", lambda _: None), PassError,
            "rewrite: a Graph is required; got str. For a traced function give traced.graph.",
        ),
        (
            lambda _: door.debug.bisect(3, {}), PassError,
            "bisect: a Graph is required; got int. For a traced function give traced.graph, and "
            "params=traced.params.",
        ),
        (
            lambda _: door.DimBinding(3), DimError,
            "DimBinding: a mapping (symbol → size), or pairs of them, is required; got 3.",
        ),
        (
            lambda _: door.DimBinding("n"), DimError,
            "DimBinding: a mapping (symbol → size), or pairs of them, is required; got 'n'.",
        ),
    ],
)  # fmt: skip
def test_what_is_no_graph_is_refused(
    call: Callable[[rlx.Graph], Any], error: type[RlxError], message: str
) -> None:
    with pytest.raises(error) as caught:
        call(_graph())
    assert str(caught.value).removeprefix("verify: 1 finding\n  ") == message


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [RunError, DimError])
def test_sizes_that_a_call_cannot_have_are_errors_of_its_inputs(
    device: str, kind: type[RlxError]
) -> None:
    b = rlx.GraphBuilder("s")
    graph = b.build(b.input("x", "f32[n, 4]") + b.input("y", "f32[n, 4]"))
    whole = np.ones((2, 4), np.float32)
    compiled = rlx.Session(device).compile(graph, options=rlx.CompileOptions(buckets={"n": [2]}))
    bound = rlx.Session(device).compile(graph, options=rlx.CompileOptions(constraints=("n == 2",)))
    for wrong in (whole[:, :3], whole[0], whole[:1]):
        with pytest.raises(kind, match="actual shapes must agree with the declared ones"):
            compiled.run({"x": whole, "y": wrong})
    with pytest.raises(kind, match="n is required to be at most 2, its last bucket"):
        compiled.run({"x": np.ones((3, 4), np.float32), "y": np.ones((3, 4), np.float32)})
    with pytest.raises(kind, match=r"required to keep what was promised; got n == 2 with n = 1\."):
        bound.run({"x": whole[:1], "y": whole[:1]})
