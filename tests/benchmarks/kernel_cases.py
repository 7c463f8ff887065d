"""What the kernels are measured on: a JAX function in its natural form, and what else can do it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rlx
import rlx_xla
from rlx.dtypes import DType, as_dtype
from rlx.ops.quantized import DequantMatmul
from rlx.quant import QuantScheme, pack
from rlx.types import TensorType
from rlx_xla.kernels.library import matmul
from tests.benchmarks.onnx_rivals import OnnxNode

Run = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One program that a kernel carries out.

    Attributes:
        name: what is measured.
        kernel: the kernel that has to be chosen; None where XLA does it as well.
        function: the program, of ``args``.
        args: NumPy arrays.
        target: how many times faster than ``jax.jit`` it has to be on a quiet machine.
        best: the best form of the program for XLA, where that is not the natural one.
        rivals: other engines, name → a run on the same arrays.
        onnx: the program as a node of ONNX, where it is one.
        onnx_result: which of its results is the program's (first) one; axes may differ.
        flops: additions and multiplications, 0 where they are not what it takes time for.
    """

    name: str
    kernel: str | None
    function: Callable[..., Any]
    args: tuple[np.ndarray, ...]
    target: float
    best: Callable[..., Any] | None = None
    rivals: dict[str, Run] = field(default_factory=dict[str, Run])
    onnx: OnnxNode | None = None
    onnx_result: int = 0
    flops: float = 0


def _rivals(x: np.ndarray, **runs: Callable[[Any], Any]) -> dict[str, Run]:
    """NumPy's runs, and torch's where it is installed."""
    found: dict[str, Run] = {}
    if "numpy" in runs:
        found["numpy"] = lambda: runs["numpy"](x)
    if "torch" in runs and importlib.util.find_spec("torch"):
        torch: Any = importlib.import_module("torch")
        tensor = torch.from_numpy(x)
        found["torch"] = lambda: runs["torch"](tensor)
    return found


def cases(rng: np.random.Generator) -> Iterator[Case]:
    """Every case."""
    yield from _sorts(rng)
    yield from _scans(rng)
    yield from _selections(rng)
    yield from _products(rng)
    yield from _windows(rng)
    yield from _softmax(rng)


def _sorts(rng: np.random.Generator) -> Iterator[Case]:
    one = rng.normal(size=1 << 20).astype(np.float32)
    for name, x, axis, target in (
        ("one row of 1M", one, 0, 20),
        ("1,024 rows of 1,024", one.reshape(1024, 1024), 1, 10),
        ("1,024 columns of 1,024", one.reshape(1024, 1024), 0, 10),
        ("32,768 rows of 32", one.reshape(-1, 32), 1, 5),
    ):
        yield Case(
            name=f"sort f32, {name}",
            kernel="sort.cpu.ffi",
            function=lambda x, axis=axis: jnp.sort(x, axis=axis),
            args=(x,),
            target=target,
            rivals=_rivals(
                x,
                numpy=lambda x, axis=axis: np.sort(x, axis=axis),
                torch=lambda x, axis=axis: x.sort(dim=axis, stable=True),
            ),
            onnx=_sorted(x, axis),
        )
    whole = rng.integers(-(2**31), 2**31, 1 << 20).astype(np.int32)
    yield Case(
        name="sort i32, one row of 1M",
        kernel="sort.cpu.ffi",
        function=jnp.sort,
        args=(whole,),
        target=20,
        rivals=_rivals(whole, numpy=np.sort, torch=lambda x: x.sort(stable=True)),
    )
    for name, x in (("one row of 1M", one), ("1,024 rows of 1,024", one.reshape(1024, 1024))):
        yield Case(
            name=f"argsort f32, {name}",
            kernel="sort.cpu.ffi",
            function=jnp.argsort,
            args=(x,),
            target=20,
            # NumPy's own choice leaves the order of equal ones open, and is many times faster.
            rivals=_rivals(x, numpy=np.argsort, torch=lambda x: x.argsort(stable=True)),
            onnx=_sorted(x, x.ndim - 1),
            onnx_result=1,
        )
    yield Case(
        name="lexsort of two f32, 100k",
        kernel="sort.cpu.ffi",
        function=lambda a, b: jnp.lexsort((a, b)),
        args=(one[:100_000], np.round(one[100_000:200_000])),
        target=10,
    )


def _sorted(x: np.ndarray, axis: int) -> OnnxNode:
    return _greatest(x, x.shape[axis], axis, largest=0)


