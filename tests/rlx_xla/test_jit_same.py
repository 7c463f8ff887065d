"""``rlx_xla.jit`` gives what ``jax.jit`` gives, and raises what it raises."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import rlx
import rlx_xla
from rlx.errors import CompileError, RunError, TraceError, also
from tests.rlx_xla.jit_cases import SAME, TIED, X, Y, caches_cleared, f


def told(value: Any) -> Any:
    """All that can be seen of a result."""
    if isinstance(value, jax.core.Tracer):
        return "a tracer"
    if isinstance(value, jax.Array):
        kind, raw = str(value.dtype), value
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            raw = jax.random.key_data(value)
        return kind, value.weak_type, value.committed, np.asarray(raw)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return told(vars(value))
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(told, value)]
    if isinstance(value, dict):
        return [type(value).__name__, *(told(pair) for pair in value.items())]
    return value


def outcome(case: Callable[[Any], Any], jit: Any) -> Any:
    """What came of it: (what is told, None) or (None, the error)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return told(case(jit)), None
        except Exception as error:
            return None, error


def check_same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, np.ndarray):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            check_same(one, other)
    else:
        assert found == wanted


@pytest.mark.parametrize("name", SAME)
def test_same_as_jax(name: str) -> None:
    wanted, expected = outcome(SAME[name], jax.jit)
    found, error = outcome(SAME[name], rlx_xla.jit)
    if expected is None:
        if error is not None:
            raise error
        check_same(found, wanted)
    else:
        assert isinstance(error, type(expected)), repr(error)


@pytest.mark.slow  # what runs afterwards in this process compiles anew
def test_cleared_caches() -> None:
    check_same(told(caches_cleared(rlx_xla.jit)), told(caches_cleared(jax.jit)))


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "abstracted_axes": (
        lambda: rlx_xla.jit(f, abstracted_axes=("n",)),
        TypeError,
        "jit of 'f': parameters of jax.jit 0.10 are required; got abstracted_axes, which JAX has "
        "no more. Name sizes that vary in dims, as in dims=('f32[n, 3]', None).",
    ),
    "device and backend": (
        lambda: rlx_xla.jit(f, device="cpu", backend="cpu"),
        ValueError,
        "jit of 'f': device or backend is required, not both; got device='cpu' and backend='cpu'. "
        "Leave out backend.",
    ),
    "backend and shardings": (
        lambda: rlx_xla.jit(f, backend="cpu", out_shardings=X.sharding),
        ValueError,
        "jit of 'f': a device or shardings are required, not both; got backend and out_shardings. "
        "Say the device in the sharding.",
    ),
    "params and shardings": (
        lambda: rlx_xla.jit(f, params=0, in_shardings=X.sharding),
        TraceError,
        "jit of 'f': with in_shardings every argument is required to come with its call, since JAX "
        "places it; got params too. Leave one of the two out.",
    ),
    "no function": (
        lambda: rlx_xla.jit(3),  # pyright: ignore[reportCallIssue, reportArgumentType]
        TypeError,
        "jit: a function that returns its results is required; got 3. Pass the function itself, "
        "and options by keyword.",
    ),
    "a ufunc": (
        lambda: rlx_xla.jit(np.sin),
        TypeError,
        "jit: a function that can be referred to weakly is required; got <ufunc 'sin'> of type "
        "ufunc. Wrap it: lambda *args: fn(*args).",
    ),
    "a ufunc is traced": (
        lambda: rlx_xla.trace(np.sin, X),
        TypeError,
        "trace: a function that can be referred to weakly is required; got <ufunc 'sin'> of type "
        "ufunc. Wrap it: lambda *args: fn(*args).",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_are_refused(name: str) -> None:
    call, kind, text = REFUSED[name]
    for _ in range(2):  # jaxlib 0.10 ends the process at the second ufunc
        with pytest.raises(kind) as caught:
            call()
        assert isinstance(caught.value, TraceError)
        assert str(caught.value) == text


def test_errors_are_caught_under_both_names_and_can_be_sent() -> None:
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        rlx_xla.jit(lambda x: x if x[0] > 0 else -x)(X)
    error = caught.value
    assert isinstance(error, TraceError)
    assert type(error).__name__ == "TraceError"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert str(error).startswith("trace of '<lambda>' at ")
    assert also(TraceError, jax.errors.TracerBoolConversionError) is type(error)
    assert also(RunError, ValueError) is RunError
    with pytest.raises(jax.errors.JaxRuntimeError) as refused:
        rlx_xla.jit(f, compiler_options={"xla_no_such": True})(X)
    assert isinstance(refused.value, CompileError)


def test_a_donation_in_vain_says_why() -> None:
    with pytest.warns(UserWarning, match="not usable") as caught:
        rlx_xla.jit(lambda x: x[:2] * 2, donate_argnums=0)(X + 0)
    assert str(caught[0].message) == (
        "Some donated buffers were not usable: x: f32[4]. jit of '<lambda>': each is required to "
        "have the type of a result of its own; the results are f32[2]. Leave out donate_argnums "
        "for them."
    )


@rlx_xla.jit
def at_home(x: Any) -> Any:
    return x * 2


def test_a_function_goes_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(at_home)) is at_home
    assert copy.deepcopy(at_home) is not None
    placed = rlx_xla.jit(f, device=jax.devices()[0], static_argnames="y")
    twin = pickle.loads(pickle.dumps(placed))
    assert twin is not placed
    np.testing.assert_array_equal(twin(X, y=3.0), placed(X, y=3.0))
    assert twin(X, y=3.0).committed


