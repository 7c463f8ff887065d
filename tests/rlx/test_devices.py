"""Devices by name, who brings them, what they can run, and which is picked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import backend, devices
from rlx.cost_model import BackendCostModel, count_work
from rlx.device_names import KINDS, unavailable
from rlx.errors import (
    CompileError,
    DeviceError,
    LoweringError,
    RegistryError,
    RunError,
    UnboundDimError,
)
from rlx.graph_devices import GraphDevices
from rlx.ir.graph import Graph
from rlx.numpy_backend import NumpyBackend
from rlx.options import env
from rlx.options.devices import DevicePolicy, default_device

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "tests" / "packages"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but rlx is installed: no entry point names a backend."""
    monkeypatch.setattr(backend, "_FACTORIES", {})
    monkeypatch.setattr(backend, "entry_points", lambda **_: ())


def _mlp(rows: int | str = 4) -> Graph:
    b = rlx.GraphBuilder("mlp")
    x = b.input("x", f"f32[{rows}, 64]")
    return b.build((x @ b.param("w", "f32[64, 10]")).softmax(axis=-1))


# Names.


def test_the_sixteen_devices_of_rlx_are_known() -> None:
    titles = {kind.title for kind in KINDS}
    assert titles >= {
        "CPU", "Metal", "MLX", "ANE", "CUDA", "ROCm", "TPU", "GPU (wgpu)", "Vulkan", "OpenGl",
        "DirectX", "WebGpu", "Xdna", "Egpu", "OneApi", "Hexagon",
    }  # fmt: skip
    spellings = [s.lower() for k in KINDS for s in (k.name, *k.aliases)]
    assert len(spellings) == len(set(spellings))


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("cpu", "CPU"),
        ("HOST", "CPU"),
        ("cuda:1", "CUDA:1"),
        ("nvidia:1", "CUDA:1"),
        ("hip", "ROCm"),
        ("GPU (wgpu)", "GPU (wgpu)"),
        ("gpu", "GPU"),
        ("d3d12", "DirectX"),
        ("qnn", "Hexagon"),
        ("mps", "Metal"),
        ("numpy", "Interpreter"),
        ("Iree_CPU", "iree_cpu"),
    ],
)
def test_names_and_aliases(name: str, full: str) -> None:
    assert devices.full_name(name) == full


def test_an_alias_opens_the_same_device() -> None:
    assert rlx.Session("NumPy").device == rlx.Session("interpret").device == "interpret"


@pytest.mark.parametrize("name", [kind.name for kind in KINDS if kind.reach == "plugin"])
def test_a_device_out_of_reach_says_what_brings_it(name: str, alone: None) -> None:
    kind = next(k for k in KINDS if k.name == name)
    with pytest.raises(DeviceError) as caught:
        rlx.Session(name)
    assert str(caught.value) == (
        f"device {kind.title} is not available — enable the `{kind.feature}` Cargo feature: that "
        "is RLX's own; XLA does not reach it; registered: interpret. Install a PJRT plugin named "
        f"{name!r}, or register a backend with rlx.register_backend({name!r}, ...)."
    )
    assert not devices.is_available(name)
    assert not devices.feature_compiled(name)


@pytest.mark.parametrize("name", ["cpu", "cuda", "rocm", "tpu", "gpu"])
def test_a_device_of_xla_needs_its_package(name: str, alone: None) -> None:
    with pytest.raises(DeviceError) as caught:
        rlx.Session(name)
    title = devices.full_name(name)
    assert str(caught.value) == (
        f"no backend registered for device {title} — enable feature `{name}` (or call "
        f"rlx.register_backend({name!r}, ...)); registered: interpret. Install rlx-xla, which "
        "registers XLA's devices (pip install rlx-xla)."
    )


def test_a_device_that_is_not_attached_is_told_apart() -> None:
    assert str(unavailable("tpu:1", ["cpu"])) == (
        "device TPU:1 is not available — the `tpu` feature is enabled but no such device/driver "
        "was found on this host; available: cpu. Install JAX for it, or use one of these."
    )
    assert str(unavailable("toy", ["cpu", "interpret"])).endswith(
        "no such device/driver was found on this host; available: cpu, interpret. Use one of these."
    )