def _greatest(x: np.ndarray, k: int, axis: int, largest: int = 1) -> OnnxNode:
    attributes = {"axis": axis, "largest": largest}
    return OnnxNode(
        kind="TopK", inputs=[x], constants={1: np.array([k])}, results=2, attributes=attributes
    )


def _scans(rng: np.random.Generator) -> Iterator[Case]:
    x = rng.uniform(0.9, 1.1, (1024, 1024)).astype(np.float32)
    for name in ("cumsum", "cumprod", "cummax", "cumlogsumexp"):
        some = x[:256] if name == "cumlogsumexp" else x
        for axis in (0, 1):
            numpy: dict[str, Any] = {
                "cumsum": np.cumsum,
                "cumprod": np.cumprod,
                "cummax": np.maximum.accumulate,
                "cumlogsumexp": np.logaddexp.accumulate,
            }
            torch_name = {"cumlogsumexp": "logcumsumexp"}.get(name, name)
            yield Case(
                name=f"{name} f32 {list(some.shape)}, axis {axis}",
                kernel=f"{name}.cpu.ffi",
                function=lambda x, name=name, axis=axis: getattr(jax.lax, name)(x, axis=axis),
                args=(some,),
                target=10,
                rivals=_rivals(
                    some,
                    numpy=lambda x, f=numpy[name], axis=axis: f(x, axis=axis),
                    torch=lambda x, f=torch_name, axis=axis: getattr(x, f)(dim=axis),
                ),
                onnx=OnnxNode(kind="CumSum", inputs=[some], constants={1: np.array(axis)})
                if name == "cumsum"
                else None,
            )


def _selections(rng: np.random.Generator) -> Iterator[Case]:
    x = rng.normal(size=(8, 131_072)).astype(np.float32)
    for k in (1, 50, 1000):
        yield Case(
            name=f"top_k f32, {k} of 8 x 131,072",
            kernel="top_k.cpu.ffi",
            function=lambda x, k=k: jax.lax.top_k(x, k),
            args=(x,),
            target=8 if k <= 50 else 3,
            rivals=_rivals(x, torch=lambda x, k=k: x.topk(k)),
            onnx=_greatest(x, k, 1),
        )
    yield Case(
        name="top_k bf16, 50 of 8 x 131,072",
        kernel="top_k.cpu.ffi",
        function=lambda x: jax.lax.top_k(x, 50),
        args=(x.astype(DType.BF16.numpy),),
        target=100,
    )
    for shape, axis in (((4096, 1024), 1), ((1024, 1024), 0), ((64, 256, 64), 1)):
        square = x.reshape(-1)[: int(np.prod(shape))] if np.prod(shape) <= x.size else None
        data = rng.normal(size=shape).astype(np.float32) if square is None else square
        yield Case(
            name=f"argmax f32 {list(shape)}, axis {axis}",
            kernel="argmax.cpu.ffi",
            function=lambda x, axis=axis: jnp.argmax(x, axis=axis),
            args=(data.reshape(shape),),
            target=15,
            rivals=_rivals(
                data.reshape(shape),
                numpy=lambda x, axis=axis: np.argmax(x, axis=axis),
                torch=lambda x, axis=axis: x.argmax(dim=axis),
            ),
            onnx=OnnxNode(
                kind="ArgMax",
                inputs=[data.reshape(shape)],
                attributes={"axis": axis, "keepdims": 0},
            ),
        )


def _products(rng: np.random.Generator) -> Iterator[Case]:
    w = (rng.normal(size=(4096, 4096)) / 64).astype(np.float32)
    pairs = ((DType.BF16, 8),) if matmul.PAIRS else ()
    for dtype, rows in ((DType.BF16, 1), *pairs, (DType.F16, 1), (DType.F16, 8)):
        x = rng.normal(size=(rows, 4096)).astype(dtype.numpy)
        for turned in (False, True):
            yield Case(
                name=f"{dtype}, {rows} rows, x @ w{'.T' if turned else ''} 4096^2",
                kernel="dot_general.cpu.ffi",
                function=lambda x, w, turned=turned: x @ (w.T if turned else w),
                args=(x, w.astype(dtype.numpy)),
                target=18 if rows == 1 else 5,
                best=partial(_two_rows, axis=int(turned)) if rows == 1 else None,
                rivals=_products_of(x, w.astype(dtype.numpy), turned=turned),
                onnx=_product(x, w.astype(dtype.numpy), turned=turned),
                flops=2 * rows * w.size,
            )
    for size in (112, 128):
        yield Case(
            name=f"f32 {size}^3",
            kernel="dot_general.cpu.ffi",
            function=lambda x, w: x @ w,
            args=(w[:size, :size], w[size : 2 * size, :size]),
            target=1.5,
            rivals=_products_of(w[:size, :size], w[size : 2 * size, :size], turned=False),
            onnx=_product(w[:size, :size], w[size : 2 * size, :size], turned=False),
            flops=2 * size**3,
        )
    for shape, rows in (((512, 512), 1), ((1024, 1024), 1), ((1024, 1024), 2)):
        x, part = rng.normal(size=(rows, shape[1])).astype(np.float32), w[: shape[0], : shape[1]]
        yield Case(
            name=f"f32, {rows} rows, x @ w.T {list(shape)}",
            kernel="dot_general.cpu.ffi",
            function=lambda x, w: x @ w.T,
            args=(x, part),
            target=1.5,
            rivals=_products_of(x, part, turned=True),
            onnx=_product(x, part, turned=True),
            flops=2 * rows * part.size,
        )


