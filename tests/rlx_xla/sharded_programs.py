"""Programs over eight devices; ``python -m tests.rlx_xla.sharded_programs`` runs them all.

A process has as many CPU devices as it was started with, so these run in one of their own, which
prints a JSON object: the name of a program → the text of its failure, or an empty text.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

COUNT = 8
PROGRAMS: dict[str, Callable[[], None]] = {}
Body = Callable[..., Any]


def program(fn: Callable[[], None]) -> Callable[[], None]:
    PROGRAMS[fn.__name__] = fn
    return fn


def environment() -> dict[str, str]:
    """The environment in which there are eight CPU devices."""
    flags = f"--xla_force_host_platform_device_count={COUNT}"
    return {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng().standard_normal(shape).astype(np.float32)


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(
        np.asarray(found, np.float64), np.asarray(wanted, np.float64), rtol=2e-5, atol=2e-5
    )


def jax_mesh() -> Any:
    import jax

    devices = np.array(jax.devices()).reshape(4, 2)
    return jax.sharding.Mesh(devices, ("data", "model"))


def on_jax(*entries: Any) -> Any:
    import jax

    return jax.sharding.NamedSharding(jax_mesh(), jax.sharding.PartitionSpec(*entries))


def traced_as_jit(fn: Body, *arguments: Any) -> Any:
    """Trace, compile and run; compare with jax.jit, with NumPy and with ``to_jax``."""
    import jax

    import rlx
    import rlx_xla

    traced = rlx_xla.trace(fn, *arguments)
    assert traced.coverage().external == 0, str(traced.coverage())
    found = jax.tree.leaves(rlx.Session("cpu").compile(traced)(*arguments))
    wanted = jax.tree.leaves(jax.jit(fn)(*arguments))
    back = jax.tree.leaves(jax.jit(rlx_xla.to_jax(traced))(*arguments))
    inputs = dict(zip(traced.signature.inputs, map(np.asarray, arguments), strict=True))
    params = {k: np.asarray(v) for k, v in traced.params.items()}
    numbers = rlx.interpret(traced.graph, inputs, params)
    for mine, theirs, again, plain in zip(found, wanted, back, numbers, strict=True):
        close(mine, theirs)
        close(again, theirs)
        close(plain, theirs)
        assert mine.sharding.is_equivalent_to(theirs.sharding, mine.ndim), mine.sharding
    assert rlx.same(rlx.parse(str(traced.graph)), traced.graph)
    return traced


def two_layers() -> Any:
    import rlx

    b = rlx.GraphBuilder("layers")
    x = b.input("x", "f32[16, 8]")
    w1, w2 = b.param("w1", "f32[8, 12]"), b.param("w2", "f32[12, 8]")
    return b.build((x @ w1).gelu() @ w2, x.sum(0))


def mapped(body: Body, inputs: Any, outputs: Any, **options: Any) -> Body:
    import jax

    return jax.shard_map(body, mesh=jax_mesh(), in_specs=inputs, out_specs=outputs, **options)


@program
def samples_of_collectives() -> None:
    """Every sample of the family that one device cannot run, against NumPy."""
    import rlx
    from rlx.ops.io import Input
    from tests.samples.collective import samples

    leaves, arrays, outputs, meshes = [], {}, [], set()
    for number, sample in enumerate(samples(np.random.default_rng())):
        if sample.xla:
            continue
        (x,) = sample.inputs
        dtype = (
            rlx.DType.BF16
            if x.dtype.itemsize == 2
            else rlx.DType[x.dtype.name.replace("float", "F").replace("int", "I")]
        )
        leaf = Input(name=f"x{number}", dtype=dtype, shape=x.shape)()
        made = sample.op(leaf)
        outputs += made if isinstance(made, tuple) else [made]
        leaves.append(leaf)
        arrays[leaf.name] = x
        meshes.add(sample.op.attributes()["mesh"])
    assert len(leaves) > 30
    assert len(meshes) == 1
    graph = rlx.Graph(leaves, (), outputs)
    compiled = rlx.Session("cpu").compile(graph)
    for found, wanted in zip(compiled.run(arrays), rlx.interpret(graph, arrays), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(
            found.astype(np.float64), wanted.astype(np.float64), rtol=1e-2, atol=1e-2
        ) if found.dtype.itemsize == 2 else close(found, wanted)


@program
def a_graph_with_shardings_by_name() -> None:
    import jax

    import rlx
    from rlx.sharding import P

    x, w1, w2 = floats(16, 8), floats(8, 12), floats(12, 8)
    plain = rlx.Session("cpu").compile(two_layers())
    plain.set_params({"w1": w1, "w2": w2})
    wanted = plain.run({"x": x})
    graph = two_layers().with_shardings(
        {"x": P("data"), "w1": P(None, "model"), "w2": P("model")},
        mesh={"data": 4, "model": 2},
        outputs={0: P("data", "model")},
    )
    compiled = rlx.Session("cpu").compile(graph)
    compiled.set_params({"w1": w1, "w2": w2})
    held = compiled.params()["w1"]
    assert {shard.data.shape for shard in held.addressable_shards} == {(8, 6)}
    for found, value in zip(compiled.run({"x": x}), wanted, strict=True):
        close(found, value)
    first, _ = compiled(x)
    assert first.sharding == on_jax("data", "model")
    assert {shard.data.shape for shard in first.addressable_shards} == {(4, 4)}
    # Arrays that lie elsewhere are moved; those that lie right are taken as they are.
    right = jax.device_put(x, on_jax("data"))
    assert compiled._static.executable.loaded._rules.admit(0, right) is right  # pyright: ignore
    for where in (on_jax("data"), on_jax(), jax.devices()[3]):
        close(compiled(jax.device_put(x, where))[0], wanted[0])
    # Sizes on one device, a quarter of x and half of the weights.
    assert compiled.memory()["argument"] == 4 * (4 * 8 + 8 * 6 + 6 * 8)
    assert "all-reduce" in compiled._static.executable.loaded.hlo()  # pyright: ignore
    assert "sdy.sharding" in compiled.stablehlo()
    twin = compiled.clone()
    close(twin.run({"x": x})[0], wanted[0])
    compiled.set_param("w1", 2 * w1)
    close(twin.run({"x": x})[0], wanted[0])
    assert compiled.run({"x": x})[1] is not None
    # As in jax.jit, with the weights as they lie here.
    fn = jax.jit(lambda x, a, b: jax.nn.gelu(x @ a, approximate=False) @ b)
    close(fn(jax.device_put(x, on_jax("data")), w1, w2), wanted[0])


@program
def kept_and_donated_inputs() -> None:
    import jax

    import rlx
    from rlx.sharding import P

    b = rlx.GraphBuilder("steps")
    state, x = b.input("state", "f32[8, 4]"), b.input("x", "f32[8, 4]")
    graph = b.build(state + x, (state * x).sum())
    graph = graph.with_shardings(
        {"state": P("data"), "x": P("data")}, mesh={"data": 8}, outputs={0: P("data")}
    )
    compiled = rlx.Session("cpu").compile(graph)
    start, step = floats(8, 4), floats(8, 4)
    compiled.keep("state", from_output=0, value=start)
    for turn in range(3):
        compiled.run({"x": step}, outputs=[1])
        close(compiled.kept("state"), start + (turn + 1) * step)
    donating = rlx.Session("cpu").compile(
        graph, options=rlx.CompileOptions(donate=frozenset({"state"}))
    )
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    placed = jax.device_put(
        start, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    )
    close(donating(placed, step)[0], start + step)
    assert placed.is_deleted()


@program
def symbolic_sizes() -> None:
    import rlx
    from rlx.errors import ShapeError
    from rlx.sharding import P

    b = rlx.GraphBuilder("symbolic")
    x, w = b.input("x", "f32[n, 6]"), b.param("w", "f32[6, 4]")
    graph = b.build((x @ w).tanh()).with_shardings(
        {"x": P("data"), "w": P(None, "model")}, mesh={"data": 4, "model": 2}, outputs=[P("data")]
    )
    compiled = rlx.Session("cpu").compile(graph)
    weight = floats(6, 4)
    compiled.set_param("w", weight)
    for size in (4, 12):
        data = floats(size, 6)
        close(compiled.run({"x": data})[0], np.tanh(data @ weight))
    with pytest.raises(ShapeError, match="axis 0 of 'x' is required to be divisible by 4"):
        compiled.run({"x": floats(5, 6)})
    # A bucket that divides takes them: the rows beside them are cut off again.
    rounded = rlx.Session("cpu").compile(graph, options=rlx.CompileOptions(buckets={"n": [8, 16]}))
    rounded.set_param("w", weight)
    for size in (5, 8, 13):
        data = floats(size, 6)
        close(rounded.run({"x": data})[0], np.tanh(data @ weight))
    assert len(rounded.specializations()) == 2


@program
def traced_sizes_that_do_not_divide() -> None:
    import jax

    import rlx
    import rlx_xla
    from rlx.errors import DimError

    halves = jax.jit(lambda x: x * 2, in_shardings=on_jax("data"))
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(halves, "f32[n, 6]"))
    data = floats(12, 6)
    close(compiled(data), data * 2)
    for size in (3, 13):  # below and above the size that is fixed
        message = f"with n={size}: n={size} not divisible by 4, a sharding's parts of axis 0. Pass"
        with pytest.raises(DimError, match=message):
            compiled(floats(size, 6))


@program
def wide_numbers() -> None:
    import rlx
    from rlx.sharding import P

    b = rlx.GraphBuilder("wide")
    x, n = b.input("x", "f64[8]"), b.input("n", "i64[8]")
    graph = b.build(x * 2.0, n + n).with_shardings({"x": P("d"), "n": P("d")}, mesh={"d": 8})
    data = np.random.default_rng().standard_normal(8)
    numbers = np.arange(8) + 2**40
    found = rlx.Session("cpu").compile(graph).run({"x": data, "n": numbers})
    np.testing.assert_array_equal(found[0], data * 2)
    np.testing.assert_array_equal(found[1], numbers * 2)


@program
def shardings_of_arguments() -> None:
    import jax
    import jax.numpy as jnp

    import rlx
    import rlx_xla
    from rlx.sharding import shardings

    x = jax.device_put(floats(8, 4), on_jax("data", "model"))
    w = jax.device_put(floats(4, 8), on_jax(None, "model"))

    def fn(x: Any, w: Any) -> Any:
        return jax.nn.softmax(jnp.sin(x) @ w)

    traced = traced_as_jit(fn, x, w)
    assert shardings(traced.graph)["x"].placement == (("data",), ("model",))
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for a in (x, w)]
    assert rlx.same(rlx_xla.trace(fn, *structs).graph, traced.graph)
    # A captured array that is spread, and one that is a param.
    large = jax.device_put(floats(4, 512), on_jax(None, "data"))
    captured = rlx_xla.trace(lambda x: x @ large, x)
    (name,) = [v.name for v in captured.graph.params]
    assert shardings(captured.graph)[name].placement == ((), ("data",))
    close(rlx.Session("cpu").compile(captured)(x), np.asarray(x) @ np.asarray(large))
    bound = rlx.Session("cpu").compile(rlx_xla.trace(fn, x, w, params=1))
    assert bound.params()["w"] is w
    close(bound(x), fn(x, w))


@program
def shardings_of_jit() -> None:
    import jax

    x, w = floats(8, 4), floats(4, 8)
    fn = jax.jit(
        lambda x, w: x @ w,
        in_shardings=(on_jax("data"), None),
        out_shardings=on_jax("data", "model"),
    )
    traced = traced_as_jit(fn, x, w)
    assert 'input %x "x": f32[8, 4] {mesh = (("data", 4), ("model", 2)), ' in str(traced.graph)
    inner = jax.jit(lambda x: x * 2, out_shardings=on_jax("model"))
    traced_as_jit(lambda x: inner(x) + inner(x + 1), x)


@program
def constraints() -> None:
    import jax

    free = jax.sharding.PartitionSpec.UNCONSTRAINED

    def fn(x: Any, w: Any) -> Any:
        y = jax.lax.with_sharding_constraint(x @ w, on_jax("data", free))
        return jax.lax.with_sharding_constraint(y * 2, on_jax(None, "model"))

    traced_as_jit(fn, floats(8, 4), floats(4, 8))


@program
def meshes_with_explicit_axes() -> None:
    import jax
    import jax.numpy as jnp

    mesh = jax.make_mesh((4, 2), ("data", "model"))
    spec = jax.sharding.PartitionSpec
    x = jax.device_put(floats(8, 4), jax.sharding.NamedSharding(mesh, spec("data", "model")))
    traced_as_jit(lambda x: jnp.sin(x) * 2, x)


@program
def results_over_explicit_axes_have_jaxs_types() -> None:
    import jax
    import jax.numpy as jnp

    import rlx
    import rlx_xla

    mesh = jax.make_mesh(
        (4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Explicit,) * 2
    )
    spec = jax.sharding.PartitionSpec
    x = jax.device_put(floats(8, 4), jax.sharding.NamedSharding(mesh, spec("data", "model")))

    def wave(x: jax.Array) -> jax.Array:
        return jnp.sin(x) * 2

    def loss(x: jax.Array) -> jax.Array:
        return (wave(x) ** 2).sum()

    with jax.set_mesh(mesh):
        wanted = jax.jit(wave)(x)
        compiled = rlx.Session("cpu").compile(rlx_xla.trace(wave, x))
        for found in (rlx_xla.jit(wave)(x), compiled(x)):
            assert jax.typeof(found) == jax.typeof(wanted)
            np.testing.assert_allclose(found + x, wanted + x, rtol=1e-6)
        slopes = jax.jit(jax.grad(rlx_xla.jit(loss)))(x)
        assert jax.typeof(slopes) == jax.typeof(x)
        np.testing.assert_allclose(slopes, jax.grad(loss)(x), rtol=1e-5)


@program
def gathering_nothing() -> None:
    import jax
    from jax.sharding import PartitionSpec as P

    import rlx
    import rlx_xla

    x = np.ones((0, 3), np.float32)
    fn = mapped(
        lambda y: jax.lax.all_gather(y, "data", tiled=True), P("data"), P(), check_vma=False
    )
    (found,) = rlx.Session("cpu").compile(rlx_xla.trace(fn, x)).run({"y": x})
    assert found.shape == (0, 3)


@program
def shard_maps() -> None:
    import jax
    from jax.sharding import PartitionSpec as P

    x, w = floats(8, 4), floats(4, 8)
    ring = [(i, (i + 1) % 4) for i in range(4)]

    def body(x: Any, w: Any) -> Any:
        y = jax.lax.psum(x @ w, "model")
        every = jax.lax.all_gather(y, "data", axis=0, tiled=True)
        return (
            y,
            every,
            jax.lax.all_gather(y, "data", axis=1),
            jax.lax.psum_scatter(every, "data", scatter_dimension=0, tiled=True),
            jax.lax.psum_scatter(every[:4], "data", scatter_dimension=0),
            jax.lax.all_to_all(y, "data", 1, 0, tiled=True),
            jax.lax.all_to_all(every[:4], "data", 0, 1),
            jax.lax.ppermute(y, "data", ring),
            jax.lax.pmax(y, ("data", "model")),
            jax.lax.pmin(y, "model"),
            jax.lax.pmean(y, "data"),
            jax.lax.axis_index(("data", "model"))[None],
        )

    rows, both = P("data"), P(("data", "model"))
    outputs = (rows, P(), P(), rows, rows, rows, rows, rows, P(), rows, P(), both)
    traced_as_jit(mapped(body, (P("data", "model"), P("model")), outputs, check_vma=False), x, w)


@program
def extremes_carry_nan() -> None:
    """XLA:CPU's own exchange loses NaN, wherever it stands; an op means what it says."""
    import jax
    from jax.sharding import PartitionSpec as P

    import rlx
    import rlx_xla

    x = floats(8, 4)
    x[np.random.default_rng().permutation(8)[:3], [0, 1, 1]] = np.nan
    for extreme, numpy in ((jax.lax.pmax, np.max), (jax.lax.pmin, np.min)):
        fn = mapped(lambda y, f=extreme: f(y, ("data", "model")), P(("data", "model")), P())
        traced = rlx_xla.trace(fn, x)
        (found,) = rlx.Session("cpu").compile(traced).run({"y": x})
        np.testing.assert_array_equal(found, numpy(x, axis=0, keepdims=True))