def test_a_strange_name_gets_a_suggestion(alone: None) -> None:
    with pytest.raises(DeviceError) as caught:
        rlx.Session("interpet")
    assert str(caught.value) == (
        "no backend registered for device 'interpet'; registered: interpret. Did you mean "
        "'interpret'? Add one with rlx.register_backend, or install a PJRT plugin of that name."
    )


@pytest.mark.parametrize("name", ["", "  ", 3, None])
def test_a_name_is_required(name: Any) -> None:
    with pytest.raises(DeviceError) as caught:
        devices.full_name(name)
    assert str(caught.value) == (
        f"device: a name such as 'cpu' or 'cuda:1' is required; got {name!r}."
    )


# The registry.


def test_a_registered_backend_is_found_and_replaced(alone: None) -> None:
    seen: list[str] = []

    def factory(device: str) -> backend.AbstractBackend:
        seen.append(device)
        return NumpyBackend()

    rlx.register_backend("Metal", factory)
    assert rlx.registered_devices() == ["interpret", "metal"]
    assert devices.is_available("mps:3")
    assert seen == ["metal:3"]
    found = rlx.Session("metal").compile(_mlp())
    assert found.device == "interpret"  # what the factory's backend calls itself

    def gone(device: str) -> backend.AbstractBackend:
        raise unavailable(device, ["interpret"])

    rlx.register_backend("mps", gone)
    assert rlx.registered_devices() == ["interpret", "metal"]
    assert not devices.is_available("metal")
    assert devices.feature_compiled("metal")
    assert rlx.available_devices() == ["interpret"]


@pytest.mark.parametrize(
    ("device", "factory", "text"),
    [
        (
            "cuda:1",
            NumpyBackend,
            "register_backend: a device name without an index is required; got 'cuda:1'. "
            "Register 'cuda'; the factory gets the index.",
        ),
        (
            "toy",
            3,
            "register_backend: a function of the device's name is required for 'toy'; got int.",
        ),
    ],
)
def test_what_cannot_be_registered(device: str, factory: Any, text: str, alone: None) -> None:
    with pytest.raises(RegistryError) as caught:
        rlx.register_backend(device, factory)
    assert str(caught.value) == text


class _Point:
    """An entry point of a package that is not there."""

    def __init__(self, name: str, value: str, loads: Any = None) -> None:
        self.name, self.value, self._loads = name, value, loads
        self.dist = type("Dist", (), {"name": value.partition(":")[0] + "-package"})()

    def load(self) -> Any:
        if isinstance(self._loads, Exception):
            raise self._loads
        return self._loads


def _points(monkeypatch: pytest.MonkeyPatch, *points: _Point) -> None:
    def entry_points(*, group: str, name: str | None = None) -> list[_Point]:
        assert group == "rlx.backends"
        return [p for p in points if name in (None, p.name)]

    monkeypatch.setattr(backend, "_FACTORIES", {})
    monkeypatch.setattr(backend, "entry_points", entry_points)


def test_two_packages_for_one_device_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _points(monkeypatch, _Point("toy", "first:create"), _Point("toy", "second:create"))
    with pytest.raises(RegistryError) as caught:
        rlx.Session("toy")
    assert str(caught.value) == (
        "device 'toy': one backend is required; entry points bring first:create (first-package), "
        "second:create (second-package). Uninstall one, or choose with rlx.register_backend."
    )
    rlx.register_backend("toy", lambda device: NumpyBackend())
    assert devices.is_available("toy")


def test_a_broken_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = _Point("toy", "broken:create", ImportError("No module named 'broken'"))
    _points(monkeypatch, broken)
    with pytest.raises(DeviceError) as caught:
        rlx.Session("toy")
    assert str(caught.value) == (
        "device 'toy': its backend broken:create of broken-package does not load: No module named "
        "'broken'. Reinstall that package."
    )
    assert rlx.available_devices() == ["interpret"]
    _points(monkeypatch, _Point("*", "broken:find", ImportError("No module named 'broken'")))
    assert rlx.available_devices() == ["interpret"]
    with pytest.raises(DeviceError, match="its backend broken:find of broken-package does not"):
        rlx.Session("toy")


def test_devices_that_are_found_at_run_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"toy": lambda device: NumpyBackend()}
    _points(monkeypatch, _Point("*", "plugins:find", lambda: found))
    assert rlx.registered_devices() == ["interpret"]
    assert rlx.available_devices() == ["interpret", "toy"]
    assert rlx.Session("Toy:0").device == "interpret"
    assert "toy" in rlx.registered_devices()  # once it was used