def _product(x: np.ndarray, w: np.ndarray, *, turned: bool) -> OnnxNode:
    """The matrix is a constant, as in a model, and may be packed beforehand."""
    return OnnxNode(kind="MatMul", inputs=[x], constants={1: w.T if turned else w})


def _products_of(x: np.ndarray, w: np.ndarray, *, turned: bool) -> dict[str, Run]:
    """NumPy's product of f32, and torch's."""
    found: dict[str, Run] = {}
    matrix = w.T if turned else w
    if x.dtype == np.float32:
        found["numpy"] = lambda: x @ matrix
    if importlib.util.find_spec("torch"):
        torch: Any = importlib.import_module("torch")
        bits = {DType.BF16.numpy: torch.bfloat16, DType.F16.numpy: torch.float16}
        made = [torch.from_numpy(np.array(a, np.float32)) for a in (x, w)]
        left, right = (a.to(bits.get(x.dtype, torch.float32)) for a in made)
        found["torch"] = lambda: left @ (right.T if turned else right)
    return found


def _windows(rng: np.random.Generator) -> Iterator[Case]:
    """Convolutions and pools, channels last and first."""
    for name, shape, window, groups, target in (
        ("3x3 7^2 x 512", (1, 7, 7, 512), (3, 3, 512, 512), 1, 2),
        ("3x3 28^2 x 256 in 32 groups", (1, 28, 28, 256), (3, 3, 8, 256), 32, 2.5),
        ("3x3 32^2 x 3", (1, 32, 32, 3), (3, 3, 3, 16), 1, 3),
        ("1x1 7^2 x 2048", (1, 7, 7, 2048), (1, 1, 2048, 512), 1, 4),
        ("5x5 28^2 x 240 in 240 groups", (1, 28, 28, 240), (5, 5, 1, 240), 240, 20),
    ):
        for layout in ("NHWC", "NCHW"):
            last = layout == "NHWC"
            if last and window[0] == 1:
                continue  # XLA multiplies it as fast
            if not last and window[2] == 1:
                continue  # shifted products
            x = rng.normal(size=shape).astype(np.float32)
            w = rng.normal(size=window).astype(np.float32)
            yield Case(
                name=f"conv f32 {name}, {layout}",
                kernel="conv_general_dilated.cpu.ffi",
                function=partial(_convolved, layout=layout, groups=groups),
                args=(x, w) if last else _channels_first(x, w),
                target=target,
                rivals=_convolutions(*_channels_first(x, w), groups),
                onnx=OnnxNode(
                    kind="Conv",
                    inputs=[_channels_first(x, w)[0]],
                    constants={1: _channels_first(x, w)[1]},
                    attributes={"auto_pad": "SAME_UPPER", "group": groups},
                ),
                flops=2 * shape[1] * shape[2] * w.size,
            )
    for layout in ("NHWC", "NCHW"):
        x = rng.normal(size=(1, 112, 112, 64)).astype(np.float32)
        if layout == "NCHW":
            x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
        pool = partial(_max_pool, layout=layout)
        yield Case(
            name=f"max-pool f32 3x3/2 112^2 x 64, {layout}",
            kernel="reduce_window.cpu.ffi",
            function=pool,
            args=(x,),
            target=2,
            onnx=OnnxNode(
                kind="MaxPool",
                inputs=[x if layout == "NCHW" else np.ascontiguousarray(x.transpose(0, 3, 1, 2))],
                attributes={
                    "auto_pad": "SAME_UPPER",
                    "kernel_shape": [3, 3],
                    "strides": [2, 2],
                },
            ),
        )
        yield Case(
            name=f"max-pool and gradient f32 3x3/2 112^2 x 64, {layout}",
            kernel="select_and_scatter_add.cpu.ffi",
            function=jax.grad(lambda x, pool=pool: jnp.sum(pool(x) ** 2)),
            args=(x,),
            target=10 if layout == "NHWC" else 2,
        )


