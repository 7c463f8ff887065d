"""Our kernels on an NVIDIA GPU against ``jax.jit`` of the natural form, queued calls.

Run by hand where a GPU is attached: ``python -m tests.benchmarks.cuda`` prints a table that names
the card. Words that follow choose the rows that have them all.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import rlx
import rlx_xla
from rlx import quant
from rlx.dtypes import as_dtype
from rlx.ops.attention import Attention, MaskKind
from rlx.ops.quantized import DequantMatmul, ScaledMatmul, ScaledQuantize, ScaledQuantScale
from rlx.ops.reduction import CumSum
from rlx.ops.sequence import GatedDeltaNet, Lstm, SelectiveScan
from rlx.ops.sorting import TopK, TopNan
from rlx.quant.schemes import QuantScheme, SchemeKind
from tests.rlx_xla.drawn_weights import quantized


def seconds(call: Callable[[], Any], calls: int = 20, rounds: int = 7) -> float:
    """Median time of one call among queued ones."""
    jax.block_until_ready([call() for _ in range(3)])
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        out = None
        for _ in range(calls):
            out = call()
        jax.block_until_ready(out)
        times.append((time.perf_counter() - start) / calls)
    return statistics.median(times)


def drawn(*shape: int, dtype: Any = jnp.float32, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(dtype)


def selective_scan() -> tuple[Any, Any, list[Any], float]:
    batch, length, width, state = 4, 2048, 1024, 16
    x, delta = drawn(batch, length, width), jnp.abs(drawn(batch, length, width, seed=1)) * 0.1
    a = -jnp.abs(drawn(width, state, seed=2))
    b, c = drawn(batch, length, state, seed=3), drawn(batch, length, state, seed=4)

    def natural(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
        def step(h: Any, now: Any) -> tuple[Any, Any]:
            x_t, d_t, b_t, c_t = now
            h = jnp.exp(d_t[..., None] * a) * h + (d_t * x_t)[..., None] * b_t[:, None, :]
            return h, (h * c_t[:, None, :]).sum(-1)

        along = [jnp.swapaxes(v, 0, 1) for v in (x, delta, b, c)]
        return jnp.swapaxes(lax.scan(step, jnp.zeros((batch, width, state)), along)[1], 0, 1)

    return SelectiveScan(state_size=state), natural, [x, delta, a, b, c], 4.0 * 3 * x.size


def gated_delta_net(dtype: Any) -> Any:
    def make() -> tuple[Any, Any, list[Any], float]:
        batch, _, heads, size = shape = 4, 2048, 8, 128
        q, k, v = (drawn(*shape, seed=i) for i in range(3))
        k = k / jnp.linalg.norm(k, axis=-1, keepdims=True)
        g = -0.1 * jnp.abs(drawn(*shape[:3], seed=3))
        beta = jax.nn.sigmoid(drawn(*shape[:3], seed=4))
        args = [x.astype(dtype) for x in (q, k, v, g, beta)]

        def natural(*args: Any) -> Any:
            def step(state: Any, now: Any) -> tuple[Any, Any]:
                q, k, v, g, beta = now
                state = jnp.exp(g)[..., None, None] * state
                change = (v - jnp.einsum("bhij,bhi->bhj", state, k)) * beta[..., None]
                state = state + k[..., None] * change[..., None, :]
                return state, jnp.einsum("bhij,bhi->bhj", state, q) * size**-0.5

            along = [jnp.swapaxes(x, 0, 1).astype(jnp.float32) for x in args]
            start = jnp.zeros((batch, heads, size, size))
            return jnp.swapaxes(lax.scan(step, start, along)[1], 0, 1).astype(dtype)

        # Of each element of the state: decay, two sums, one correction.
        return GatedDeltaNet(state_size=size), natural, args, 7.0 * q.size * size

    return make


def lstm(batch: int, hidden: int) -> Any:
    def make() -> tuple[Any, Any, list[Any], float]:
        length, width = 512, 256
        x = drawn(batch, length, width)
        w_ih, w_hh = drawn(4 * hidden, width) / 16, drawn(4 * hidden, hidden, seed=2) / 16
        bias = drawn(4 * hidden, seed=3)

        def natural(x: Any, w_ih: Any, w_hh: Any, bias: Any) -> Any:
            w_ih = w_ih.reshape(4 * hidden, width)

            def step(carry: Any, entering: Any) -> tuple[Any, Any]:
                h, c = carry
                i, f, g, o = jnp.split(entering + h @ w_hh[0].T, 4, axis=-1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
                return (h, c), h

            entering = jnp.swapaxes(x, 0, 1) @ w_ih.T + bias[0]
            zeros = jnp.zeros((batch, hidden))
            return jnp.swapaxes(lax.scan(step, (zeros, zeros), entering)[1], 0, 1)

        flops = 2.0 * batch * length * 4 * hidden * (width + hidden)
        args = [x, w_ih.reshape(-1), w_hh[None], bias[None]]
        return Lstm(hidden_size=hidden), natural, args, flops

    return make


def cumsum(dtype: Any) -> Any:
    def make() -> tuple[Any, Any, list[Any], float]:
        x = drawn(8192, 8192, dtype=dtype)
        return CumSum(axis=1), lambda x: jnp.cumsum(x, axis=1), [x], 2.0 * x.nbytes

    return make


def attention(batch: int, length: int, heads: int, kv: int, dim: int, causal: bool) -> Any:
    def make() -> tuple[Any, Any, list[Any], float]:
        args = [
            drawn(batch, length, h, dim, dtype=jnp.bfloat16, seed=i)
            for i, h in enumerate((heads, kv, kv))
        ]
        kind = MaskKind.CAUSAL if causal else MaskKind.NONE
        op = Attention(num_heads=heads, head_dim=dim, mask_kind=kind)

        def natural(q: Any, k: Any, v: Any) -> Any:
            return jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation="xla")

        flops = 4.0 * batch * heads * length * length * dim * (0.5 if causal else 1.0)
        return op, natural, args, flops

    return make


def top_k(rows: int, length: int) -> Any:
    def make() -> tuple[Any, Any, list[Any], float]:
        x = drawn(rows, length)
        return TopK(k=50, nan=TopNan.LARGEST), lambda x: lax.top_k(x, 50), [x], float(x.nbytes)

    return make


def scaled(layout: str, dynamic: bool) -> Any:
    """Codes of both sides given, or x in bf16 with scales that are found in the call."""

    def make() -> tuple[Any, Any, list[Any], float]:
        size = 8192
        x, w = drawn(size, size, dtype=jnp.bfloat16), drawn(size, size, seed=1) * 0.02
        codes = []
        for value in (x, w):
            axis = 1 if layout == "per_row" else None
            scale = jnp.max(jnp.abs(value), axis=axis, keepdims=True).astype(jnp.float32) / 448
            narrow = (value.astype(jnp.float32) / scale).astype(jnp.float8_e4m3fn)
            scale = scale if axis else scale.reshape(1)
            codes.append((jax.lax.bitcast_convert_type(narrow, jnp.uint8), scale))
        (x8, x_scale), (w8, w_scale) = codes
        product = ScaledMatmul(layout=layout)

        def ours(x: Any, w8: Any, w_scale: Any) -> Any:
            scale = ScaledQuantScale(layout=layout)(x)
            return product(ScaledQuantize(layout=layout)(x, scale), w8, scale, w_scale)

        natural = lambda x, w: (x @ w.T).astype(jnp.float32)  # noqa: E731
        dense = w.astype(jnp.bfloat16)
        flops = 2.0 * size**3
        if dynamic:
            return ours, lambda x, w8, w_scale: natural(x, dense), [x, w8, w_scale], flops
        args = [x8, w8, x_scale, w_scale]
        return product, lambda x8, w8, x_scale, w_scale: natural(x, dense), args, flops

    return make


def dequant(scheme: str, rows: int, size: int) -> Any:
    """A chain of products, so that no weight is still in the cache of the last call."""

    def make() -> tuple[Any, Any, list[Any], float]:
        made = QuantScheme.parse(scheme)
        shape = (64, size) if made.is_gguf else (size, size)
        rng = np.random.default_rng(0)
        if made.is_gguf:  # few encoded rows, repeated: the time does not depend on values
            some = quant.encode(made, rng.standard_normal(shape, np.float32) * size**-0.5)
            tensors = [np.tile(some, (size // 64, 1))]
            dense = np.tile(quant.decode(made, some), (size // 64, 1)).T
        else:
            tensors = quantized(made, shape, rng)
            dense = quant.unpack(made, *tensors, size=size)
            factor = np.float32(
                size**-0.5 / np.std(dense)
            )  # so that a chain neither grows nor ends
            scales = -1 if made.kind is SchemeKind.NVFP4 else 1
            tensors[scales] *= factor
            dense = dense * factor
        chain = 8

        def repeated(*arrays: Any) -> list[jax.Array]:
            """Each time in memory of its own."""
            held = [jnp.asarray(a) for a in arrays]
            return [a.copy() for _ in range(chain) for a in held]

        copies = repeated(*tensors)
        weights = repeated(jnp.asarray(dense).astype(jnp.bfloat16).T)
        x = drawn(rows, size, dtype=jnp.bfloat16)
        product = DequantMatmul(scheme=scheme)

        def ours(x: Any, *packed: Any) -> Any:
            each = len(packed) // chain
            for i in range(chain):
                x = product(x, *packed[each * i : each * (i + 1)])
            return x

        @jax.jit
        def natural(weights: list[Any], x: Any, *packed: Any) -> Any:
            del packed
            for weight in weights:
                x = x @ weight.T
            return x

        held = functools.partial(natural, weights)
        return ours, held, [x, *copies], float(sum(t.nbytes for t in copies))

    return make


CASES: dict[str, tuple[Callable[[], tuple[Any, Any, list[Any], float]], str]] = {
    "selective scan, B4 L2048 D1024 N16 f32": (selective_scan, "GB/s"),
    "gated delta scan, B4 L2048 H8 N128 f32": (gated_delta_net(jnp.float32), "GFLOP/s"),
    "gated delta scan, B4 L2048 H8 N128 bf16": (gated_delta_net(jnp.bfloat16), "GFLOP/s"),
    **{
        f"LSTM scan, B{batch} L512 H{hidden} f32": (lstm(batch, hidden), "GFLOP/s")
        for hidden, batches in ((256, (1, 16, 64, 128)), (384, (1, 16, 48)))
        for batch in batches
    },
    "cumsum, last axis of 8192² f32": (cumsum(jnp.float32), "GB/s"),
    "cumsum, last axis of 8192² bf16": (cumsum(jnp.bfloat16), "GB/s"),
    "attention, 4×4096×16×128 causal bf16": (attention(4, 4096, 16, 16, 128, True), "GFLOP/s"),
    "attention, 4×4096×32/8×128 causal bf16": (attention(4, 4096, 32, 8, 128, True), "GFLOP/s"),
    "attention, 8×1024×16×64 bf16": (attention(8, 1024, 16, 16, 64, False), "GFLOP/s"),
    **{
        f"8 products in a chain, {scheme}, {rows} × {size}² bf16 (against bf16 weights)": (
            dequant(scheme, rows, size),
            "GB/s packed",
        )
        for size in (8192, 4096)
        for scheme, rows in (
            *((f"gguf_{name}", 1) for name in ("q8_0", "q4_0", "q4k", "q6k")),
            ("gguf_q4k", 8),
            *((name, 1) for name in ("int8/8192", "int4/32", "int4/128", "fp8e4m3", "nvfp4/16")),
            ("int8/8192", 8),
        )
    },
    **{
        f"scaled_matmul f8e4m3 {layout}{how}, 8192³ (against bf16)": (
            scaled(layout, bool(how)),
            "GFLOP/s",
        )
        for layout in ("per_tensor", "per_row")
        for how in ("", ", x bf16 and quantised in the call")
    },
    "top_k, 50 of [64, 131072] f32": (top_k(64, 131_072), "GB/s"),
    "top_k, 50 of [8, 50257] f32": (top_k(8, 50_257), "GB/s"),
}


def compiled_op(op: Any, args: list[Any]) -> Any:
    """The op alone, compiled for the GPU."""
    b = rlx.GraphBuilder()
    leaves = [
        b.input(f"x{i}", rlx.TensorType(as_dtype(a.dtype), a.shape)) for i, a in enumerate(args)
    ]
    made = op(*leaves)
    graph = b.build(*(made if isinstance(made, tuple) else (made,)))
    return rlx.Session("cuda").compile(graph)


def main() -> None:
    """Print the table."""
    print(
        f"{jax.devices('cuda')[0].device_kind}, jax {jax.__version__}, rlx_xla {rlx_xla.__name__}"
    )
    for name, (make, unit) in CASES.items():
        if not all(word in name for word in sys.argv[1:]):
            continue
        op, natural, args, work = make()
        ours = compiled_op(op, args)
        kernels = sorted({choice.implementation for choice in ours.report().kernels})
        theirs = natural if isinstance(natural, functools.partial) else jax.jit(natural)
        wanted = jax.tree.leaves(theirs(*args))[0]
        found = jax.tree.leaves(ours(*args))[0]
        error = float(
            jnp.linalg.norm(jnp.ravel(found.astype(jnp.float32) - wanted.astype(jnp.float32)))
            / jnp.linalg.norm(jnp.ravel(wanted.astype(jnp.float32)))
        )
        calls = 3 if "scan" in name else 20
        mine = seconds(lambda c=ours, a=args: c(*a))
        other = seconds(lambda c=theirs, a=args: c(*a), calls=calls)
        again = seconds(lambda c=ours, a=args: c(*a))
        best = min(mine, again)
        print(
            f"| {name} | {best * 1e6:,.0f} µs | {other * 1e6:,.0f} µs | {other / best:.1f}× | "
            f"{work / best / 1e9:,.0f} {unit} | {error:.1e} | {', '.join(kernels) or 'none'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
