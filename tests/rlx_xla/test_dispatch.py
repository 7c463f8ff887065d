"""Kernels of other platforms and packages, inside loops and transformations, and what is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx import devices
from rlx.dispatch import DispatchPath
from rlx.errors import CompileError, DeviceError, KernelError, LoweringError
from rlx.ir.graph import Graph
from rlx.ir.op import Op
from rlx.ir.plan import Lir, Refusal
from rlx.ops.arithmetic import Neg
from rlx.ops.reduction import Argmax
from rlx.options.dispatch import KernelDispatch, KernelPolicy
from rlx.passes.legalize import legalize
from rlx.types import TensorType
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.kernels import ffi, select
from rlx_xla.kernels.base import AbstractKernel, Refused, Supported
from rlx_xla.lowering import registry
from rlx_xla.runtime import client

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "tests" / "packages"
ARGMAX = "argmax.cpu.ffi"


@pytest.fixture
def library() -> None:
    found = ffi.load()
    if isinstance(found, ffi.Unavailable):
        pytest.skip(found.reason)


def _argmax(cols: int = 64) -> Graph:
    b = rlx.GraphBuilder("choice")
    return b.build(Argmax(axis=1)(b.input("x", TensorType(rlx.DType.F32, (3, cols)))))


def _legal(graph: Graph, platform: str, **dispatch: Any) -> Lir:
    chosen = KernelDispatch(**dispatch)
    return legalize(graph, lambda node: select.choose(node, platform, chosen), platform)


def _is_ours(kernel: AbstractKernel) -> bool:
    return kernel.name == ARGMAX


@pytest.fixture
def only_argmax(monkeypatch: pytest.MonkeyPatch, library: None) -> None:
    """No kernel but that of argmax on the CPU, whatever else is in the library."""
    kernels = [k for k in select.all_kernels() if _is_ours(k)]
    monkeypatch.setattr(select, "_KERNELS", {k.name: k for k in kernels})
    monkeypatch.setattr(select, "_BY_OP", {k.op: [k] for k in kernels})


# A kernel that is registered for another platform, or not at all (field case I1).


@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
def test_a_kernel_of_another_platform_falls_back_and_says_so(
    platform: str, only_argmax: None
) -> None:
    lir = _legal(_argmax(), platform)
    (made,) = lir.plan.implementations.values()
    assert (made.kind, made.name) == ("rule", "argmax")
    assert made.refused == (
        Refusal(ARGMAX, f"registered for cpu; the platform asked is {platform}"),
    )
    assert "custom_call" not in rlx_xla.stablehlo(_argmax(), platform=platform)


@pytest.mark.parametrize(
    "dispatch",
    [
        {"policy": KernelPolicy.FORCE_NATIVE},
        {"native_ops": frozenset({"argmax"})},
        {"forced": frozenset({ARGMAX})},
    ],
)
def test_a_demanded_kernel_of_another_platform_is_an_error(
    dispatch: dict[str, Any], only_argmax: None
) -> None:
    with pytest.raises(KernelError) as caught:
        _legal(_argmax(), "cuda", **dispatch)
    text = str(caught.value)
    assert text.startswith(
        "kernel_dispatch: a kernel is required for 'argmax' on 'cuda' at test_dispatch.py:"
    )
    assert text.endswith(
        f"; every one refuses:\n  {ARGMAX}: registered for cpu; the platform asked is cuda\n"
        "Allow the lowering rule, or change what the reasons name."
    )


def test_an_unregistered_kernel_is_an_error_with_platforms(only_argmax: None) -> None:
    with pytest.raises(KernelError) as caught:
        _legal(_argmax(), "cuda", forced=frozenset({"argmax.cuda.ffi"}))
    assert str(caught.value) == (
        "kernel_dispatch: kernel 'argmax.cuda.ffi' is not registered (asked for on 'cuda'); "
        f"kernels are {ARGMAX} (cpu). Did you mean '{ARGMAX}'?"
    )


def test_an_op_without_any_kernel_can_be_demanded_in_vain(only_argmax: None) -> None:
    b = rlx.GraphBuilder("g")
    graph = b.build(-b.input("x", "f32[3]"))
    with pytest.raises(KernelError) as caught:
        _legal(graph, "cpu", native_ops=frozenset({"neg"}))
    assert "\n  kernel_dispatch: no kernel for 'neg' is registered on any platform\n" in str(
        caught.value
    )
    assert _legal(graph, "cpu", policy=KernelPolicy.FORCE_NATIVE).plan.implementations


@final
@dataclass(frozen=True, kw_only=True)
class _LastAxis(AbstractKernel):
    """The rule of argmax, for the last axis only."""

    def supports(self, op: Op, types: Sequence[TensorType], platform: str) -> Supported | Refused:
        if op.attributes()["axis"] != types[0].rank - 1:
            return Refused(f"axis {op.attributes()['axis']} of {types[0]} is not the last")
        return Supported()

    def lower(self, ctx: Any, op: Any, *operands: Any) -> Any:
        rule = registry.rule_for(Argmax, ctx.platform)
        assert rule is not None
        return rule(ctx, op, *operands)


@pytest.fixture
def last_axis(monkeypatch: pytest.MonkeyPatch) -> str:
    """Argmax has one kernel, on the CPU, for the last axis; its name."""
    kernel = _LastAxis(name="argmax.cpu.last", op=Argmax, platforms=("cpu",))
    monkeypatch.setattr(select, "_KERNELS", {kernel.name: kernel})
    monkeypatch.setattr(select, "_BY_OP", {Argmax: [kernel]})
    return kernel.name


def test_choices_are_made_on_nodes(last_axis: str) -> None:
    b = rlx.GraphBuilder("g")
    x = b.input("x", "f32[6, 7]")
    graph = b.build(Argmax(axis=1)(x), Argmax(axis=0)(x))
    compiled = rlx.Session("cpu").compile(graph)
    first, second = compiled.report().choices
    assert {(c.kind, c.implementation, c.refused) for c in (first, second)} == {
        ("kernel", last_axis, ()),
        ("rule", "argmax", (f"{last_axis}: axis 0 of f32[6, 7] is not the last",)),
    }
    value = np.random.default_rng().normal(size=(6, 7)).astype(np.float32)
    for axis, found in zip((1, 0), compiled.run({"x": value}), strict=True):
        np.testing.assert_array_equal(found, value.argmax(axis=axis))


@pytest.mark.parametrize("demand", ["forced", "native_ops"])
def test_every_demand_is_in_one_error(demand: str, last_axis: str) -> None:
    b = rlx.GraphBuilder("g")
    x, y = b.input("x", "f32[3, 5]"), b.input("y", "f32[3, 64]")
    graph = b.build(Argmax(axis=0)(x), Argmax(axis=0)(y), Argmax(axis=1)(y))
    name = last_axis if demand == "forced" else "argmax"
    dispatch = KernelDispatch(**{demand: frozenset({name})})
    with pytest.raises(KernelError) as caught:
        rlx.Session("cpu").compile(graph, options=rlx.CompileOptions(kernel_dispatch=dispatch))
    text = str(caught.value)
    assert text.count("a kernel is required for 'argmax'") == 2  # the third one fits
    assert f"\n  {last_axis}: axis 0 of f32[3, 5] is not the last\n" in text
    assert f"\n  {last_axis}: axis 0 of f32[3, 64] is not the last\n" in text
    report = devices.analyze_dispatch(graph, "cpu", rlx.CompileOptions(kernel_dispatch=dispatch))
    assert [c.count for c in report.of(DispatchPath.UNSUPPORTED)] == [2]
    assert not report.compile_ready


@final
@dataclass(frozen=True, kw_only=True)
class _Nobody(AbstractKernel):
    """A kernel whose custom call nobody has registered with XLA."""

    def supports(self, op: Op, types: Sequence[TensorType], platform: str) -> Supported | Refused:
        return Supported()

    def lower(self, ctx: Any, op: Any, *operands: Any) -> Any:
        return stablehlo.CustomCallOp(
            ctx.result_types,
            list(operands),
            call_target_name=ir.StringAttr.get("rlx_nobody_cpu"),
            api_version=ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 4),
            backend_config=ir.DictAttr.get({}),
        ).results


def test_a_custom_call_that_xla_does_not_know_fails_at_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = _Nobody(name="neg.cpu.nobody", op=Neg, platforms=("cpu",), priority=9)
    monkeypatch.setattr(select, "_KERNELS", {**select._KERNELS, kernel.name: kernel})
    monkeypatch.setattr(select, "_BY_OP", {**select._BY_OP, Neg: [kernel]})
    b = rlx.GraphBuilder("g")
    graph = b.build(-b.input("x", "f32[3]"))
    with pytest.raises(CompileError) as caught:
        rlx.Session("cpu").compile(graph)
    text = str(caught.value)
    for part in ("rlx_nobody_cpu", "platform Host", "test_dispatch.py"):
        assert part in text
    common = KernelDispatch(policy=KernelPolicy.FORCE_COMMON)
    compiled = rlx.Session("cpu").compile(graph, options=rlx.CompileOptions(kernel_dispatch=common))
    x = np.random.default_rng().normal(size=3).astype(np.float32)
    np.testing.assert_array_equal(compiled.run({"x": x})[0], -x)


@pytest.mark.parametrize("policy", list(KernelPolicy))
def test_policies_agree_on_the_numbers(policy: KernelPolicy, library: None) -> None:
    graph = _argmax(200)
    options = rlx.CompileOptions(kernel_dispatch=KernelDispatch(policy=policy))
    compiled = rlx.Session("cpu").compile(graph, options=options)
    native = policy is not KernelPolicy.FORCE_COMMON
    assert compiled.report().dispatch.count(DispatchPath.NATIVE) == native
    x = np.random.default_rng().normal(size=(3, 200)).astype(np.float32)
    np.testing.assert_array_equal(compiled.run({"x": x})[0], np.argmax(x, axis=1))


@pytest.mark.gpu
def test_a_kernel_of_the_cpu_falls_back_on_a_gpu(library: None) -> None:
    graph = _argmax(200)
    x = np.random.default_rng().normal(size=(3, 200)).astype(np.float32)
    compiled = rlx.Session("gpu").compile(graph)
    np.testing.assert_array_equal(compiled.run({"x": x})[0], np.argmax(x, axis=1))
    (choice,) = compiled.report().choices
    assert any(reason.startswith(f"{ARGMAX}: registered for cpu") for reason in choice.refused)
    options = rlx.CompileOptions(kernel_dispatch=KernelDispatch(forced=frozenset({ARGMAX})))
    with pytest.raises(KernelError, match="registered for cpu; the platform asked is"):
        rlx.Session("gpu").compile(graph, options=options)


# Before and after a compile.


def test_the_report_before_is_the_report_after(library: None) -> None:
    traced = rlx_xla.trace(
        lambda x: jnp.argmax(jax.nn.softmax(x), axis=-1), jax.ShapeDtypeStruct((3, 64), "float32")
    )
    before = devices.analyze_dispatch(traced.graph, "cpu")
    after = rlx.Session("cpu").compile(traced).report().dispatch
    assert before == after
    assert before.count(DispatchPath.NATIVE) == 1
    assert before.backend_name == "cpu"


def test_support_follows_the_platforms_rules() -> None:
    assert devices.supports("cpu", "argmax")
    b = rlx.GraphBuilder("g")
    graph = b.build(rlx.ops.Softmax(axis=0)(b.input("x", "f32[3, 4]")))
    assert devices.supports("cpu", graph.nodes()[-1])
    assert devices.supports_graph("cpu", graph)
    narrow = rlx.CompileOptions(supported_ops={"exp"})
    found = devices.first_unsupported_op("cpu", graph, narrow)
    assert found is not None
    assert found.op.op_name == "reduce_max"


def test_jit_honours_supported_ops_alone_and_under_tracers() -> None:
    options = rlx.CompileOptions(supported_ops={"exp", "mul"})
    fast = rlx_xla.jit(lambda x: jnp.exp(x) * x, options=options)
    x = jnp.asarray(np.random.default_rng().normal(size=(2, 3)).astype(np.float32))
    np.testing.assert_allclose(fast(x), jnp.exp(x) * x, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(fast)(x), jnp.exp(x) * x, rtol=1e-6)
    slow = rlx_xla.jit(lambda x: jnp.tanh(x), options=options)
    with pytest.raises(LoweringError, match="no lowering for op 'tanh' on 'cpu'"):
        slow(x)
    with pytest.raises(LoweringError, match="no lowering for op 'tanh' on 'cpu'"):
        jax.jit(slow)(x)


# Inside loops, branches and calls; under transformations and donation.


def _row_best(x: jax.Array) -> jax.Array:
    return jnp.argmax(x, axis=-1).astype(jnp.float32)


def _in_while(x: jax.Array) -> Any:
    def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        i, value = state
        return i + 1, value - _row_best(value)[:, None] * 0.1

    return jax.lax.while_loop(lambda s: s[0] < 4, step, (jnp.int32(0), x))


def _in_cond(x: jax.Array) -> Any:
    return jax.lax.cond(x[0, 0] > 0, _row_best, lambda y: _row_best(-y), x)


def _in_call(x: jax.Array) -> Any:
    return jax.jit(_row_best)(x) + 1


def _in_scan(x: jax.Array) -> Any:
    return jax.lax.scan(
        lambda c, row: (c + _row_best(row[None])[0], _row_best(c + row[None])), 0.0, x
    )


PROGRAMS = [_in_scan, _in_while, _in_cond, _in_call]


@pytest.mark.parametrize("program", PROGRAMS)
def test_kernels_run_inside_bodies(program: Any, library: None) -> None:
    x = np.random.default_rng().normal(size=(5, 96)).astype(np.float32)
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(program, jnp.asarray(x)))
    assert any(c.implementation == ARGMAX for c in compiled.report().kernels), compiled.report()
    found, wanted = compiled(x), jax.jit(program)(x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, wanted)


@pytest.mark.parametrize("program", PROGRAMS)
def test_kernels_stay_under_transformations(program: Any, library: None) -> None:
    fast = rlx_xla.jit(program)
    x = jnp.asarray(np.random.default_rng().normal(size=(5, 96)).astype(np.float32))
    batch = jnp.stack([x, -x, x * 2])
    text = jax.jit(jax.vmap(fast)).lower(batch).as_text()
    assert "rlx_argreduce" in text
    found, wanted = jax.vmap(fast)(batch), jax.vmap(program)(batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, wanted)
    assert "rlx_argreduce" in jax.jit(fast).lower(x).as_text()


def test_kernels_stay_under_grad(library: None) -> None:
    def loss(x: jax.Array) -> jax.Array:
        best = jnp.argmax(x, axis=-1)
        return jnp.sum(jnp.take_along_axis(x, best[:, None], axis=-1) ** 2)

    x = jnp.asarray(np.random.default_rng().normal(size=(5, 96)).astype(np.float32))
    fast = rlx_xla.jit(loss)
    np.testing.assert_allclose(jax.grad(fast)(x), jax.grad(loss)(x), rtol=1e-6)
    assert "rlx_argreduce" in jax.jit(jax.value_and_grad(fast)).lower(x).as_text()
    per_row = jax.vmap(jax.grad(fast))(x[:, None])
    np.testing.assert_allclose(per_row, jax.vmap(jax.grad(loss))(x[:, None]), rtol=1e-6)


def test_kernels_run_under_donation(library: None) -> None:
    def step(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x * 2, jnp.argmax(x, axis=-1)

    traced = rlx_xla.trace(step, jnp.zeros((5, 96)), donate_argnums=0)
    compiled = rlx.Session("cpu").compile(traced)
    assert [c.implementation for c in compiled.report().kernels] == [ARGMAX]
    host = np.random.default_rng().normal(size=(5, 96)).astype(np.float32)
    x = jnp.asarray(host)
    doubled, best = compiled(x)
    assert x.is_deleted()
    np.testing.assert_array_equal(doubled, host * 2)
    np.testing.assert_array_equal(best, host.argmax(axis=-1))
    fast = rlx_xla.jit(step, donate_argnums=0)
    x = jnp.asarray(host)
    np.testing.assert_array_equal(fast(x)[1], host.argmax(axis=-1))
    assert x.is_deleted()


# Platforms of PJRT plugins.


def _plugin(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the CPU's devices appear as another platform too."""
    plain = client.jax.local_devices

    def local_devices(*, backend: str | None = None) -> Any:
        return plain(backend="cpu" if backend == name else backend)

    monkeypatch.setattr(client, "_platforms", lambda: ["cpu", name])
    monkeypatch.setattr(client.jax, "local_devices", local_devices)