@program
def shard_maps_that_jax_checks() -> None:
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    import rlx_xla

    x, w = floats(8, 4), floats(4, 8)

    def body(x: Any, w: Any) -> Any:
        return jax.lax.psum(x @ w, "model") * 2 + jax.lax.axis_index("data")

    fn = mapped(body, (P("data", "model"), P("model")), P("data"))
    traced_as_jit(fn, x, w)
    gradient = jax.grad(lambda x, w: (fn(x, w) ** 2).sum(), argnums=(0, 1))
    traced_as_jit(gradient, x, w)
    again = rlx_xla.to_jax(rlx_xla.trace(fn, x, w))
    mine = jax.grad(lambda x, w: (again(x, w) ** 2).sum(), argnums=(0, 1))(x, w)
    for found, wanted in zip(mine, gradient(x, w), strict=True):
        close(found, wanted)

    def loop(x: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            moved = jax.lax.ppermute(c, "data", [(i, (i + 1) % 4) for i in range(4)])
            return moved + jnp.sin(jax.lax.psum(c, "data")), c.sum()

        return jax.lax.scan(step, x, None, length=3)[0]

    traced_as_jit(mapped(loop, P("data"), P("data")), x)
    partial = mapped(
        lambda x: jax.lax.psum(jnp.sin(x), "data"), P("data"), P(), axis_names={"data"}
    )
    traced_as_jit(jax.jit(partial), x)
    large = jnp.asarray(floats(4, 128))
    traced_as_jit(mapped(lambda x: x @ large, P("data"), P("data"), check_vma=False), x)


@program
def jit_of_functions_with_shards() -> None:
    import jax
    from jax.sharding import PartitionSpec as P

    import rlx_xla

    x, w = floats(8, 4), floats(4, 8)
    fn = mapped(
        lambda x, w: jax.lax.psum(x @ w, "model"), (P("data", "model"), P("model")), P("data")
    )
    fast = rlx_xla.jit(fn)
    close(fast(x, w), x @ w)
    assert fast(x, w).sharding.is_equivalent_to(on_jax("data"), 2)
    close(fast(jax.device_put(x, on_jax("data")), w), x @ w)
    close(jax.jit(fast)(x, w), x @ w)
    placed = rlx_xla.jit(
        jax.jit(lambda x, w: x @ w, in_shardings=(on_jax("data"), on_jax()), out_shardings=on_jax())
    )
    close(placed(x, w), x @ w)
    assert placed(x, w).sharding.is_equivalent_to(on_jax(), 2)
    assert "  devices: 8, Mesh(data=4, model=2)\n" in str(placed.report())


@program
def opaque_nodes() -> None:
    import jax
    from jax.sharding import PartitionSpec as P

    import rlx
    import rlx_xla

    x = floats(8, 4)

    def halves(x: Any) -> Any:  # groups are not modelled
        return jax.lax.psum(x, "data", axis_index_groups=[[0, 1], [2, 3]])

    fn = mapped(halves, P("data"), P("data"), check_vma=False)
    for given in (x, jax.device_put(x, on_jax("data"))):
        traced = rlx_xla.trace(fn, given)
        assert traced.coverage().external == 1
        close(rlx.Session("cpu").compile(traced)(given), fn(x))
    # Whole numbers have exact products; of others LAPACK may find the values in another order.
    x = np.round(3 * x)
    placed = jax.device_put(x, on_jax("data"))
    traced = rlx_xla.trace(lambda x: jax.lax.linalg.schur(x[:4] @ x[:4].T)[0], placed)
    assert traced.coverage().external == 1
    close(rlx.Session("cpu").compile(traced)(placed), jax.lax.linalg.schur(x[:4] @ x[:4].T)[0])


@program
def callbacks_need_one_device() -> None:
    import jax

    import rlx
    import rlx_xla
    from rlx.errors import CompileError

    def fn(x: Any) -> Any:
        jax.debug.print("{}", x.sum())
        return x * 2

    placed = jax.device_put(floats(8, 4), on_jax("data"))
    message = (
        r"^compile fn: a program with host callbacks must take the hot path; got path 'auto', "
        r"which no program over several devices takes \(Mesh\(data=4, model=2\)\)\. Remove "
    )
    with pytest.raises(CompileError, match=message):
        rlx.Session("cpu").compile(rlx_xla.trace(fn, placed))


def has_kernels() -> bool:
    """Whether the library of kernels is built and fits this jax; its own tests say why not."""
    from rlx_xla.kernels import ffi

    return not isinstance(ffi.load(), ffi.Unavailable)


@program
def kernels_run_on_shards_only() -> None:
    if not has_kernels():
        return
    import rlx
    from rlx.ops.collective import ShardMap
    from rlx.ops.io import Input
    from rlx.ops.sorting import Sort

    def leaf(name: str, *shape: int) -> Any:
        return Input(name=name, dtype=rlx.DType.F32, shape=shape)()

    data = floats(8, 4096)
    whole, part = leaf("x", 8, 4096), leaf("p", 1, 4096)
    session = rlx.Session("cpu")
    alone = session.compile(rlx.Graph([whole], (), [Sort(axis=1)(whole)]))
    (kernel,) = [c for c in alone.report().dispatch.summaries if c.kind == "kernel"]
    # Divided along the axis that is sorted: XLA has to exchange what lies where.
    outside = rlx.Graph([whole], (), [Sort(axis=1)(whole)]).with_shardings(
        {"x": (None, "data")}, mesh={"data": 8}
    )
    compiled = session.compile(outside)
    close(compiled.run({"x": data})[0], np.sort(data))
    report = str(compiled.report())
    assert (
        f"refused {kernel.implementation}: XLA would not divide it over Mesh(data=8), but gather "
        "its operands on every device; call it in a shard_map" in report
    ), report
    body = rlx.Graph([part], (), [Sort(axis=1)(part)])
    rows = (("data",), ())
    op = ShardMap(
        body=body,
        mesh=(("data", 8),),
        manual=("data",),
        in_shardings=(rows,),
        out_shardings=(rows,),
    )
    compiled = session.compile(rlx.Graph([whole], (), [op(whole)]))
    close(compiled.run({"x": data})[0], np.sort(data))
    used = {c.implementation for c in compiled.report().dispatch.summaries if c.kind == "kernel"}
    assert used == {kernel.implementation}
    # A kernel that an option demands runs whole on every device, and the report says so.
    forced = rlx.CompileOptions(
        kernel_dispatch=rlx.KernelDispatch(forced=frozenset({kernel.implementation}))
    )
    compiled = session.compile(outside, options=forced)
    close(compiled.run({"x": data})[0], np.sort(data))
    assert (
        f"sharding: XLA does not divide {kernel.implementation}: each of the 8 devices of "
        "Mesh(data=8) gathers all operands" in str(compiled.report())
    )


@program
def kernels_divide_rows() -> None:
    if not has_kernels():
        return
    import rlx
    from rlx.ops.activation import Tanh
    from rlx.ops.attention import Attention, MaskKind
    from rlx.ops.io import Input
    from rlx.ops.reduction import Argmax, CumSum
    from rlx.ops.sorting import Sort, TopK
    from rlx.sharding import P

    def leaf(name: str, *shape: int) -> Any:
        return Input(name=name, dtype=rlx.DType.F32, shape=shape)()

    x, y = leaf("x", 8, 2, 4096), leaf("y", 8, 2, 4096)
    q, k, v = (leaf(name, 8, 2, 64, 32) for name in "qkv")
    mask = Input(name="mask", dtype=rlx.DType.BOOL, shape=(1, 1, 64, 64))()
    keys, follow = Sort(axis=2)(-x, y)
    outputs = [
        keys,
        follow,
        *TopK(k=5)(Tanh()(x)),
        Argmax(axis=1)(x),
        CumSum(axis=2)(keys),
        Attention(num_heads=2, head_dim=32, layout="bhsd")(q, k, v),
        Attention(num_heads=2, head_dim=32, layout="bhsd", mask_kind=MaskKind.CUSTOM)(
            q, k, v, mask
        ),
    ]
    graph = rlx.Graph([x, y, q, k, v, mask], (), outputs)
    arrays: dict[str, Any] = {v.name: floats(*map(int, v.shape)) for v in graph.inputs}  # pyright: ignore
    arrays["mask"] = arrays["mask"] < 1.0
    # Apart and positive: neither a tanh of other digits nor another order of a sum moves an index.
    row = np.linspace(0.01, 2, 4096, dtype=np.float32)
    arrays["x"] = np.random.default_rng().permuted(np.tile(row, (8, 2, 1)), axis=-1)
    specs = {"x": P("data", "model"), "y": P("data"), "q": P("data"), "k": P("data"), "mask": P()}
    spread = graph.with_shardings(specs, mesh={"data": 4, "model": 2})
    session = rlx.Session("cpu")
    alone, compiled = session.compile(graph), session.compile(spread)
    for found, wanted in zip(compiled.run(arrays), alone.run(arrays), strict=True):
        close(found, wanted)
    kernels = {c.op for c in compiled.report().dispatch.summaries if c.kind == "kernel"}
    assert {"sort", "top_k"} <= kernels, kernels
    assert kernels >= {c.op for c in alone.report().dispatch.summaries if c.kind == "kernel"} - {
        "argmax"
    }, kernels
    first = compiled(*(arrays[leaf.name] for leaf in graph.inputs))[0]
    assert first.sharding.is_equivalent_to(on_jax("data", "model"), 3)


@program
def every_kernel_divides_or_says_so() -> None:
    if not has_kernels():
        return
    import rlx
    from rlx.sharding import P
    from tests.rlx_xla.kernel_programs import PROGRAMS, ROWS, everything

    graph, arrays = everything(np.random.default_rng())
    rows = {leaf.name: P("d") for leaf in graph.inputs if leaf.shape[:1] == (ROWS,)}
    spread = graph.with_shardings(rows, mesh={"d": COUNT})
    session = rlx.Session("cpu")
    wanted = session.compile(graph).run(arrays)
    for forced in (frozenset[str](), frozenset(PROGRAMS)):
        dispatch = rlx.KernelDispatch(forced=forced)
        compiled = session.compile(spread, options=rlx.CompileOptions(kernel_dispatch=dispatch))
        for mine, theirs in zip(compiled.run(arrays), wanted, strict=True):
            atol = 1e-5 * float(np.abs(theirs).max())
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=atol)
        report = str(compiled.report())
        used = {c.implementation for c in compiled.report().kernels}
        refused = {n for n in PROGRAMS if f"refused {n}: XLA would not divide it over" in report}
        assert used | refused == set(PROGRAMS), set(PROGRAMS) - used - refused
        assert used == set(PROGRAMS) or not forced, refused
        divided = used - {n for n in PROGRAMS if f"sharding: XLA does not divide {n}:" in report}
        apart = (
            "attention",
            "conv_general_dilated",
            "dequant_matmul",
            "gru",
            "selective_scan",
            "sort",
        )
        assert {f"{name}.cpu.ffi" for name in apart} <= divided, report


