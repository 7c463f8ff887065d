"""What the attached NVIDIA GPU is, and whether its XLA takes a custom call of ours."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import numpy as np
from jax.errors import JaxRuntimeError

from rlx.errors import CompileError
from rlx_xla._jax_compat import client
from rlx_xla._jax_compat.mlir import ir, new_context, parse_module


@functools.cache
def compute_capability() -> str | None:
    """Such as ``"9.0"`` of the first attached CUDA device, or None where there is none."""
    try:
        device = jax.devices("cuda")[0]
    except RuntimeError:
        return None
    found = getattr(device, "compute_capability", None)
    return None if found is None else str(found)


def run_probe(target: str, configuration: Callable[[], str]) -> str | None:
    """Run a call that adds 1 to a number; say why it failed, or None.

    Args:
        target: the custom call, of API version 2.
        configuration: makes its ``backend_config``, inside an MLIR context.
    """
    context = new_context()
    with context, ir.Location.unknown():
        text = ir.StringAttr.get(configuration())
    module = parse_module(
        "module { func.func public @main(%x: tensor<f32>) -> tensor<f32> { "
        f"%y = stablehlo.custom_call @{target}(%x) "
        f"{{api_version = 2 : i32, backend_config = {text}}} : (tensor<f32>) -> tensor<f32> "
        "return %y : tensor<f32> } }",
        context,
    )
    device = jax.devices("cuda")[0]
    try:
        executable = client.compile_module(module, device, name="probe")
        (result,) = executable.execute([jax.device_put(np.float32(1.0), device)])
        found = float(np.asarray(result))
    except (CompileError, JaxRuntimeError) as error:
        return f"this XLA does not take the call {target}: {' '.join(str(error).split())[:300]}"
    return None if found == 2.0 else f"the call {target} gave {found} where 2.0 was due"