@pytest.mark.parametrize(("platform", "device"), [("Toy", "toy"), ("METAL", "metal")])
def test_a_plugins_platform_is_a_device(
    platform: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlx import backend

    _plugin(monkeypatch, platform)
    monkeypatch.setattr(backend, "_FACTORIES", {})
    assert client.plugin_platforms() == [device]
    found = rlx.Session(device)
    b = rlx.GraphBuilder("g")
    graph = b.build(b.input("x", "f32[3]").exp())
    x = np.random.default_rng().normal(size=3).astype(np.float32)
    np.testing.assert_allclose(found.compile(graph).run({"x": x})[0], np.exp(x), rtol=1e-6)
    assert device in rlx.available_devices()


def test_a_plugins_platform_lowers_by_the_rules_for_every_platform() -> None:
    with pytest.raises(LoweringError, match=r"platform is one of .*; got 'never'"):
        rlx_xla.stablehlo(_argmax(), platform="never")
    registry.add_platform("plugged")
    try:
        assert "func.func public @main" in rlx_xla.stablehlo(_argmax(), platform="plugged")
    finally:
        registry._PLUGINS.discard("plugged")


def test_a_device_that_is_not_attached_says_so_in_two_parts() -> None:
    missing = [d for d in ("cuda", "rocm", "tpu") if not devices.is_available(d)]
    for name in missing:
        with pytest.raises(DeviceError) as caught:
            rlx.Session(f"{name}:3")
        assert str(caught.value).startswith(
            f"device {devices.full_name(name)}:3 is not available — the `{name}` feature is "
            "enabled but no such device/driver was found on this host; available: "
        )
        assert devices.feature_compiled(name)


def test_traced_functions_are_asked_about_as_graphs_are() -> None:
    traced = rlx_xla.trace(lambda x: jnp.tanh(x) @ x, jnp.ones((4, 4)))
    assert devices.supports_graph("cpu", traced)
    assert devices.pick_device(traced, devices.DevicePolicy.only("cpu")).device == "cpu"
    assert rlx.Session("cpu").lower(traced).is_fully_static
    assert devices.legalize_graph_for_device("cpu", traced).node_count() >= 3
    for name, ask in (
        ("devices", lambda: devices.analyze_dispatch(3, "cpu")),  # type: ignore[arg-type]
        ("pick_device", lambda: devices.pick_device(3)),  # type: ignore[arg-type]
        ("lower", lambda: rlx.Session("cpu").lower(3)),  # type: ignore[arg-type]
    ):
        with pytest.raises(CompileError) as caught:
            ask()
        assert str(caught.value) == (
            f"{name}: a Graph, a Module or a traced function is required; got int. Trace a JAX "
            "function with rlx_xla.trace(fn, ...)."
        )


def _saved_for(*platforms: str) -> Graph:
    """A graph with an opaque node of which text is left, for some platforms."""
    type_ = TensorType(rlx.DType.F32, (3,))
    text = (
        "module { func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> {\n"
        "  %y = stablehlo.add %x, %x : tensor<3xf32>\n  return %y : tensor<3xf32>\n} }"
    )
    b = rlx.GraphBuilder("saved")
    made = rlx.ops.External(
        name="double",
        dtypes=(type_.dtype,),
        shapes=(type_.shape,),
        stablehlo=tuple((p, text) for p in platforms),
    )(b.input("x", type_))
    return b.build(made)


def test_a_rule_refuses_nodes_that_it_cannot_lower() -> None:
    graph = _saved_for("tpu", "cuda")
    assert devices.first_unsupported_op("cpu", graph) is graph.nodes()[-1]
    assert not devices.supports("cpu", graph.nodes()[-1])
    assert devices.supports("cpu", "external")
    with pytest.raises(LoweringError) as caught:
        rlx.Session("cpu").compile(graph)
    assert (
        "\n    rule: the opaque node 'double' is required to hold StableHLO for 'cpu'; it holds "
        "['tpu', 'cuda']. Trace the function again." in str(caught.value)
    )
    with pytest.raises(LoweringError, match="is required to hold StableHLO for 'rocm'"):
        rlx_xla.stablehlo(graph, platform="rocm")
    assert "stablehlo.add" in rlx_xla.stablehlo(graph, platform="tpu")
    x = np.random.default_rng().normal(size=3).astype(np.float32)
    compiled = rlx.Session("cpu").compile(_saved_for("cpu"))
    np.testing.assert_array_equal(compiled.run({"x": x})[0], x + x)


def test_the_interpreter_refuses_what_has_no_meaning_in_numpy() -> None:
    with pytest.raises(LoweringError) as caught:
        rlx.Session("interpret").compile(_saved_for("cpu"))
    assert (
        "\n    interpret: the opaque node 'double' has no NumPy meaning: only its text is left\n"
        in str(caught.value)
    )