def test_a_closure_goes_by_value() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    factor = float(np.random.default_rng().normal())
    fast = rlx_xla.jit(lambda x, n: x * n * factor, static_argnums=1)
    fast(X, 2)
    twin = pickle.loads(cloudpickle.dumps(fast))
    np.testing.assert_allclose(twin(X, 3), X * 3 * factor, rtol=1e-6)


def test_flags_reach_the_compile() -> None:
    options = rlx.CompileOptions(compiler_options={"xla_cpu_enable_fast_math": False})
    fast = rlx_xla.jit(
        f, options=options, compiler_options={"xla_llvm_disable_expensive_passes": True}
    )
    np.testing.assert_allclose(fast(X, Y), f(X, Y), rtol=1e-6)
    with pytest.raises(CompileError, match="xla_no_such"):
        rlx_xla.jit(f, compiler_options={"xla_no_such": 1})(X)


def test_params_and_dims_count_and_tie() -> None:
    named = rlx_xla.jit(lambda x: (x * 2).sum(), dims=("f32[n]",))
    for n in (3, 4, 3):
        named(jnp.ones(n))
    assert named._cache_size() == 2
    kept = rlx_xla.jit(lambda p, x: p * x, params=0)
    assert not kept(X, Y).committed
    assert kept(X, TIED).committed
    assert not kept(X, np.asarray(Y)).committed
    assert kept(TIED, Y).committed
    assert not kept(X, Y).committed


def over_one_device(jit: Any, kind: Any, spec: Any, *, inside: bool) -> list[Any]:
    """Shardings of what functions give for an array over a mesh of one device."""
    mesh = jax.make_mesh((1, 1), ("i", "j"), axis_types=(kind, kind))
    x = jax.device_put(jnp.ones((4, 2)), NamedSharding(mesh, spec))
    found: list[Any] = []
    with jax.set_mesh(mesh) if inside else contextlib.nullcontext():
        for fn in (
            lambda x: (jnp.sin(x), x, x.T, x.sum(0), jnp.ones(3)),
            jax.vmap(jit(jnp.cos)),
            jax.grad(lambda x: jit(jnp.tanh)(x).sum()),
        ):
            for result in jax.tree.leaves(jit(fn)(x)):
                at = result.sharding
                found.append((type(at).__name__, at.spec, at.mesh, str(jax.typeof(result))))
    return found


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("spec", [P("i"), P(None, "i")])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_shardings_over_one_device(kind: Any, spec: Any, inside: bool) -> None:
    wanted = over_one_device(jax.jit, kind, spec, inside=inside)
    assert over_one_device(rlx_xla.jit, kind, spec, inside=inside) == wanted