def _convolutions(x: np.ndarray, w: np.ndarray, groups: int) -> dict[str, Run]:
    """Torch's convolution, channels first."""
    if importlib.util.find_spec("torch") is None:
        return {}
    torch: Any = importlib.import_module("torch")
    image, kernel = torch.from_numpy(x), torch.from_numpy(w)
    convolve = torch.nn.functional.conv2d
    return {"torch": lambda: convolve(image, kernel, padding="same", groups=groups)}


def _softmax(rng: np.random.Generator) -> Iterator[Case]:
    x = rng.normal(size=(4096, 1024)).astype(np.float32)
    yield Case(
        name="softmax f32 [4096, 1024]",
        kernel=None,
        function=jax.nn.softmax,
        args=(x,),
        target=1,
        rivals=_rivals(x, torch=lambda x: x.softmax(-1)),
        onnx=OnnxNode(kind="Softmax", inputs=[x], attributes={"axis": -1}),
    )


def _convolved(x: jax.Array, w: jax.Array, layout: str, groups: int) -> jax.Array:
    numbers = (layout, "HWIO" if layout == "NHWC" else "OIHW", layout)
    return jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=groups
    )


def _channels_first(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    image, kernel = x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1)
    return np.ascontiguousarray(image), np.ascontiguousarray(kernel)


def _max_pool(x: jax.Array, layout: str) -> jax.Array:
    def placed(n: int) -> tuple[int, ...]:
        return (1, n, n, 1) if layout == "NHWC" else (1, 1, n, n)

    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, placed(3), placed(2), "SAME")


def _two_rows(x: jax.Array, w: jax.Array, axis: int) -> jax.Array:
    """XLA multiplies two rows of 16 bits without widening the matrix first."""
    two = jax.lax.optimization_barrier(jnp.concatenate([x, jnp.zeros_like(x)]))
    return jax.lax.dot_general(two, w, (((1,), (axis,)), ((), ())))[:1]


PACKED = ("int8/32", "int4/32", "gguf_q8_0", "gguf_q4_0", "gguf_q4_1", "gguf_q5_0", "gguf_q5_1",
          "gguf_q4k", "gguf_q5k", "gguf_q6k", "fp8e4m3", "nvfp4/16",
          "mlx_affine/4/64")  # fmt: skip
"""Schemes whose products are measured; their baseline is the same graph without the kernel."""


def packed_graph(
    name: str, rows: int, size: int, rng: np.random.Generator
) -> tuple[rlx.Graph, dict[str, np.ndarray], np.ndarray]:
    """A product with a packed matrix: its graph, params and input."""
    scheme = QuantScheme.parse(name)
    # One slice packed and repeated: what the numbers are does not matter here.
    part = min(size, 256)
    shape = (part, size) if scheme.is_rows else (size, part)
    parts = pack(scheme, rng.normal(size=shape).astype(np.float32))
    tensors = [t for t in parts if t is not None]
    if scheme.is_rows:
        tensors = [np.tile(t, (size // part, 1)) for t in tensors]
    else:
        # Flat codes have two columns a byte; one number for all stays one.
        flat = [t.reshape(-1, part // 2) if t.ndim == 1 and t.size > 1 else t for t in tensors]
        wide = [np.tile(t, (1, size // part)) if t.size > 1 else t for t in flat]
        tensors = [w.reshape(-1) if t.ndim == 1 else w for t, w in zip(tensors, wide, strict=True)]
    b = rlx.GraphBuilder("packed")
    names = ("weight", "scale", "zero")
    params: dict[str, np.ndarray] = dict(zip(names, tensors, strict=False))
    weights = [b.param(n, TensorType(as_dtype(t.dtype), t.shape)) for n, t in params.items()]
    x = rng.normal(size=(rows, size)).astype(np.float32)
    given = b.input("x", TensorType(DType.F32, x.shape))
    return b.build(DequantMatmul(scheme=name)(given, *weights)), params, x


def compiled(case: Case) -> tuple[Callable[..., Any], list[jax.Array]]:
    """Our program and its arguments on the device; the kernel is checked to be in it."""
    ours = rlx_xla.jit(case.function)
    args = [jnp.asarray(a) for a in case.args]
    jax.block_until_ready(ours(*args))
    chosen = [c.implementation for c in ours.report().kernels]
    assert case.kernel is None or case.kernel in chosen, f"{case.name}: {chosen}"
    return ours, args
