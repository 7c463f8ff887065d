"""Devices, loaded executables on both paths, and the compile cache."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from rlx.errors import CompileError, DeviceError, RunError
from rlx_xla._jax_compat import client as jax_client
from rlx_xla._jax_compat import mlir
from rlx_xla.runtime import LoadedExecutable, available_devices, cache, find_device, to_device
from rlx_xla.runtime.calling import tree_call

PATHS = ("hot", "composable")
SIZE = 8
VECTOR = "tensor<8xf32>"


def add_module(kind: str = VECTOR, op: str = "add") -> str:
    return (
        f"module {{ func.func private @same(%a: {kind}) -> {kind} {{ return %a : {kind} }}\n"
        f"func.func public @main(%a: {kind}, %b: {kind}) -> {kind} {{\n"
        f"%c = call @same(%a) : ({kind}) -> {kind}\n"
        f"%0 = stablehlo.{op} %c, %b : {kind} return %0 : {kind} }} }}"
    )


STEP = (
    f"module {{ func.func public @main(%x: {VECTOR}, %cache: {VECTOR}) -> ({VECTOR}, {VECTOR}) {{"
    f" %0 = stablehlo.add %x, %cache : {VECTOR}"
    f" %1 = stablehlo.multiply %0, %x : {VECTOR} return %1, %0 : {VECTOR}, {VECTOR} }} }}"
)


def vector(value: float = 1.0) -> np.ndarray:
    return np.full(SIZE, value, np.float32)


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    return request.param


DTYPES = [
    np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64,
    np.float16, np.float32, np.float64, np.complex64, np.complex128,
    ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2,
    ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_both_paths_agree_for_every_dtype_without_x64(dtype: type) -> None:
    assert not jax.config.jax_enable_x64
    kind = mlir.tensor_type_text((3,), dtype)
    text = add_module(kind, "and" if dtype is np.bool_ else "add")
    x, w = np.array([1, 0, 1]).astype(dtype), np.array([0, 1, 0]).astype(dtype)
    results = []
    for path in PATHS:
        loaded = LoadedExecutable(text, bound=[1], path=path)
        loaded.bind({1: w})
        (from_host,) = loaded.call(x)
        (from_device,) = loaded.call(to_device(x, loaded.device))
        (again,) = loaded.call(from_device)
        assert from_host.dtype == from_device.dtype == again.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(np.asarray(from_host), np.asarray(from_device))
        results.append((np.asarray(from_host), np.asarray(again)))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_arguments_may_be_bound_anywhere(path: str) -> None:
    arguments = ", ".join(f"%a{i}: {VECTOR}" for i in range(5))
    text = f"module {{ func.func public @main({arguments}) -> {VECTOR} {{\n"
    last = "%a0"
    for i in range(1, 5):
        text += (
            f"%m{i} = stablehlo.add {last}, {last} : {VECTOR}\n"
            f"%r{i} = stablehlo.add %m{i}, %a{i} : {VECTOR}\n"
        )
        last = f"%r{i}"
    text += f"return {last} : {VECTOR} }} }}"
    values = [vector(i + 1.0) for i in range(5)]
    (expected,) = LoadedExecutable(text, path=path).call(*values)
    for bound in ([0], [0, 1], [2], [0, 2, 4], [1, 2], [3, 4], [0, 1, 2, 3, 4]):
        loaded = LoadedExecutable(text, bound=bound, path=path)
        loaded.bind({i: values[i] for i in bound})
        (out,) = loaded.call(*(values[i] for i in loaded.unbound))
        np.testing.assert_array_equal(np.asarray(out), np.asarray(expected))


BAD_ARGUMENTS = {
    "float64 for f32": (np.ones(8), r"'x' must be f32\[8\]; got f64\[8\].*cast_inputs"),
    "same size, other dtype": (np.ones(8, np.int32), r"'x' must be f32\[8\]; got i32\[8\]"),
    "device array": (jnp.ones(8, jnp.int32), r"'x' must be f32\[8\]; got i32\[8\]"),
    "shape": (np.ones(4, np.float32), r"'x' must be f32\[8\]; got f32\[4\]"),
    "device shape": (jnp.ones((2, 4)), r"'x' must be f32\[8\]; got f32\[2, 4\]"),
    "scalar": (1.0, r"'x' must be f32\[8\]; got f32\[\]"),
    "list": ([1.0] * 8, r"'x' must be f32\[8\]: an array or a scalar; got list"),
    "text": ("x", r"'x' must be f32\[8\]: an array or a scalar; got str"),
    "none": (None, r"'x' must be f32\[8\]: an array or a scalar; got NoneType"),
    "class": (np.float32, r"'x' must be f32\[8\]: an array or a scalar; got type"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_wrong_arguments_are_named(case: str, path: str) -> None:
    value, message = BAD_ARGUMENTS[case]
    loaded = LoadedExecutable(add_module(), argument_names=["x", "w"], bound=[1], path=path)
    loaded.bind({"w": vector()})
    with pytest.raises(RunError, match=message):
        loaded.fast_call(value)
    (out,) = loaded.fast_call(vector())
    np.testing.assert_array_equal(np.asarray(out), vector(2.0))


def test_wrong_number_of_arguments(path: str) -> None:
    loaded = LoadedExecutable(add_module(), argument_names=["x", "y"], path=path)
    for args in ((), (vector(),), (vector(),) * 3):
        with pytest.raises(RunError, match=rf"must have 2 arguments \('x', 'y'\); got {len(args)}"):
            loaded.fast_call(*args)


def test_key_array_says_what_to_pass() -> None:
    loaded = LoadedExecutable(add_module("tensor<2xui32>"), argument_names=["key", "w"])
    with pytest.raises(RunError, match="key_data"):
        loaded.call(jax.random.key(0), np.ones(2, np.uint32))


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        (np.float32, [2, 2.5, np.float32(3), np.array(1, np.float32)], [True, 1j, np.float64(2)]),
        (np.int32, [2, np.int32(3), np.int64(3), -(2**31)], [2.0, True, 2**31, np.int8(1)]),
        (np.uint8, [0, 255], [-1, 256]),
        (np.bool_, [True, np.bool_(False)], [1, 1.0]),
        (np.complex64, [1, 2.5, 1j, np.complex128(1j)], [True]),
        (ml_dtypes.bfloat16, [1, 2.5], [np.float32(1)]),
        (ml_dtypes.int4, [-8, 7], [8]),
    ],
    ids=lambda v: np.dtype(v).name if isinstance(v, type) else "",
)
def test_scalars_are_accepted_as_jit_accepts_them(
    dtype: type, good: list[object], bad: list[object], path: str
) -> None:
    kind = mlir.tensor_type_text((), dtype)
    text = f"module {{ func.func public @main(%a: {kind}) -> {kind} {{ return %a : {kind} }} }}"
    loaded = LoadedExecutable(text, path=path)
    for value in good:
        (out,) = loaded.call(value)
        assert out.dtype == np.dtype(dtype)
        assert np.asarray(out) == np.asarray(value).astype(dtype)
    for value in bad:
        with pytest.raises(RunError, match="arg0"):
            loaded.call(value)


def test_cast_converts_instead_of_refusing(path: str) -> None:
    loaded = LoadedExecutable(add_module(), cast=True, path=path)
    for value in (np.ones(8), np.ones(8, np.int32), jnp.ones(8, jnp.bfloat16), np.ones(8, bool)):
        (out,) = loaded.call(value, vector())
        np.testing.assert_array_equal(np.asarray(out), vector(2.0))
    with pytest.raises(RunError, match=r"c64\[8\]"):
        loaded.call(np.ones(8, np.complex64), vector())


def test_binding_copies_unless_told_or_read_only() -> None:
    loaded = LoadedExecutable(add_module(), bound=[1])
    weight = vector()
    loaded.bind({1: weight})
    weight[:] = 100.0
    np.testing.assert_array_equal(np.asarray(loaded.call(vector())[0]), vector(2.0))


def test_binding_problems_are_named() -> None:
    loaded = LoadedExecutable(add_module(), argument_names=["x", "weight"], bound=[1])
    assert loaded.missing() == ("weight",)
    with pytest.raises(RunError, match="'weight' has none"):
        loaded.call(vector())
    with pytest.raises(RunError, match=r"unknown argument 'weigth'.*Did you mean 'weight'"):
        loaded.bind({"weigth": vector()})
    with pytest.raises(RunError, match="unknown argument '0'"):
        loaded.bind({0: vector()})
    with pytest.raises(RunError, match=r"'weight' must be f32\[8\]; got f64\[8\]"):
        loaded.bind({"weight": np.ones(8)})
    loaded.bind({"weight": vector()})
    assert loaded.missing() == ()


def test_a_call_sees_all_old_or_all_new_bound_values(path: str) -> None:
    loaded = LoadedExecutable(add_module(op="subtract"), bound=[0, 1], path=path)
    loaded.bind({0: vector(), 1: vector()})
    wrong: list[float] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            (out,) = loaded.fast_call()
            if np.asarray(out).any():
                wrong.append(float(out[0]))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for value in range(200):
        loaded.bind({0: vector(value), 1: vector(value)})
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong


def test_donated_argument_is_consumed_once(path: str) -> None:
    loaded = LoadedExecutable(add_module(), argument_names=["x", "w"], donated=[0], path=path)
    x, w = jnp.arange(8.0) + 0.0, jnp.ones(8)
    (out,) = loaded.call(x, w)
    np.testing.assert_array_equal(np.asarray(out), np.arange(8) + 1.0)
    assert x.is_deleted()
    with pytest.raises(RunError, match="'x' was deleted or donated"):
        loaded.call(x, w)


def test_a_donated_argument_that_fits_no_result_is_kept(path: str) -> None:
    text = (
        f"module {{ func.func public @main(%a: {VECTOR}, %b: tensor<4xf32>) -> {VECTOR} {{ "
        f"return %a : {VECTOR} }} }}"
    )
    loaded = LoadedExecutable(text, donated=[1], path=path)
    spare = jnp.ones(4)
    loaded.call(vector(), spare)
    assert not spare.is_deleted()


def test_donating_a_host_array_leaves_it_alone(path: str) -> None:
    loaded = LoadedExecutable(add_module("tensor<4096xf32>"), donated=[0], path=path)
    memory = np.zeros(4096 + 16, np.float32)
    start = (-memory.ctypes.data % 64) // 4
    aligned = memory[start : start + 4096]
    (out,) = loaded.call(aligned, np.ones(4096, np.float32))
    assert np.asarray(out).all()
    assert not aligned.any()


def test_a_donated_buffer_serves_one_of_two_concurrent_calls() -> None:
    loaded = LoadedExecutable(add_module(), donated=[0])
    w = jnp.ones(8)
    for _ in range(50):
        x = jnp.arange(8.0) + 0.0
        x.block_until_ready()
        outcomes: list[str] = []
        start = threading.Barrier(2)

        def once(x: jax.Array = x, start: threading.Barrier = start) -> None:
            start.wait()
            try:
                loaded.fast_call(x, w)
                outcomes.append("ran")  # noqa: B023  (the list of this round)
            except RunError:
                outcomes.append("refused")  # noqa: B023

        threads = [threading.Thread(target=once) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["ran", "refused"]


def test_resident_input_is_fed_from_an_output(path: str) -> None:
    loaded = LoadedExecutable(STEP, argument_names=["x", "cache"], resident={1: 1}, path=path)
    assert loaded.missing() == ("cache",)
    with pytest.raises(RunError, match="'cache' has none"):
        loaded.call(vector())
    loaded.bind({"cache": vector(0.0)})
    for step in range(1, 5):
        first, _ = loaded.call(vector())
        np.testing.assert_array_equal(np.asarray(first), vector(step))
    np.testing.assert_array_equal(np.asarray(loaded.bound_buffers()[1]), vector(4.0))
    with pytest.raises(RunError, match="resident inputs"):
        jax.jit(lambda x: loaded.call(x))(vector())


def test_resident_input_belongs_to_one_call_at_a_time() -> None:
    loaded = LoadedExecutable(STEP, argument_names=["x", "cache"], resident={1: 1})
    loaded.bind({"cache": vector(0.0)})
    counts = {"ran": 0, "refused": 0}
    lock = threading.Lock()

    def work() -> None:
        for _ in range(300):
            try:
                loaded.fast_call(vector())
                outcome = "ran"
            except RunError as error:
                outcome = "refused" if "one call at a time" in str(error) else str(error)
            with lock:
                counts[outcome] += 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(np.asarray(loaded.bound_buffers()[1]), vector(counts["ran"]))


def test_under_tracers_the_module_is_spliced(path: str) -> None:
    loaded = LoadedExecutable(add_module(), bound=[1], path=path)
    loaded.bind({1: vector()})
    twice = LoadedExecutable(add_module(), path=path)

    @jax.jit
    def f(x: jax.Array) -> jax.Array:
        (y,) = loaded.call(x)
        (z,) = twice.call(vector(10.0), y)
        (z,) = twice.call(y, z)
        return z * 2

    np.testing.assert_array_equal(np.asarray(f(vector())), vector((2 + 10 + 2) * 2.0))
    with pytest.raises(RunError, match=r"'arg0' must be f32\[8\]; got i32\[8\]"):
        jax.jit(lambda x: loaded.call(x))(np.ones(8, np.int32))
    with pytest.raises(RunError, match=r"must have 2 arguments"):
        jax.jit(lambda x: twice.call(x))(vector())


def test_debug_nans_sees_the_results() -> None:
    loaded = LoadedExecutable(add_module(op="subtract"))
    infinite = vector(np.inf)
    loaded.call(infinite, infinite)
    with jax.debug_nans(True):
        np.testing.assert_array_equal(np.asarray(loaded.call(vector(), vector())[0]), vector(0.0))
        with pytest.raises(FloatingPointError, match="nan"):
            loaded.call(infinite, infinite)
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match="inf"):
        loaded.call(infinite, vector())


def test_debug_nans_sees_the_first_call() -> None:
    loaded = LoadedExecutable(add_module(op="subtract"))
    infinite = vector(np.inf)
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        loaded.call(infinite, infinite)


def test_a_profile_sees_the_call(tmp_path: object) -> None:
    loaded = LoadedExecutable(add_module(), name="seen")
    with jax.profiler.trace(str(tmp_path)):
        (out,) = loaded.call(vector(), vector())
    np.testing.assert_array_equal(np.asarray(out), vector(2.0))


def test_transfer_guard_applies_to_host_arguments(path: str) -> None:
    loaded = LoadedExecutable(add_module(), path=path)
    x = jnp.ones(8)
    loaded.call(x, x)
    with jax.transfer_guard("disallow"):
        loaded.call(x, x)
        with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device"):
            loaded.call(vector(), x)


def test_other_memories_and_one_device_meshes_are_accepted(path: str) -> None:
    loaded = LoadedExecutable(add_module(), path=path)
    (device,) = jax.devices()[:1]
    mesh = jax.sharding.Mesh(np.array([device]), ("i",))
    named = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    pinned = jax.sharding.SingleDeviceSharding(device, memory_kind="unpinned_host")
    for sharding in (named, pinned):
        (out,) = loaded.call(jax.device_put(vector(), sharding), jnp.ones(8))
        np.testing.assert_array_equal(np.asarray(out), vector(2.0))


def test_a_compile_is_recorded_as_jax_records_its_own() -> None:
    seen: list[tuple[str, float]] = []

    def listen(event: str, seconds: float, **_: object) -> None:
        if event == jax_client.BACKEND_COMPILE_EVENT:
            seen.append((event, seconds))

    jax.monitoring.register_event_duration_secs_listener(listen)
    before = len(seen)
    loaded = LoadedExecutable(add_module("tensor<7xf32>"))
    assert len(seen) == before + 1
    assert 0 < seen[-1][1] <= loaded.compile_seconds
    loaded.call(np.ones(7, np.float32), np.ones(7, np.float32))
    assert len(seen) == before + 1


def test_persistent_cache_holds_our_compiles(tmp_path: object) -> None:
    hits: list[str] = []

    def listen(event: str, **_: object) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            hits.append(event)

    jax.monitoring.register_event_listener(listen)
    text = add_module("tensor<9xf32>")
    with pytest.raises(CompileError, match="it is off"):
        cache.clear_cache()
    cache.enable_cache(str(tmp_path))
    try:
        LoadedExecutable(text)
        assert cache.cache_info().entries == 1
        before = len(hits)
        (out,) = LoadedExecutable(text).call(np.ones(9, np.float32), np.ones(9, np.float32))
        assert len(hits) == before + 1
        assert np.asarray(out)[0] == 2.0
        assert str(tmp_path) in str(cache.cache_info())
        assert cache.clear_cache() > 0
        assert cache.cache_info().entries == 0
    finally:
        cache.disable_cache()
    assert cache.cache_info().directory is None


def test_what_is_known_about_a_program() -> None:
    loaded = LoadedExecutable(add_module("tensor<16x4xf32>"), donated=[0], name="known about")
    assert loaded.name == "known_about"
    assert loaded.cost()["flops"] == 64.0
    assert loaded.cost()["bytes accessed"] == 3 * 256
    memory = loaded.memory()
    assert (memory["argument"], memory["output"]) == (512, 256)
    assert {"temp", "alias", "code"} < memory.keys()
    assert "stablehlo.add" in loaded.stablehlo()
    assert "jax.buffer_donor" in loaded.stablehlo()
    assert "loc(" in loaded.stablehlo(locations=True)
    assert "HloModule" in loaded.hlo()
    assert str(loaded.argument_types[0]) == "f32[16, 4]"


def test_a_program_can_be_serialized() -> None:
    first = LoadedExecutable(add_module())
    again = LoadedExecutable(add_module(), serialized=first.serialize())
    assert again.compile_seconds == 0.0
    np.testing.assert_array_equal(np.asarray(again.call(vector(), vector())[0]), vector(2.0))
    with pytest.raises(CompileError, match="deserialize"):
        LoadedExecutable(add_module(), serialized=b"not an executable")


def test_side_effects_are_waited_for() -> None:
    loaded = LoadedExecutable(add_module(), effects=True)
    np.testing.assert_array_equal(np.asarray(loaded.call(vector(), vector())[0]), vector(2.0))
    jax.effects_barrier()


def test_host_callbacks_are_called() -> None:
    seen: list[float] = []

    def call_back(x: np.ndarray) -> np.ndarray:
        seen.append(float(x[0]))
        return np.sin(x)

    spec = jax.ShapeDtypeStruct((SIZE,), np.float32)
    lowered = jax.jit(lambda x: jax.pure_callback(call_back, spec, x)).lower(spec)
    compile_args = lowered._lowering.compile_args
    loaded = LoadedExecutable(
        str(lowered.compiler_ir("stablehlo")),
        host_callbacks=compile_args["host_callbacks"],
        keepalive=compile_args["keepalive"],
        effects=True,
    )
    (out,) = loaded.call(vector(2.0))
    np.testing.assert_allclose(np.asarray(out), np.sin(vector(2.0)), rtol=1e-6)
    jax.effects_barrier()
    assert seen == [2.0]
    with pytest.raises(RunError, match="host callbacks"):
        jax.jit(lambda x: loaded.call(x))(vector())


def test_a_module_is_left_as_it_is() -> None:
    module = mlir.parse_module(add_module())
    before = mlir.module_text(module)
    loaded = LoadedExecutable(module, donated=[0])
    assert mlir.module_text(module) == before
    assert loaded.stablehlo() != before


def test_an_owned_module_is_compiled_itself() -> None:
    module = mlir.parse_module(add_module())
    loaded = LoadedExecutable(module, donated=[0], owned=True)
    assert "jax.buffer_donor" in mlir.module_text(module)
    assert loaded.stablehlo() == LoadedExecutable(add_module(), donated=[0]).stablehlo()
    (out,) = loaded.call(vector(), vector())
    np.testing.assert_array_equal(np.asarray(out), 2.0)


BAD_PROGRAMS = {
    "text": ({"module": "module {"}, "must be a valid module"),
    "no main": ({"module": "module {}"}, "must have a function @main"),
    "dynamic": ({"module": add_module("tensor<?xf32>")}, "static tensors"),
    "argument types": (
        {"module": add_module(), "arguments": [(np.int32, (8,)), (np.float32, (8,))]},
        r"arguments of @main must be \(i32\[8\], f32\[8\]\); got \(f32\[8\], f32\[8\]\)",
    ),
    "result types": ({"module": add_module(), "results": []}, "results of @main"),
    "names": ({"module": add_module(), "argument_names": ["x"]}, "must have 2 names; got 1"),
    "path": ({"module": add_module(), "path": "fast"}, "path must be one of"),
    "callbacks": (
        {"module": add_module(), "path": "composable", "host_callbacks": [print]},
        "must take the hot path",
    ),
    "role twice": ({"module": add_module(), "bound": [0], "donated": [0]}, "each with one role"),
    "index": ({"module": add_module(), "bound": [2]}, "indices below 2"),
    "resident": ({"module": add_module(), "resident": {0: 1}}, "that feeds resident input 'arg0'"),
    "option": (
        {"module": add_module(), "compiler_options": {"xla_no_such_flag": 1}},
        "XLA must accept.*xla_no_such_flag",
    ),
}


@pytest.mark.parametrize("case", BAD_PROGRAMS)
def test_wrong_programs_are_refused(case: str) -> None:
    keywords, message = BAD_PROGRAMS[case]
    keywords = dict(keywords)
    with pytest.raises(CompileError, match=message):
        LoadedExecutable(keywords.pop("module"), **keywords)


def test_a_tree_call_takes_and_gives_structures() -> None:
    loaded = LoadedExecutable(STEP, argument_names=["x", "cache"])
    tree = jax.tree.structure(({"x": 0, "cache": [0]},))
    args = {"x": vector(), "cache": [vector(0.0)]}
    loaded = LoadedExecutable(STEP, argument_names=["cache", "x"])
    for out in ({"a": 0, "b": (0,)}, (0, 0), [0, 0], (0, None, 0)):
        result = tree_call(loaded.fast_call, tree, jax.tree.structure(out))(args)
        assert jax.tree.structure(result) == jax.tree.structure(out)
    call = tree_call(loaded.fast_call, tree, jax.tree.structure((0, 0)))
    for wrong in ({"x": vector()}, {"x": vector(), "cache": (vector(),)}, [vector(), vector()]):
        with pytest.raises(RunError, match="must have the structure"):
            call(wrong)
    with pytest.raises(RunError, match="'x' must be"):
        call({"x": None, "cache": [vector()]})


def test_devices_have_names() -> None:
    assert "cpu" in {name.split(":")[0] for name in available_devices()}
    assert find_device("cpu") == find_device("cpu:0") == jax.devices("cpu")[0]
    assert find_device(None) == jax.devices()[0]
    with pytest.raises(DeviceError, match="available: "):
        find_device("warp")
    with pytest.raises(DeviceError, match="must be an index"):
        find_device("cpu:one")
    with pytest.raises(DeviceError, match="must be below"):
        find_device("cpu:99")


def test_several_devices() -> None:
    """One process with two CPU devices: arrays on the wrong one move or are refused."""
    script = """
        import numpy as np, jax, pytest
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        from rlx.errors import RunError
        from rlx_xla.runtime import LoadedExecutable, available_devices
        from tests.rlx_xla.test_runtime import add_module, vector
        first, second = jax.devices()
        assert available_devices() == ("cpu:0", "cpu:1")
        for path in ("hot", "composable"):
            loaded = LoadedExecutable(add_module(), device="cpu:1", path=path)
            here = jax.device_put(vector(), second)
            for x in (vector(), here, jax.numpy.ones(8)):
                (out,) = loaded.call(x, here)
                assert out.devices() == {second} and out.committed, (path, out.devices())
                assert float(out[0]) == 2.0
            spread = NamedSharding(Mesh(np.array([first, second]), "i"), PartitionSpec("i"))
            for target in (first, spread):
                with pytest.raises(RunError, match="must live on"):
                    loaded.call(jax.device_put(vector(), target), here)
            (out,) = loaded.call(here, here)
            home = LoadedExecutable(add_module(), path=path)
            (out,) = home.call(vector(), vector())
            assert out.devices() == {first} and not out.committed
        print("done")
    """
    code = (
        "import os; os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=2'\n"
        + textwrap.dedent(script)
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=120, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout.strip().endswith("done"), done.stderr[-3000:]