def test_an_installed_package_brings_a_device() -> None:
    """The whole way: metadata, entry point, claims on nodes, compile and run, without JAX."""
    program = """
import sys
import numpy as np
import rlx
from rlx import devices
from rlx.errors import DeviceError, LoweringError

assert "example" in rlx.registered_devices()
assert "example_backend" not in sys.modules  # loaded at the first use
session = rlx.Session("example:1")
b = rlx.GraphBuilder("g")
x = b.input("x", "f32[3, 4]")
compiled = session.compile(b.build(x.softmax(axis=-1)))
assert compiled.device == "example:1"
value = np.random.default_rng().normal(size=(3, 4)).astype(np.float32)
wanted = rlx.interpret(compiled.graph, {"x": value})[0]
np.testing.assert_array_equal(compiled.run({"x": value})[0], wanted)
Sort = rlx.ops.Sort
b = rlx.GraphBuilder("g")
x = b.input("x", "f32[3, 4]")
last, first = Sort(axis=1)(x), Sort(axis=0)(x)
assert devices.supports("example", last.node) and not devices.supports("example", first.node)
assert devices.supports("example", "sort") and not devices.supports("example", "complex")
assert devices.first_unsupported_op("example", b.build(last, first)) is first.node
try:
    session.compile(b.build(last, first))
except LoweringError as error:
    assert "    example: only the last axis is sorted" in str(error), error
    assert "no lowering for op 'sort' on 'example' at <string>:" in str(error), error
else:
    raise AssertionError
try:
    rlx.Session("example:2")
except DeviceError as error:
    assert str(error) == "device 'example:2': index must be below 2; got 2.", error
assert "jax" not in sys.modules
pick = devices.pick_device(b.build(last), devices.DevicePolicy.only("example", "interpret"))
assert set(pick.seconds) == {"example", "interpret"}, pick
print("done")
"""
    path = os.pathsep.join([str(PACKAGES / "example_backend"), str(ROOT)])
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "done\n"), run.stderr


# The default device and policies.


def test_the_default_device_is_what_the_environment_names() -> None:
    assert default_device() == "cpu" or "RLX_DEVICE" in os.environ
    with env.overrides({"RLX_DEVICE": "numpy"}):
        assert rlx.Session().device == "interpret"
    with env.overrides({"RLX_DEVICE": "metal"}), pytest.raises(DeviceError) as caught:
        rlx.Session()
    assert caught.value.__notes__ == ["  'metal' is what RLX_DEVICE names"]
    with env.overrides({"RLX_DEVICE": None}):
        assert default_device() == "cpu"


def test_policies_filter_and_order() -> None:
    here = ["cpu", "cuda:0", "cuda:1", "interpret"]
    assert DevicePolicy.all().order(here) == here
    assert DevicePolicy.only("nvidia").order(here) == ["cuda:0", "cuda:1"]
    assert DevicePolicy.only("cuda:1", "cpu").order(here) == ["cpu", "cuda:1"]
    assert DevicePolicy.all().with_deny("cuda:0").order(here) == ["cpu", "cuda:1", "interpret"]
    preferred = DevicePolicy.all().with_prefer("interpret", "cuda")
    assert preferred.order(here) == ["interpret", "cuda:0", "cuda:1", "cpu"]
    chained = preferred.with_chain("cuda:1", "cpu").with_deny("cpu")
    assert chained.order(here) == ["cuda:1"]


