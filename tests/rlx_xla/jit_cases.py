"""What people do with ``jax.jit``: each case takes it, or ours, and gives what came of it."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import gc
import inspect
import io
import logging
import math
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import checkify, io_callback, jet, sparse
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from rlx_xla._jax_compat.jaxpr import enable_x64

RNG = np.random.default_rng()
X = jnp.asarray(RNG.standard_normal(4), jnp.float32)
Y = jnp.asarray(RNG.standard_normal(4), jnp.float32)
DEVICE = jax.devices()[0]
HERE = SingleDeviceSharding(DEVICE)
TIED = jax.device_put(X, DEVICE)
Jit = Any


def f(x: Any, y: Any = 2.0) -> Any:
    return jnp.sin(x) * y


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:1]), ("i",))


def new_ref(value: Any) -> Any:
    return (getattr(jax, "new_ref", None) or vars(jax.experimental)["mutable_array"])(value)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Pair:
    a: Any
    n: int = dataclasses.field(default=2, metadata={"static": True})


class Model:
    def __init__(self, scale: float, jit: Jit) -> None:
        self.scale = scale
        self.own = functools.partial(jit, static_argnums=0)(type(self).run)

    def run(self, x: Any) -> Any:
        return x * self.scale

    def __call__(self, x: Any) -> Any:
        return x + self.scale


class Number(enum.IntEnum):
    THREE = 3


class Whole(int):
    pass


def raised(error: Exception) -> Callable[..., Any]:
    def fn(x: Any) -> Any:
        raise error

    return fn


def with_warnings(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a call gives and what it warns of, as far as the first colon."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = call()
    mine = [w for w in caught if w.category is UserWarning]
    return found, [str(w.message).partition(":")[0] for w in mine]


def counted(jit: Jit, *calls: tuple[Any, ...], **options: Any) -> Any:
    """How many traces calls take, and how many programs are kept."""
    traces: list[int] = []

    def fn(x: Any, *more: Any) -> Any:
        traces.append(1)
        return x * 2

    jitted = jit(fn, **options)
    sizes = [jitted._cache_size()]
    for args in calls:
        jitted(*args)
        sizes.append(jitted._cache_size())
    jitted.clear_cache()
    return len(traces), sizes, jitted._cache_size()


def logged(jit: Jit) -> Any:
    def named_function(x: Any) -> Any:
        return x * 2

    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logging.getLogger("jax").addHandler(handler)
    try:
        with jax.log_compiles(True):
            jit(named_function)(X)
    finally:
        logging.getLogger("jax").removeHandler(handler)
    lines = text.getvalue().splitlines()
    starts = ("Compiling", "Finished tracing", "Finished XLA compilation")
    return [any(line.startswith(s) and "named_function" in line for line in lines) for s in starts]


def printed(jit: Jit, fn: Callable[..., Any], *args: Any) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        jit(fn)(*args)
        jax.effects_barrier()
    return text.getvalue()


def seen_by_callbacks(jit: Jit) -> Any:
    seen: list[float] = []

    def step(i: Any, c: Any) -> Any:
        io_callback(lambda v: seen.append(float(v)), None, i + c[0], ordered=True)
        return c + 1

    found = jit(lambda x: jax.lax.fori_loop(0, 3, step, x))(jnp.ones(2))
    jax.effects_barrier()
    return found, seen


def leaked(jit: Jit, later: Callable[[Any], Any]) -> Any:
    kept: list[Any] = []

    def fn(x: Any) -> Any:
        kept.append(x * 1)
        return x

    jit(fn)(X)
    return later(kept[0])


def captured_ref(jit: Jit) -> Any:
    ref = new_ref(jnp.zeros(4))

    def fn(x: Any) -> Any:
        ref[...] += x
        return x

    jitted = jit(fn)
    return jitted(X), jitted(X), ref[...]


def in_threads(jit: Jit) -> list[Any]:
    fast = jit(f)
    found: list[Any] = [None] * 8

    def work(i: int) -> None:
        found[i] = fast(X * i, Y)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def caches_cleared(jit: Jit) -> Any:
    factor = [2.0]
    fast = jit(lambda x: x * factor[0])
    before = fast(X), fast(X), fast._cache_size()
    factor[0] = 3.0
    jax.clear_caches()
    return before, fast._cache_size(), fast(X)


def each(fn: Callable[..., Any], *calls: tuple[tuple[Any, ...], dict[str, Any]]) -> list[Any]:
    return [fn(*args, **kwargs) for args, kwargs in calls]


ARGUMENTS: dict[str, tuple[Any, Any]] = {
    "flat": (-1 - X**2, Y),
    "tree": ({"a": X}, Y),
    "numbers": (np.ones(4, np.float32), 2.0),
}

SETTINGS: dict[str, Callable[[], Any]] = {
    "jit is off": jax.disable_jit,
    "wide": lambda: enable_x64(True),
    "NaNs are looked for": lambda: jax.debug_nans(True),
    "a mesh": lambda: jax.set_mesh(jax.make_mesh((1,), ("i",))),
    "nothing runs": lambda: jax.no_execution(True),
    "transfers are refused": lambda: jax.transfer_guard("disallow"),
}


def between(jit: Jit, args: Any, setting: str) -> list[Any]:
    """Calls before, in and after a setting; the first ones are remembered."""
    fast = jit(lambda x, y: jnp.log(x["a"] if isinstance(x, dict) else x) * y)
    found = [fast(*args), fast(*args)]
    with SETTINGS[setting]():
        found.append(fast(*args))
    return [*found, fast(*args)]


def in_turn(jit: Jit) -> list[Any]:
    fast = jit(f)
    return [fast(x, Y) for x in (X, TIED, X, TIED)]


def twice(fn: Callable[[Any], Any], x: Any) -> Any:
    return fn(x), fn(x)


def dies(jit: Jit) -> bool:
    def fn(x: Any) -> Any:
        return x * 2

    seen = weakref.ref(fn)
    jitted = jit(fn)
    jitted(X)
    del jitted, fn
    gc.collect()
    return seen() is None


def attributes(jit: Jit) -> Any:
    def documented(x: int, y: int = 1) -> int:
        """Text."""
        return x

    documented.__dict__["custom"] = 5
    j = jit(documented)
    named = jit(functools.partial(documented, y=1))
    kinds = (callable(j), inspect.isfunction(j), inspect.ismethod(j))
    return j.__name__, j.__doc__, j.__module__, j.custom, named.__name__, kinds, (
        str(inspect.signature(j)), j.__wrapped__ is documented, j == jit(documented), {j: 1}[j],
    )  # fmt: skip


def stage(jit: Jit, *args: Any, **options: Any) -> Any:
    lowered = jit(lambda x, y: x * 2, **options).lower(*args)
    compiled = lowered.compile()
    donated = [a.donated for a in jax.tree.leaves(lowered.args_info, is_leaf=is_info)]
    text = compiled.as_text()
    return compiled(*args), str(lowered.out_info), donated, text.count("parameter(")


def is_info(leaf: Any) -> bool:
    return hasattr(leaf, "donated")


def wide_and_narrow(jit: Jit) -> list[Any]:
    fast = jit(lambda x: x * 2)
    found: list[Any] = []
    for wide in (False, True, False):
        with enable_x64(wide):
            found += [fast(v) for v in (1, 1.0, np.arange(2), np.float64(1), 1j)]
    return found


def shard_mapped(jit: Jit) -> Any:
    spread = functools.partial(jax.shard_map, mesh=mesh(), in_specs=P("i"), out_specs=P("i"))
    return spread(jit(lambda x: x * 2))(X), spread(jit(lambda x: x + jax.lax.psum(x, "i")))(X)


def own_derivative(jit: Jit) -> Any:
    @jax.custom_vjp
    def fn(x: Any) -> Any:
        return jit(jnp.sin)(x)

    fn.defvjp(
        lambda x: (jit(jnp.sin)(x), x), lambda kept, ct: (jit(lambda r, c: c * 3 * r)(kept, ct),)
    )
    return jax.grad(lambda x: jit(fn)(x).sum())(X), jit(jax.grad(lambda x: fn(x).sum()))(X)


def same_after(jit: Jit, back: Callable[[Any], Any]) -> Any:
    return back(jit(lambda x, n: x * n, static_argnums=1))(X, 3)


def nan_then_fine(jit: Jit) -> Any:
    fast = jit(jnp.log)
    bad = jnp.array([-1.0])
    first = fast(bad)
    try:
        with jax.debug_nans(True):
            fast(bad)
    except FloatingPointError:
        return first, fast(bad)
    return "no error"


def deleted(jit: Jit) -> Any:
    x = X + 0
    fast = jit(lambda a: a * 2)
    fast(x)
    x.delete()
    return fast(x)


def donated(jit: Jit, fn: Callable[..., Any], **options: Any) -> Any:
    x = X + 0
    found = with_warnings(lambda: jit(fn, **options)(x))
    return found, x.is_deleted()


SAME: dict[str, Callable[[Jit], Any]] = {
    # where results lie
    "free": lambda j: j(f)(X, Y),
    "tied": lambda j: j(f)(TIED, Y),
    "tied in turn": lambda j: [
        c for g in [j(f)] for c in (g(X, Y), g(TIED, Y), g(X, Y), g(TIED, X))
    ],
    "tied by a keyword": lambda j: j(f)(X, y=TIED),
    "tied key": lambda j: j(jax.random.split)(jax.device_put(jax.random.key(0), DEVICE)),
    "tied, passed on": lambda j: j(lambda x: (x, x + 1, 3.0))(TIED),
    "tied constant": lambda j: j(lambda x: x + TIED)(Y),
    "tied, with an effect": lambda j: j(lambda x: (jax.debug.callback(lambda v: None, x), x)[1])(
        TIED
    ),
    "of NumPy": lambda j: j(f)(np.ones(3)),
    "of nothing": lambda j: j(lambda: jnp.ones(3))(),
    "default device": lambda j: set_to(jax.default_device("cpu"), lambda: j(f)(np.ones(3))),
    "in host memory": lambda j: [
        (r, r.sharding.memory_kind)
        for r in [j(lambda x: x)(jax.device_put(X, X.sharding.with_memory_kind("pinned_host")))]
    ],
    "in a mesh": lambda j: str(j(f)(jax.device_put(X, NamedSharding(mesh(), P()))).sharding),
    # parameters
    "in_shardings": lambda j: j(f, in_shardings=(HERE, None))(X, Y),
    "out_shardings": lambda j: j(f, out_shardings=HERE)(X, Y),
    "no shardings": lambda j: j(f, in_shardings=None, out_shardings=None)(X, Y),
    "in_shardings and a keyword": lambda j: j(f, in_shardings=(HERE, HERE))(X, y=Y),
    "specs without a mesh": lambda j: j(f, in_shardings=P("i"))(X),
    "compiler_options": lambda j: j(f, compiler_options={"xla_cpu_enable_fast_math": True})(X, Y),
    "an unknown flag": lambda j: j(f, compiler_options={"xla_no_such": True})(X, Y),
    "flags inside": lambda j: jax.jit(j(f, compiler_options={"xla_cpu_enable_fast_math": True}))(X),
    "keep_unused": lambda j: stage(j, X, Y, keep_unused=True),
    "unused": lambda j: stage(j, X, Y),
    "donated stages": lambda j: stage(j, X + 0, Y, donate_argnums=0),
    "inline": lambda j: [e.primitive.name for e in jax.make_jaxpr(j(f, inline=True))(X, Y).eqns],
    "backend": lambda j: j(f, backend="cpu")(X, Y),
    "an unknown backend": lambda j: j(f, backend="nonesuch")(X, Y),
    "device": lambda j: j(f, device=DEVICE)(X, Y),
    "device and backend": lambda j: j(f, device=DEVICE, backend="cpu"),
    "device and shardings": lambda j: j(f, device=DEVICE, in_shardings=HERE),
    "a keyword that is none": lambda j: j(f, no_such=1),
    "options by position": lambda j: j(f, (0,)),
    "of a number": lambda j: j(3),
    "of None": lambda j: j(None),
    "of a static method": lambda j: j(staticmethod(f)),
    "of a generator": lambda j: j(lambda x: (yield x)),
    "statics that are not there": lambda j: j(f, static_argnums=5),
    "statics of no number": lambda j: j(f, static_argnums="x"),
    "static from the end": lambda j: j(lambda x, n: x * n, static_argnums=-1)(X, 3),
    "static and donated": lambda j: j(f, static_argnums=0, donate_argnums=0),
    "static array": lambda j: j(lambda n: n, static_argnums=0)(X),
    "static tracer": lambda j: jax.jit(j(lambda n: n, static_argnums=0))(X),
    "static by the other name": lambda j: j(lambda x, n: x * n, static_argnames="n")(X, 3),
    "static default": lambda j: j(lambda x, n=3: x * len(range(n)), static_argnames="n")(X),
    "static of many": lambda j: j(lambda x, *n: x * n[0] * n[1], static_argnums=(1, 2))(X, 2, 3),
    "donated": lambda j: donated(j, lambda x: x + 1, donate_argnums=0),
    "donated by name": lambda j: donated(j, lambda x: x + 1, donate_argnames="x"),
    "donated in vain": lambda j: donated(j, lambda x: x[:2] * 2, donate_argnums=0),
    "donated twice": lambda j: [
        g(x) for g, x in [(j(f, donate_argnums=0), X + 0)] for _ in range(2)
    ],
    "given twice": lambda j: [j(lambda a, b: a + b, donate_argnums=0)(x, x) for x in [X + 0]],
    # methods, wrappers, copies
    "method": lambda j: (Model(2.0, j).own(Model(3.0, j), X), j(Model(2.0, j))(X)),
    "partial": lambda j: (j(functools.partial(f, y=3.0))(X), j(functools.partial(f, X))(Y)),
    "attributes": attributes,
    "dies": dies,
    "programs": lambda j: counted(j, (X,), (X,), (jnp.ones(5),), (1.0,), (1,)),
    "programs of statics": lambda j: counted(j, (X, 1), (X, 2), (X, 1), static_argnums=1),
    "copied": lambda j: (same_after(j, copy.copy), same_after(j, copy.deepcopy)),
    # structures
    "dataclass": lambda j: j(lambda p: Pair(p.a * p.n, p.n + 1))(Pair(X, 3)),
    "structures": lambda j: j(lambda t: t)(
        (collections.OrderedDict(z=X, a=Y), collections.defaultdict(list, q=X), None, [], {})
    ),
    "nnx": lambda j: j(lambda m, x: m(x))(nnx.Linear(4, 3, rngs=nnx.Rngs(0)), X),
    "equinox": lambda j: j(lambda m, x: m(x))(eqx.nn.Linear(4, 2, key=jax.random.key(0)), X),
    "Partial": lambda j: j(lambda p, x: p(x))(jax.tree_util.Partial(f, X), Y),
    "no array out": lambda j: j(lambda x: "text")(X),
    "text in": lambda j: j(lambda x: x)("f32[3]"),
    "an object in": lambda j: j(lambda x: x)(object()),
    "a type in": lambda j: j(lambda x: x)(jax.ShapeDtypeStruct((3,), jnp.float32)),
    "objects in an array": lambda j: j(lambda x: x)(np.array([1, "a"], object)),
    "other byte order": lambda j: j(lambda x: x * 2)(np.arange(3, dtype=">f4")),
    "views": lambda j: j(lambda x: x * 2)(
        np.arange(12, dtype=np.float32).reshape(3, 4)[::-1, ::2].T
    ),
    "numbers of own classes": lambda j: (j(lambda x: x * 2)(Number.THREE), j(f)(Whole(3))),
    # numbers
    "least and most": lambda j: j(lambda *x: x)(2**31 - 1, -(2**31), np.uint32(2**32 - 1)),
    "beyond int32": lambda j: j(lambda x: x)(2**31),
    "beyond float32": lambda j: j(lambda x: x)(1e300),
    "weak types": lambda j: [
        j(lambda x, y: x + y)(a, b)
        for a, b in ((1, 2.0), (True, 1), (1j, 2), (np.int8(1), 2), (jnp.int8(1), 1.5), (X, 2))
    ],
    "wide and narrow": wide_and_narrow,
    "wide array": lambda j: j(lambda x: x * 2)(wide_array()),
    "constants out": lambda j: j(lambda x: (3, 3.0, True, np.arange(3), np.arange(3.0)))(X),
    "keys": lambda j: j(lambda k: (jax.random.normal(k, (3,)), jax.random.split(k)))(
        jax.random.key(1, impl="rbg")
    ),
    # settings
    "jit off": lambda j: without_jit(lambda: j(lambda x: x if x > 0 else -x)(jnp.float32(-3))),
    "a NaN is found": lambda j: set_to(jax.debug_nans(True), lambda: j(jnp.log)(-jnp.ones(3))),
    "a NaN, and on": nan_then_fine,
    "an infinity is found": lambda j: set_to(
        jax.debug_infs(True), lambda: j(lambda x: 1 / x)(0 * X)
    ),
    "logged": logged,
    "transfers": lambda j: set_to(jax.transfer_guard("disallow"), lambda: j(f)(np.ones(3))),
    "no tracing": lambda j: set_to(jax.no_tracing(), lambda: j(lambda x: x * 2)(X)),
    "no execution": lambda j: set_to(jax.no_execution(True), lambda: j(lambda x: x * 2)(X)),
    "strict promotion": lambda j: set_to(
        jax.numpy_dtype_promotion("strict"), lambda: j(lambda x: x + jnp.int32(1))(X)
    ),
    "scoped": lambda j: "zz" in j(jax.named_scope("zz")(f)).lower(X).as_text(debug_info=True),
    "made while tracing": lambda j: j(at_compile_time)(X),
    # transformations
    "shard_map": shard_mapped,
    "pmap": lambda j: (jax.pmap(j(f))(X[None], Y[None]), j(jax.pmap(f))(X[None], Y[None])),
    "axis name": lambda j: jax.vmap(j(lambda x: x - jax.lax.pmean(x, "i")), axis_name="i")(X),
    "own derivative": own_derivative,
    "pullback": lambda j: j(jax.vjp(f, X, Y)[1])(X),
    "linearized": lambda j: j(jax.linearize(j(f), X, Y)[1])(X, Y),
    "exported": lambda j: jax.export.export(j(f))(X, Y).call(X, Y),
    "types": lambda j: (str(jax.eval_shape(j(f), X, Y)), str(j(f).eval_shape(1.0))),
    "types for static arguments": lambda j: [
        str(j(lambda x, n, m=1: jnp.tile(x, n * m), **static).eval_shape(*args, **named))
        for static in ({"static_argnums": (1, 2)}, {"static_argnames": ("n", "m")})
        for args, named in (((X, 2), {}), ((X, 2), {"m": 3}), ((X,), {"n": 2, "m": 2}))
    ],
    "types for a static argument without a hash": lambda j: j(
        lambda x, n: x, static_argnums=1
    ).eval_shape(X, [2]),
    "types from a method": lambda j: str(Model(2.0, j).own.eval_shape(Model(3.0, j), X)),
    "a jaxpr with static arguments": lambda j: str(
        jax.make_jaxpr(j(lambda x, n: jnp.tile(x, n), static_argnums=1), static_argnums=1)(
            X, 2
        ).out_avals
    ),
    "a jaxpr that loses static arguments": lambda j: jax.make_jaxpr(
        j(lambda x, n: jnp.tile(x, n), static_argnums=1)
    )(X, 2),
    "linearized with static arguments": lambda j: jax.linearize(
        functools.partial(j(lambda x, n: x**n, static_argnames="n"), n=3), X
    )[1](Y),
    "captured reference": captured_ref,
    "threads": in_threads,
    "gradient of integers": lambda j: jax.grad(j(lambda x: x * 2))(3),
    "Taylor series": lambda j: jet.jet(j(jnp.sin), (0.5,), ((1.0, 0.0),)),
    "sparse": lambda j: sparse.sparsify(j(lambda m, v: m @ v))(
        sparse.BCOO.fromdense(jnp.eye(4)), X
    ),
    "checked": lambda j: [
        str(checkify.checkify(j(fn), errors=checkify.all_checks)(x)[0].get())[:30]
        for fn, x in ((jnp.log, -jnp.ones(2)), (lambda n: 1 // n, 0), (lambda i: X[i], 9), (f, X))
    ],
    "a check that stays": lambda j: j(lambda x: checkify.check(x[0] > 9, "small") or x)(X),
    # arguments that are named as ours are
    "names of our own": lambda j: [
        j(lambda **named: {n: v + i for i, (n, v) in enumerate(named.items())})(
            **dict.fromkeys(names, X)
        )
        for names in (
            ("params", "fn", "constraints", "static_argnums", "donate_argnums"),
            ("self", "args", "kwargs", "device", "options", "dims", "leaves", "fun"),
        )
    ],
    "static, with a name of our own": lambda j: j(
        lambda params, x: params * x, static_argnames="params"
    )(params=3, x=X),
    "places, then names": lambda j: each(
        j(lambda a1, a0: a1 - a0),
        ((X, Y), {}),
        ((X, Y), {}),
        ((), {"a1": X, "a0": Y}),
        ((), {"a0": X, "a1": Y}),
        ((X,), {"a0": Y}),
        ((X,), {"a1": Y}),
    ),
    # calls that go the short way, or must not
    "statics in turn": lambda j: each(
        j(lambda x, n=1: x * n, static_argnames="n"),
        *[((X, n), {}) for n in (1, 1, True, 2.0, 2, 1)],
        ((X,), {"n": 2}),
        ((X,), {}),
    ),
    "a static without a hash": lambda j: each(
        j(lambda x, n: x, static_argnums=1), *[((X, n), {}) for n in ((1, 2), (1, 2), (1, [2]))]
    ),
    "numbers in turn": lambda j: each(
        j(lambda x, n: x * n), *[((X, n), {}) for n in (1, 1, 2, 2.0, True, False, 1j, 2**31 - 1)]
    ),
    "a number too large": lambda j: each(
        j(lambda x, n: x * n), *[((X, n), {}) for n in (1, 1, 2**31)]
    ),
    "arrays of NumPy in turn": lambda j: each(
        j(lambda x: x * 2),
        *[((a,), {}) for a in (np.ones(3, np.float32),) * 2],
        *[((a,), {}) for a in (np.ones(4, np.float32), np.ones(4), np.arange(4), X, X)],
    ),
    "structures in turn": lambda j: each(
        j(lambda t, y=1.0: jax.tree.map(lambda v: v + y, t)),
        *[((t,), {}) for t in ({"a": X}, {"a": X}, [X, None], [X, None], {"a": TIED}, {"a": TIED})],
        *[(({"a": v},), {"y": y}) for v, y in ((X, X), (X, X), (Y, TIED), (X, 2.0))],
        (({"a": jax.device_put(X, NamedSharding(mesh(), P()))},), {}),
        (({"a": TIED},), {}),
    ),
    **{
        f"{how}, then {what}": lambda j, how=how, what=what: between(j, ARGUMENTS[how], what)
        for how in ("flat", "tree", "numbers")
        for what in SETTINGS
    },
    # callbacks
    "callbacks in a loop": seen_by_callbacks,
    "a callback's error": lambda j: np.asarray(
        j(lambda x: jax.pure_callback(raised(ValueError("no")), jax.typeof(x), x))(X)
    ),
    "printed in order": lambda j: printed(
        j,
        lambda x: [jax.debug.print(t + " {}", x[0] * 0, ordered=True) for t in "ab"] and x,
        X,
    ),
    # errors
    "leaked": lambda j: leaked(j, lambda kept: kept + 1),
    "leaked into another": lambda j: leaked(j, lambda kept: j(lambda x: x + kept)(X)),
    "leaked from JAX": lambda j: leaked(jax.jit, lambda kept: j(lambda x: x + kept)(X)),
    "if": lambda j: j(lambda x: x if x.sum() > 0 else -x)(X),
    "and": lambda j: j(lambda x, y: x and y)(1.0, 2.0),
    "index of a list": lambda j: j(lambda x: [1, 2][x])(1),
    "range": lambda j: j(lambda x: list(range(x)))(3),
    "NumPy inside": lambda j: j(np.sin)(X),
    "float": lambda j: j(float)(1.0),
    "math": lambda j: j(math.sin)(1.0),
    "item": lambda j: j(lambda x: x.item())(1.0),
    "mask": lambda j: j(lambda x: x[x > 0])(X),
    "nonzero": lambda j: j(jnp.nonzero)(X),
    "shape": lambda j: j(lambda x, n: x.reshape(n, 2))(X, 2),
    "arange": lambda j: j(jnp.arange)(3),
    "key of a dict": lambda j: j(lambda x: {1: 2}[x])(1),
    "carry": lambda j: j(
        lambda x: jax.lax.scan(lambda c, _: (c.astype(jnp.float16), None), x, None, length=3)
    )(X),
    "carry's structure": lambda j: j(lambda x: jax.lax.fori_loop(0, 3, lambda i, c: (c, c), x))(X),
    "branches": lambda j: j(lambda x: jax.lax.cond(x[0] > 0, lambda: x, lambda: x[:2]))(X),
    "condition": lambda j: j(lambda x: jax.lax.while_loop(lambda c: c, lambda c: c, x))(X),
    "shapes": lambda j: j(jnp.add)(X, jnp.ones(3)),
    "own error": lambda j: j(raised(KeyError("mine")))(X),
    "too few": lambda j: j(lambda x, y: x)(X),
    "too many": lambda j: j(lambda x: x)(X, Y),
    "unknown keyword": lambda j: j(lambda x: x)(X, zz=1),
    "deleted": deleted,
}


def wide_array() -> Any:
    with enable_x64():
        return jnp.arange(3.0)


def set_to(setting: Any, call: Callable[[], Any]) -> Any:
    with setting:
        return call()


def without_jit(call: Callable[[], Any]) -> Any:
    return set_to(jax.disable_jit(), call)


def at_compile_time(x: Any) -> Any:
    with jax.ensure_compile_time_eval():
        return x * int(jnp.arange(4).sum())
