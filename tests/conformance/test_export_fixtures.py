"""The artifacts that jax ships to test its own promises import, and compute what XLA computes.

Custom calls that RLX does not know become external nodes. On the CPU those of other platforms
cannot run; where that is so, XLA's words are checked instead of numbers.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from jax._src.internal_test_util import export_back_compat_test_data as fixtures

import rlx
import rlx_xla
from rlx.dtypes import as_dtype
from rlx.errors import CompileError
from rlx_xla.tracing.stablehlo import source
from rlx_xla.tracing.stablehlo.opaque import LiveModule

NOT_HERE = (
    "No FFI handler registered for",
    "No registered implementation for untyped custom call to",
    "num_partitions",
    "different number of devices",
    "The shape doesn't match when replacing",
)
"""What XLA says of a custom call or a mesh that the CPU, one device, does not have."""

XLA_ITSELF = {"ApproxTopK"}
"""Custom calls that XLA expands on every platform; the fixtures do not list them."""

BOUND = 1e-5
"""Bound of the difference from what XLA computes from the artifact itself."""


def modules() -> list[str]:
    found = pkgutil.walk_packages(fixtures.__path__, fixtures.__name__ + ".")
    return [m.name for m in found if not m.ispkg]


def records_of(module: str) -> list[dict[str, Any]]:
    loaded = vars(importlib.import_module(module))
    return [r for k, v in loaded.items() if not k.startswith("__") for r in _records(v)]


def _records(found: Any) -> Iterator[dict[str, Any]]:
    if isinstance(found, dict):
        if "mlir_module_serialized" in found or "exported_serialized" in found:
            yield found
        else:
            for inner in found.values():
                yield from _records(inner)
    elif isinstance(found, list | tuple):
        for inner in found:
            yield from _records(inner)


def check(record: dict[str, Any]) -> str:
    """Import one record and run it; return ``equal``, or XLA's reason why it cannot run here."""
    data = bytes(record.get("mlir_module_serialized") or record["exported_serialized"])
    inputs = [np.asarray(x) for x in record.get("inputs", ())]
    found, shapes = source.read(data, None), None
    if "tensor<?" in found.text or "x?x" in found.text:
        shapes = [rlx.TensorType(as_dtype(x.dtype), x.shape) for x in inputs]
        found = source.read(data, shapes)
    targets = {*record.get("custom_call_targets", ()), *XLA_ITSELF}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="from_stablehlo: .* sharding")
        graph = rlx_xla.from_stablehlo(
            data, shapes=shapes, allow_custom_calls=targets, shardings=False
        )
    rlx.verify(graph)
    inputs = inputs or [np.ones(v.type.shape, v.type.dtype.numpy) for v in graph.inputs]
    feeds = dict(zip([v.name for v in graph.inputs], inputs, strict=True))
    try:
        outputs = rlx.Session("cpu").compile(graph).run(feeds)
    except CompileError as error:
        reasons = [words for words in NOT_HERE if words in str(error)]
        if reasons:
            return reasons[0]
        raise
    if record.get("platform") in ("cuda", "rocm"):
        wanted = record["expected_outputs"]  # a custom call that RLX knows and the CPU does not
    else:
        if found.platforms:
            here = found.platforms.index("cpu") if "cpu" in found.platforms else 0
            inputs = [np.int32(here), *inputs]
        types = tuple((v.type.dtype.numpy, v.type.shape) for v in graph.outputs)
        reference = LiveModule("reference", found.text, len(inputs), types, saved_for=())
        wanted = reference.evaluate(*inputs)
    for output, expected in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(output, expected, rtol=BOUND, atol=BOUND)
    return "equal"


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.rsplit(".", 1)[1])
def test_newest_record(module: str) -> None:
    print(module, check(records_of(module)[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("module", modules(), ids=lambda m: m.rsplit(".", 1)[1])
def test_every_record(module: str) -> None:
    for record in records_of(module):
        print(module, check(record))