def test_the_policy_comes_from_the_environment() -> None:
    values = {
        "RLX_DEVICES": "cpu, cuda",
        "RLX_DENY_DEVICES": "cuda:1",
        "RLX_PREFER_DEVICES": "cuda",
        "RLX_DEVICE_CHAIN": "tpu,cpu",
        "RLX_BENCHMARK_PICK": "1",
    }
    with env.overrides(values):
        assert DevicePolicy.from_env() == DevicePolicy(
            devices=("cpu", "cuda"),
            deny=("cuda:1",),
            prefer=("cuda",),
            chain=("tpu", "cpu"),
            benchmark_pick=True,
        )
    with env.overrides(dict.fromkeys(values)):
        assert DevicePolicy.from_env() == DevicePolicy.all()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"deny": "cpu"}, "DevicePolicy.deny: a list of device names is required; got 'cpu'."),
        ({"prefer": 3}, "DevicePolicy.prefer: a list of device names is required; got 3."),
        ({"chain": ["cpu", ""]}, "DevicePolicy.chain: device names are required; got ''."),
    ],
)
def test_a_policy_takes_names(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(DeviceError) as caught:
        DevicePolicy(**fields)
    assert str(caught.value) == text


# What a device can run.


def test_support_is_asked_of_nodes_ops_and_names() -> None:
    graph = _mlp()
    assert devices.supports("interpret", "softmax")
    assert devices.supports("interpret", rlx.ops.Softmax)
    assert devices.supports("interpret", rlx.ops.Softmax(axis=0))
    assert devices.supports("interpret", graph.nodes()[-1])
    with pytest.raises(CompileError) as caught:
        devices.supports("interpret", "softmx")
    assert str(caught.value) == ("supports: op 'softmx' is not registered. Did you mean 'softmax'?")


def test_options_restrict_what_a_device_supports() -> None:
    graph = _mlp()
    narrow = rlx.CompileOptions(supported_ops={"matmul"})
    assert devices.supports_graph("interpret", graph)
    assert not devices.supports_graph("interpret", graph, narrow)
    assert devices.first_unsupported_op("interpret", graph) is None
    found = devices.first_unsupported_op("interpret", graph, narrow)
    assert found is not None
    assert found.op.op_name == "reduce_max"
    assert "test_devices.py" in str(found.location)


def test_a_graph_is_decomposed_for_a_device() -> None:
    graph = _mlp()
    same = devices.legalize_graph_for_device("interpret", graph)
    assert rlx.same(same, graph)
    ops = ["matmul", "reduce_max", "reshape", "broadcast_in_dim", "sub", "exp", "reduce_sum", "div"]
    options = rlx.CompileOptions(supported_ops=ops)
    legal, report = devices.legalize_graph_for_device_with_report("interpret", graph, options)
    assert {n.op.op_name for n in legal.nodes()} == {"input", "param", *ops}
    assert report.common_lowered_kinds == ["softmax"]
    assert report.compile_ready
    x = np.random.default_rng().normal(size=(4, 64)).astype(np.float32)
    w = np.random.default_rng().normal(size=(64, 10)).astype(np.float32)
    wanted = rlx.interpret(graph, {"x": x}, {"w": w})[0]
    np.testing.assert_allclose(rlx.interpret(legal, {"x": x}, {"w": w})[0], wanted, rtol=1e-6)
    options = options.replace(supported_ops=ops[:-1])
    with pytest.raises(LoweringError, match="no lowering for op 'div' on 'numpy'"):
        devices.legalize_graph_for_device("interpret", graph, options)


# Cost and picking.


def test_work_is_counted_over_primitives() -> None:
    work = count_work(_mlp())
    assert work.matmul_flops == 2 * 4 * 64 * 10
    assert work.nbytes > 4 * (4 * 64 + 64 * 10 + 4 * 10)
    assert count_work(_mlp("n"), {"n": 8}).matmul_flops == 2 * work.matmul_flops
    with pytest.raises(UnboundDimError) as caught:
        count_work(_mlp("n"))
    assert str(caught.value) == (
        "cost of mlp: sizes are required; n have none. Pass binding={symbol: size}."
    )


def test_a_loop_costs_its_steps_and_a_branch_its_dearest() -> None:
    b = rlx.GraphBuilder("step")
    c = b.input("c", "f32[8, 8]")
    body = b.build(c @ c)
    b = rlx.GraphBuilder("outer")
    looped = rlx.ops.Scan(body=body, length=7, num_carry=1)(b.input("c", "f32[8, 8]"))
    assert count_work(b.build(looped)).matmul_flops == 7 * 2 * 8**3
    b = rlx.GraphBuilder("cheap")
    cheap = b.build(-b.input("c", "f32[8, 8]"))
    b = rlx.GraphBuilder("chosen")
    index, x = b.input("i", "i32[]"), b.input("c", "f32[8, 8]")
    made = rlx.ops.Cond(branches=(cheap, body))(index, x)
    assert count_work(b.build(made)).matmul_flops == 2 * 8**3


def test_the_estimate_is_the_sum_of_its_parts() -> None:
    model = BackendCostModel(matmul_gflops=1, memory_gb_per_s=1, dispatch_us=3, node_us=2)
    work = count_work(_mlp())
    found = devices.estimate_graph_cost(_mlp(), model)
    wanted = (work.matmul_flops + work.nbytes) / 1e9 + 3e-6 + 2e-6 * work.nodes
    assert found == pytest.approx(wanted)
    assert devices.estimate_graph_cost(_mlp(), "cuda") > 0


def test_convolutions_count_as_products() -> None:
    b = rlx.GraphBuilder("conv")
    x, w = b.input("x", "f32[2, 6, 10, 10]"), b.input("w", "f32[8, 3, 3, 3]")
    op = rlx.ops.ConvGeneralDilated(
        window_strides=(1, 1), padding=((0, 0), (0, 0)), lhs_dilation=(1, 1), rhs_dilation=(1, 1),
        lhs_spec=(0, 1, 2, 3), rhs_spec=(0, 1, 2, 3), out_spec=(0, 1, 2, 3), feature_group_count=2,
    )  # fmt: skip
    assert count_work(b.build(op(x, w))).matmul_flops == 2 * (2 * 8 * 8 * 8) * (3 * 3 * 3)


def _toy_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices beside ``interpret``; ``deaf`` supports nothing."""
    monkeypatch.setattr(backend, "_FACTORIES", {})
    monkeypatch.setattr(backend, "entry_points", lambda **_: ())
    monkeypatch.syspath_prepend(str(PACKAGES / "example_backend"))
    from example_backend import ExampleBackend

    rlx.register_backend("fast", ExampleBackend)
    rlx.register_backend("slow", ExampleBackend)


def test_a_device_is_picked_by_availability_support_and_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _toy_devices(monkeypatch)
    graph = _mlp()
    costs = {"fast": 1e-6, "slow": 2e-6, "interpret": 3e-6}
    monkeypatch.setattr(devices, "estimate_graph_cost", lambda g, d, b: costs[d])
    pick = devices.pick_device(graph, DevicePolicy.all())
    assert (pick.device, pick.reason) == ("fast", "the fastest, estimated")
    assert pick.seconds == {"fast": 1e-6, "slow": 2e-6}  # interpret only where it is named
    assert str(pick) == (
        "fast: the fastest, estimated\n  fast: 1.0 µs estimated\n  slow: 2.0 µs estimated"
    )
    assert devices.fastest_device_for(graph, DevicePolicy.all().with_deny("fast")) == "slow"
    pick = devices.pick_device(graph, DevicePolicy.all().with_prefer("tpu", "slow"))
    assert (pick.device, pick.reason) == ("slow", "preferred")
    assert pick.rejected == {"tpu": "not available"}
    pick = devices.pick_device(graph, DevicePolicy.all().with_chain("interpret", "fast"))
    assert (pick.device, pick.reason) == ("interpret", "the first of the chain that runs it")
    assert pick.rejected == {"slow": "not allowed by the policy"}
    b = rlx.GraphBuilder("complex")
    x = b.input("x", "f32[3]")
    complex_graph = b.build(rlx.ops.Complex()(x, x))
    policy = DevicePolicy.only("fast", "interpret")
    pick = devices.pick_device(complex_graph, policy)
    assert (pick.device, pick.reason) == ("interpret", "the only one that runs it")
    assert pick.rejected["fast"].startswith("op 'complex' at test_devices.py:")
    with pytest.raises(DeviceError) as caught:
        devices.pick_device(complex_graph, DevicePolicy.only("fast", "tpu"))
    text = str(caught.value)
    assert text.startswith(
        "pick_device: a device that runs 'complex' is required; none of these does:\n"
        "  tpu: not available\n  fast: op 'complex' at test_devices.py:"
    )
    assert text.endswith("Allow another device, or change what the reasons name.")


def test_a_device_is_picked_by_measured_time(monkeypatch: pytest.MonkeyPatch) -> None:
    _toy_devices(monkeypatch)
    taken = {"fast": 2e-3, "slow": 5e-3}
    monkeypatch.setattr(devices, "measure_graph", lambda d, g, options: taken[d])
    with env.overrides({"RLX_BENCHMARK_PICK": "on", "RLX_DEVICES": "slow,fast"}):
        pick = devices.pick_device(_mlp())
    assert (pick.device, pick.measured, dict(pick.seconds)) == ("fast", True, taken)


def test_a_graph_is_measured_with_drawn_inputs() -> None:
    assert 0 < devices.measure_graph("interpret", _mlp(), seconds=0.01) < 10
    with pytest.raises(CompileError) as caught:
        devices.measure_graph("interpret", _mlp("n"))
    assert str(caught.value) == (
        "measure_graph: sizes are required; n have none. Bind them with "
        "CompileOptions(dim_binding={...})."
    )
    options = rlx.CompileOptions(dim_binding={"n": 2})
    assert devices.measure_graph("interpret", _mlp("n"), options=options, seconds=0.01) > 0
    model = devices.measure_cost_model("interpret", size=16)
    assert min(model.matmul_gflops, model.memory_gb_per_s, model.dispatch_us) > 0


# One graph on several devices.


def test_a_graph_runs_where_it_is_picked_with_the_same_params(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _toy_devices(monkeypatch)
    graph = _mlp()
    on = GraphDevices(graph, DevicePolicy.only("slow", "fast", "interpret").with_prefer("slow"))
    assert on.devices()[0] == "slow"
    rng = np.random.default_rng()
    x = {"x": rng.normal(size=(4, 64)).astype(np.float32)}
    for _ in range(2):  # params that are set again reach every device
        w = {"w": rng.normal(size=(64, 10)).astype(np.float32)}
        on.set_params(w)
        wanted = rlx.interpret(graph, x, w)[0]
        assert on.device == "slow"
        for found in (on.run(x), on.run_on("fast", x), on.run_on("NumPy", x, outputs=[0])):
            np.testing.assert_array_equal(found[0], wanted)
    assert on.on("fast") is on.on("Fast")
    assert on.on("slow").device == "slow"
    assert sorted(on.warm_all()) == ["fast", "interpret", "slow"]
    assert {d: s > 0 for d, s in on.benchmark(x, repeats=2).items()} == dict.fromkeys(
        on.devices(), True
    )
    assert on.report() == "slow: preferred\ncompiled: slow, fast, interpret"


def test_a_chain_falls_through_to_a_device_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    _toy_devices(monkeypatch)
    from example_backend import ExampleBackend

    def refuse(self: Any, *_: Any) -> Any:
        raise CompileError(f"compile: {self.device} is out of order.")

    b = rlx.GraphBuilder("g")
    graph = b.build(-b.input("x", "f32[2]"))
    x = {"x": np.random.default_rng().normal(size=2).astype(np.float32)}
    on = GraphDevices(graph, DevicePolicy.all().with_chain("tpu", "fast", "interpret"))
    with monkeypatch.context() as patch:
        patch.setattr(ExampleBackend, "compile", refuse)
        np.testing.assert_array_equal(on.run_chain(x)[0], -x["x"])
    assert on.failures == {"fast": "compile: fast is out of order."}
    np.testing.assert_array_equal(on.run_chain(x)[0], -x["x"])  # it is not tried again
    assert "failed: fast: compile: fast is out of order." in on.report()
    with pytest.raises(RunError):
        on.run_chain({"y": x["x"]})
    lost = GraphDevices(graph, DevicePolicy.all().with_chain("tpu", "fast"))
    monkeypatch.setattr(ExampleBackend, "compile", refuse)
    with pytest.raises(DeviceError) as caught:
        lost.run_chain(x)
    assert str(caught.value) == (
        "run_chain: a device that runs the graph is required; every one failed:\n"
        "  tpu: not available\n  interpret: not allowed by the policy\n"
        "  slow: not allowed by the policy\n  fast: compile: fast is out of order.\n"
        "Allow another device, or change what the reasons name."
    )


def test_a_factory_gives_a_backend(alone: None) -> None:
    rlx.register_backend("mine", lambda device: None)  # type: ignore[arg-type, return-value]
    text = (
        "device 'mine': its factory is required to return an rlx.backend.AbstractBackend; got "
        "NoneType. Correct what register_backend was given."
    )
    with pytest.raises(RegistryError, match=f"^{re.escape(text)}$"):
        rlx.Session("mine")


def test_there_is_one_interpreter() -> None:
    assert rlx.Session("interpret:0").device == "interpret"
    text = "device 'interpret:1': index must be below 1, the number of interpret devices; got 1."
    with pytest.raises(DeviceError, match=re.escape(text)):
        rlx.Session("interpret:1")
