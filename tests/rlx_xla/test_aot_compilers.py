"""Real compilers of absent devices; skipped where they are not installed."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import pytest

import rlx
import rlx_xla
from rlx.ops.quantized import ScaledMatmul
from rlx_xla.aot import Bound, FailureKind, parse_target
from rlx_xla.aot.compiling import compile_each, missing

pytestmark = pytest.mark.skipif(
    missing(parse_target("v5e-1")) is not None, reason="libtpu is not installed"
)
F32 = jnp.float32


def _mlp(w1: jax.Array, w2: jax.Array, x: jax.Array) -> jax.Array:
    return jax.nn.softmax(jax.nn.gelu(x @ w1) @ w2)


def _struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, F32)


@pytest.mark.parametrize("target", ["tpu:v5e:1x1", "tpu:v6e:1x1", "tpu:tpu7x:1x1x1"])
def test_a_program_fits_and_is_costed(target: str) -> None:
    shapes = (_struct(512, 2048), _struct(2048, 512), _struct(256, 512))
    report = rlx_xla.preflight(_mlp, *shapes, target=target)
    assert report.ok, str(report)
    assert report.fits
    assert 0 < report.needed < report.available
    assert report.memory["argument"] == 4 * (512 * 2048 * 2 + 256 * 512)
    assert report.flops >= 2 * 2 * 256 * 512 * 2048
    assert report.cycles
    assert report.seconds
    assert report.bound in tuple(Bound)
    assert any(dict(fused.ops).keys() > {"exponential"} for fused in report.fused)
    assert "  fused:" in str(report)
    assert [named.what for named in report.precision] == ["dot_general × 2"]
    assert "test_aot_compilers.py" in report.precision[0].where


def test_an_option_keeps_the_precision() -> None:
    options = rlx.CompileOptions(matmul_precision="highest")
    report = rlx_xla.preflight(
        lambda a, b: a @ b, _struct(64, 64), _struct(64, 64), target="v5e-1", options=options
    )
    assert report.ok
    assert not report.precision


def test_k3_too_large_is_an_answer() -> None:
    shape = _struct(70_000, 70_000)
    report = rlx_xla.preflight(lambda a, b: a @ b, shape, shape, target="v5e-1")
    assert report.failure is not None
    assert report.failure.kind is FailureKind.OUT_OF_MEMORY
    assert report.fits is False
    assert report.needed > report.available == int(15.75 * 2**30)
    assert report.largest[0].nbytes == 4 * 70_000**2
    assert "39.02 GiB too much" in str(report)


def test_k3_two_at_once() -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        made = [
            pool.submit(rlx_xla.preflight, lambda x: jnp.sin(x).sum(), "f32[128]", target="v5e-1")
            for _ in range(2)
        ]
        assert all(report.result().ok for report in made)


def test_k3_what_a_tpu_lacks_is_named_with_its_line() -> None:
    report = rlx_xla.preflight(jnp.linalg.eigvals, _struct(8, 8), target="v5e-1")
    assert [named.what for named in report.unsupported] == ["eig"]
    assert report.failure is None


def test_many_modules_share_a_process_and_one_that_is_refused_stops_none() -> None:
    good = rlx_xla.stablehlo(rlx_xla.trace(lambda x: x + 1, "f32[8]"), "tpu")
    first, second, third = compile_each([good, "module {", good], parse_target("v5e-1"), keep=False)
    assert first.failure is third.failure is None
    assert first.seconds > 0
    assert second.failure is not None
    assert second.failure.kind is FailureKind.REFUSED


def test_a_slow_compiler_is_stopped() -> None:
    started = time.monotonic()
    report = rlx_xla.preflight(lambda x: x + 1, "f32[3]", target="v5e-1", timeout=0.2)
    assert time.monotonic() - started < 30
    assert report.failure is not None
    assert report.failure.kind is FailureKind.TIMED_OUT


def test_an_artifact_holds_the_program() -> None:
    artifact = rlx_xla.aot(lambda x: jnp.tanh(x).sum(), "f32[128]", target="tpu:v6e")
    assert artifact.serialized
    assert "HloModule" in artifact.hlo
    assert [name for name, _ in artifact.inputs] == ["x"]
    assert str(artifact.outputs[0]) == "f32[]"


def test_k3_a_process_without_tpu_settings_does_not_wait() -> None:
    code = (
        "import rlx_xla, time; t = time.time(); "
        "r = rlx_xla.preflight(lambda x: x * 2, 'f32[8]', target='v5e-1'); "
        "assert r.ok, r; print('ok')"
    )
    ours = ("TPU_", "JAX_", "ALLOW_MULTIPLE_LIBTPU_LOAD")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert done.stdout.strip() == "ok", done.stderr[-2000:]


@pytest.mark.skipif(
    missing(parse_target("cuda:h200")) is not None, reason="the CUDA plugin is not installed"
)
@pytest.mark.parametrize(("layout", "scale"), [("per_tensor", "f32[1]"), ("per_row", "f32[64, 1]")])
def test_scaled_products_of_8_bit_floats_take_their_units(layout: str, scale: str) -> None:
    b = rlx.GraphBuilder()
    leaves = [b.input(n, "u8[64, 128]") for n in "xw"] + [b.input(n, scale) for n in "st"]
    program = rlx_xla.aot(b.build(ScaledMatmul(layout=layout)(*leaves)), target="cuda:h200").hlo
    assert program.count("__cublas$lt$matmul$f8") == 1
    # One scale for each operand is the library call's; those of rows are multiplied afterwards.
    assert ("multiply(" in program) == (layout == "per_row")
