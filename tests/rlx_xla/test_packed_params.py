"""Values of packed weights: what is refused says the scheme, and the way that it names works."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.errors import RunError
from rlx.packed_params import packed_params

K, N = 256, 24
HOW = "rlx.quant.pack(rlx.quant.QuantScheme.parse({!r}), numbers)"


def weights(*lead: int) -> np.ndarray:
    return np.random.default_rng().standard_normal((*lead, K, N), np.float32)


def product(w: Any, x: Any) -> Any:
    return x @ w


def packed(scheme: str, w: np.ndarray) -> Any:
    traced = rlx_xla.trace(product, jnp.asarray(w), f"f32[2, {K}]", params=0)
    return rlx_xla.quantize(traced, scheme)


GGUF = (
    "It holds a weight packed as gguf_q8_0: give the packed array, or pack numbers f32[N, K] = "
    f"[{N}, {K}]: {HOW.format('gguf_q8_0')}[0]."
)
INT4 = (
    "It holds the codes of a weight packed as int4/32: give the packed array, or pack numbers "
    f"f32[K, N] = [{K}, {N}]: codes, scale, zero = {HOW.format('int4/32')}, and set 'w/codes', "
    "'w/scale', 'w/zero' together."
)


def test_values_of_another_form_name_the_scheme() -> None:
    compiled = rlx.Session("cpu").compile(packed("q8_0", weights()))
    wrong = {
        f"f32[{K}, {N}]": weights(),
        f"f32[{N}, {K}]": np.ascontiguousarray(weights().T),
        "None": None,
        f"i32[{N}, 272]": np.zeros((N, 272), np.int32),
        "u8[2]": [1, 2],
    }
    for found, value in wrong.items():
        with pytest.raises(RunError) as caught:
            compiled.set_param("w/codes", value)
        assert str(caught.value) == (
            f"set_param: param 'w/codes' is required to be u8[{N}, 272]; got {found}. {GGUF}"
        )
    with pytest.raises(RunError) as caught:
        compiled.set_param("w", weights())
    assert str(caught.value) == (
        f"set_param: unknown param 'w'; params are 'w/codes': u8[{N}, 272]. 'w' became 'w/codes'. "
        f"{GGUF}"
    )
    with pytest.raises(RunError) as caught:
        compiled.set_param_typed("w/codes", bytes(12), "u8")
    assert str(caught.value) == (
        f"set_param_typed: param 'w/codes' is required to be u8[{N}, 272], {N * 272} elements of "
        f"u8 in {N * 272} bytes; got 12 bytes. {GGUF}"
    )


def test_weights_in_parts_are_set_together() -> None:
    compiled = rlx.Session("cpu").compile(packed("int4", weights()))
    with pytest.raises(RunError, match=re.escape(INT4)):
        compiled.set_param("w/codes", weights())
    with pytest.raises(RunError, match="It holds the zero of a weight packed as int4/32: give "):
        compiled.set_param("w/zero", 0.5 + np.zeros(3, np.float32))


@pytest.mark.parametrize(
    "scheme", ["q8_0", "q4_k", "int8", "int4", "fp8_e4m3", "nvfp4", "mxfp4", "mxfp8"]
)
def test_the_way_that_is_named_gives_what_quantize_gives(scheme: str) -> None:
    compiled = rlx.Session("cpu").compile(packed(scheme, weights()))
    new, x = weights(), np.random.default_rng().random((2, K), np.float32)
    with pytest.raises(RunError) as caught:
        compiled.set_param("w/codes", new)
    text = str(caught.value)
    layout, call = re.findall(r"numbers f32(\[\w, \w\]) = \[\d+, \d+\]: (.*)\.$", text)[0]
    call, _, together = call.partition(", and set ")
    named: dict[str, Any] = {"rlx": rlx, "numbers": new if layout == "[K, N]" else new.T.copy()}
    if together:
        exec(call, named)
        parts = re.findall(r"'w/(\w+)'", together)
        compiled.set_params({f"w/{part}": named[part] for part in parts})
    else:
        compiled.set_param("w/codes", eval(call, named))
    wanted = rlx.Session("cpu").compile(packed(scheme, new))(x)
    np.testing.assert_array_equal(compiled(x), wanted)


def test_parts_in_loops_are_found() -> None:
    def layers(w: Any, x: Any) -> Any:
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]

    square = np.random.default_rng().standard_normal((3, K, K), np.float32)
    traced = rlx_xla.trace(layers, jnp.asarray(square), f"f32[2, {K}]", params=0)
    found = packed_params(rlx_xla.quantize(traced, "q8_0").graph)
    assert list(found) == ["w/codes"]
    assert "(one matrix at a time, 3 of them, stacked)" in found["w/codes"].advice()
    plain = rlx.Session("cpu").compile(traced)
    with pytest.raises(RunError, match=r"got f32\[2\]\. Reshape or transpose it\.$"):
        plain.set_param("w", np.zeros(2, np.float32))
