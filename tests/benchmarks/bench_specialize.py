"""Convolutions in many groups, written as shifted products, against ``jax.jit`` of the same.

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


def measure(shape: Shape, *, rounds: int = 21) -> Comparison:
    """Time the compiled trace, and two copies of ``jax.jit``."""
    function, arguments = shape.function(), shape.arguments()
    ours = rlx.Session("cpu").compile(rlx_xla.trace(function, *arguments))
    theirs = [jax.jit(lambda *args: function(*args)) for _ in range(2)]
    calls = [repeated(c, arguments) for c in (ours, *theirs)]
    return compare(str(shape), *calls, rounds=rounds)


@pytest.mark.parametrize("shape", [shape for (shape,) in CASES], ids=str)
def test_no_shape_loses(shape: Shape, judged: bool, rounds: int) -> None:
    result = measure(shape, rounds=rounds)
    print(result)
    assert not judged or result.not_slower


def main() -> None:
    """Print the table."""
    for (shape,) in CASES:
        print(measure(shape), flush=True)


if __name__ == "__main__":
    main()