@program
def too_few_devices() -> None:
    import rlx
    from rlx.errors import DeviceError
    from rlx.sharding import P

    graph = two_layers().with_shardings({"x": P("d")}, mesh={"d": 16})
    with pytest.raises(
        DeviceError, match=r"^mesh Mesh.d=16.: 16 devices are required; cpu has 8 "
    ) as caught:
        rlx.Session("cpu").compile(graph)
    assert "--xla_force_host_platform_device_count=16" in str(caught.value)
    # From another device on there are fewer.
    four = two_layers().with_shardings({"x": P("d")}, mesh={"d": 4})
    with pytest.raises(DeviceError, match=r"cpu has 2 from cpu:6 on.*count=10 before JAX starts"):
        rlx.Session("cpu:6").compile(four)
    two = two_layers().with_shardings({"x": P("d")}, mesh={"d": 2})
    placed = rlx.Session("cpu:6").compile(two)
    placed.set_params({"w1": floats(8, 12), "w2": floats(12, 8)})
    outputs: Sequence[Any] = placed(floats(16, 8))
    assert {d.id for d in outputs[0].devices()} == {6, 7}


def main() -> None:
    found: dict[str, str] = {}
    for name, run in PROGRAMS.items():
        try:
            run()
        except Exception:  # its text is what the test shows
            found[name] = traceback.format_exc()
        else:
            found[name] = ""
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
