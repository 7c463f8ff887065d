"""Forms that Specialize and the lowering rules choose on CPUs, against ``jax.jit`` of the same.

Convolutions in many groups with kernels on, as they come; everything else with kernels off, so
that a form is measured and not the kernel that is there for many of them.

Run with ``python -m tests.benchmarks.bench_specialize`` for the table, or with pytest to check
that no shape loses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rlx
import rlx_xla
from tests.benchmarks.bench_host_overhead import repeated
from tests.benchmarks.timing import Comparison, compare


@dataclass(frozen=True)
class Shape:
    """One convolution: ``size`` × ``size`` places of ``channels``, ``layout`` of the images."""

    layout: str
    size: int
    channels: int
    kernel: int = 3
    stride: int = 1
    groups: int = 0
    batch: int = 1
    dtype: str = "float32"
    gradient: bool = False

    def __str__(self) -> str:
        kind = "depthwise" if not self.groups else f"{self.groups} groups"
        what = f"gradients of {kind}" if self.gradient else kind
        return (
            f"{what} {self.kernel}×{self.kernel} /{self.stride}, {self.layout} {self.batch} × "
            f"{self.size}² × {self.channels}, {self.dtype}"
        )

    def function(self) -> Callable[..., Any]:
        """The convolution, or its gradients."""

        def conv(x: Any, w: Any) -> Any:
            return lax.conv_general_dilated(
                x,
                w,
                (self.stride, self.stride),
                [(self.kernel // 2, self.kernel // 2)] * 2,
                dimension_numbers=(self.layout, "HWIO", self.layout),
                feature_group_count=self.groups or self.channels,
            )

        if not self.gradient:
            return conv
        return jax.grad(lambda x, w: (conv(x, w) ** 2).sum(), argnums=(0, 1))

    def arguments(self) -> tuple[jax.Array, jax.Array]:
        """Image and kernel."""
        rng = np.random.default_rng(0)
        space, features = (self.size, self.size), self.channels // (self.groups or self.channels)
        image = (*space, self.channels) if self.layout == "NHWC" else (self.channels, *space)
        return (
            jnp.asarray(rng.standard_normal((self.batch, *image)), self.dtype),
            jnp.asarray(
                rng.standard_normal((self.kernel, self.kernel, features, self.channels)),
                self.dtype,
            ),
        )


CASES = [
    (Shape("NHWC", 56, 144),),
    (Shape("NCHW", 56, 144),),
    (Shape("NHWC", 112, 32, stride=2),),
    (Shape("NHWC", 14, 512),),
    (Shape("NHWC", 7, 960, kernel=5),),
    (Shape("NHWC", 56, 96, kernel=7),),
    (Shape("NHWC", 56, 144, dtype="bfloat16"),),
    (Shape("NHWC", 8, 3),),
    (Shape("NHWC", 56, 64, groups=16),),
    (Shape("NHWC", 28, 96, stride=2, batch=8, gradient=True),),
    (Shape("NHWC", 28, 96, batch=2, gradient=True),),
]


@dataclass(frozen=True)
class Form:
    """One op or short program, and what it is called with: shapes, with a dtype each."""

    name: str
    call: Callable[..., Any]
    operands: tuple[tuple[str, tuple[int, ...]], ...]

    def __str__(self) -> str:
        return self.name

    def function(self) -> Callable[..., Any]:
        """The program."""
        return self.call

    def arguments(self) -> tuple[jax.Array, ...]:
        """Normal floats, and bytes of every value."""
        rng = np.random.default_rng(0)
        return tuple(
            jnp.asarray(rng.integers(-128, 128, shape), dtype)
            if dtype == "int8"
            else jnp.asarray(rng.standard_normal(shape), dtype)
            for dtype, shape in self.operands
        )


def _stacked(xs: jax.Array) -> jax.Array:
    def step(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        carry = carry * 0.5 + x
        return carry, carry

    return lax.scan(step, jnp.zeros_like(xs[0]), xs)[1]


def _bytes_product(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.matmul(x, w, preferred_element_type=jnp.int32)


def _decode(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v)


_MILLION = ("float32", (1024, 1024))
_WIDE = ("bfloat16", (512, 2048))
FORMS = [
    Form("sin, 2²⁰ f32", jnp.sin, (_MILLION,)),
    Form("cos, 2²⁰ f32", jnp.cos, (_MILLION,)),
    Form("tan, 2²⁰ f32", jnp.tan, (_MILLION,)),
    Form("arctan2, 2²⁰ f32", jnp.arctan2, (_MILLION, _MILLION)),
    Form("x % y, 2²⁰ f32", jnp.remainder, (_MILLION, _MILLION)),
    Form("cumsum, first axis of 1024² f32", lambda x: jnp.cumsum(x, 0), (_MILLION,)),
    Form("cumsum, last axis of 1024² f32", lambda x: jnp.cumsum(x, 1), (_MILLION,)),
    Form(
        "cumlogsumexp, [64, 256] f32", lambda x: lax.cumlogsumexp(x, 1), (("float32", (64, 256)),)
    ),
    Form("argmax of 8 × 131072 f32", lambda x: x.argmax(-1), (("float32", (8, 131072)),)),
    Form("rows stacked by a scan, 64 × 512 bf16", _stacked, (("bfloat16", (64, 512)),)),
    Form(
        "x @ w, 1 × 1024 × 4096 bf16",
        jnp.matmul,
        (("bfloat16", (1, 1024)), ("bfloat16", (1024, 4096))),
    ),
    Form(
        "x @ w.T, 1 × 1024 × 4096 bf16",
        lambda x, w: x @ w.T,
        (("bfloat16", (1, 1024)), ("bfloat16", (4096, 1024))),
    ),
    Form(
        "x @ w.T, 1 × 4096 × 1024 bf16",
        lambda x, w: x @ w.T,
        (("bfloat16", (1, 4096)), ("bfloat16", (1024, 4096))),
    ),
    Form(
        "x @ w.T, 1 × 2048 × 2048 f32",
        lambda x, w: x @ w.T,
        (("float32", (1, 2048)), ("float32", (2048, 2048))),
    ),
    Form(
        "x @ w, 1 × 1024 × 4096 int8", _bytes_product, (("int8", (1, 1024)), ("int8", (1024, 4096)))
    ),
    Form("x @ w, 512³ bf16", jnp.matmul, (("bfloat16", (512, 512)),) * 2),
    Form("gelu, 2²⁰ bf16", jax.nn.gelu, (_WIDE,)),
    Form("silu, 2²⁰ bf16", jax.nn.silu, (_WIDE,)),
    Form("attention, prefill of 256, f32", _decode, (("float32", (1, 256, 8, 64)),) * 3),
    Form(
        "attention, one query of 2048 keys, f32",
        _decode,
        (("float32", (1, 1, 8, 64)), *(("float32", (1, 2048, 8, 64)),) * 2),
    ),
]
"""Forms that need no kernel."""

COMMON = rlx.CompileOptions(
    kernel_dispatch=rlx.KernelDispatch(policy=rlx.KernelPolicy.FORCE_COMMON)
)


def measure(shape: Shape | Form, *, rounds: int = 21) -> Comparison:
    """Time the compiled trace, and two copies of ``jax.jit``."""
    function, arguments = shape.function(), shape.arguments()
    options = COMMON if isinstance(shape, Form) else rlx.CompileOptions()
    ours = rlx.Session("cpu").compile(rlx_xla.trace(function, *arguments), options=options)
    theirs = [jax.jit(lambda *args: function(*args)) for _ in range(2)]
    calls = [repeated(c, arguments) for c in (ours, *theirs)]
    return compare(str(shape), *calls, rounds=rounds)


@pytest.mark.parametrize("shape", [shape for (shape,) in CASES], ids=str)
def test_no_shape_loses(shape: Shape, judged: bool, rounds: int) -> None:
    result = measure(shape, rounds=rounds)
    print(result)
    assert not judged or result.not_slower


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_no_form_loses(form: Form, judged: bool, rounds: int) -> None:
    result = measure(form, rounds=rounds)
    print(result)
    assert not judged or result.not_slower


def main() -> None:
    """Print the table."""
    for shape in [*(shape for (shape,) in CASES), *FORMS]:
        print(measure(shape), flush=True)


if __name__ == "__main__":
    main()
