"""What a call costs on the host: ours against ``jax.jit``, on work that XLA does in no time.

Run with ``python -m tests.benchmarks.bench_host_overhead`` for the table, or with pytest
(``pytest tests/benchmarks/bench_host_overhead.py``) to check the targets.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlx_xla.runtime import LoadedExecutable
from rlx_xla.runtime.calling import tree_call
from tests.benchmarks.timing import Comparison, compare

SIZE = 8


def _sum_module(count: int, shape: tuple[int, ...] = (SIZE, SIZE)) -> str:
    """Return a module that adds ``count`` arguments."""
    kind = f"tensor<{'x'.join(map(str, shape))}xf32>"
    arguments = ", ".join(f"%a{i}: {kind}" for i in range(count))
    lines, last = [], "%a0"
    for index in range(1, count):
        lines.append(f"    %r{index} = stablehlo.add {last}, %a{index} : {kind}")
        last = f"%r{index}"
    body = "\n".join(lines)
    return (
        f"module {{\n  func.func public @main({arguments}) -> {kind} {{\n{body}\n"
        f"    return {last} : {kind}\n  }}\n}}"
    )


def _sum(*arrays: jax.Array) -> jax.Array:
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    return total


def _arrays(count: int) -> list[jax.Array]:
    return [jnp.full((SIZE, SIZE), 1e-3 * (i + 1), jnp.float32) for i in range(count)]


def repeated(call: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[int], None]:
    """Return a run that passes the same arguments each time."""

    def run(calls: int) -> None:
        out = None
        for _ in range(calls):
            out = call(*args)
        jax.block_until_ready(out)

    return run


def fed(call: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[int], None]:
    """Return a run that feeds each result to the next call as its first argument."""
    first, rest = args[0], args[1:]

    def run(calls: int) -> None:
        value = first
        for _ in range(calls):
            (value,) = call(value, *rest)
        jax.block_until_ready(value)

    return run


def _jit(count: int) -> Callable[..., Any]:
    del count
    return jax.jit(lambda *arrays: [_sum(*arrays)])


def flat(count: int, drive: Callable[..., Any], label: str, rounds: int) -> Comparison:
    """Compare a call with ``count`` array arguments, none bound."""
    args = tuple(_arrays(count))
    ours = LoadedExecutable(_sum_module(count), name=f"sum{count}")
    return compare(
        f"{count} arguments, {label}",
        drive(ours.fast_call, args),
        drive(_jit(count), args),
        drive(_jit(count), args),
        rounds=rounds,
    )


def bound(count: int, drive: Callable[..., Any], label: str, rounds: int) -> Comparison:
    """Compare one argument and ``count`` bound params with jit over (x, dict of params)."""
    arrays = _arrays(count + 1)
    ours = LoadedExecutable(_sum_module(count + 1), bound=range(1, count + 1), name=f"bound{count}")
    ours.bind({i: arrays[i] for i in range(1, count + 1)})
    params = {f"layer{i:04d}": arrays[i] for i in range(1, count + 1)}

    def make() -> Callable[..., Any]:
        return jax.jit(lambda x, params: [_sum(x, *params.values())])

    return compare(
        f"1 argument, {count} bound params, {label}",
        drive(ours.fast_call, (arrays[0],)),
        drive(make(), (arrays[0], params)),
        drive(make(), (arrays[0], params)),
        rounds=rounds,
    )


def tree(count: int, rounds: int) -> Comparison:
    """Compare a call that takes and returns pytrees."""
    arrays = _arrays(count)
    argument = {"x": arrays[0], "rest": tuple(arrays[1:])}
    _, in_tree = jax.tree.flatten((argument,))
    ours = LoadedExecutable(
        _sum_module(count), argument_names=[f"leaf{i}" for i in range(count)], name=f"tree{count}"
    )
    call = tree_call(ours.fast_call, in_tree, jax.tree.structure({"y": 0}))

    def make() -> Callable[..., Any]:
        return jax.jit(lambda t: {"y": _sum(*t["rest"], t["x"])})

    return compare(
        f"pytree of {count} arrays",
        repeated(call, (argument,)),
        repeated(make(), (argument,)),
        repeated(make(), (argument,)),
        rounds=rounds,
    )


def host_arguments(count: int, rounds: int) -> Comparison:
    """Compare a call with NumPy arguments."""
    args = tuple(np.asarray(a).copy() for a in _arrays(count))
    ours = LoadedExecutable(_sum_module(count), name=f"host{count}")
    return compare(
        f"{count} NumPy arguments",
        repeated(ours.fast_call, args),
        repeated(_jit(count), args),
        repeated(_jit(count), args),
        rounds=rounds,
    )


def bound_growth(many: int, few: int, rounds: int) -> tuple[Comparison, Comparison]:
    """Compare ``many`` bound params with ``few``: ours, and XLA's own cost of the arguments."""
    arrays = _arrays(many + 1)

    def make(count: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
        loaded = LoadedExecutable(_sum_module(count + 1), bound=range(1, count + 1))
        loaded.bind({i: arrays[i] for i in range(1, count + 1)})
        return loaded.fast_call, _bare(loaded, arrays[1 : count + 1])

    (large, large_bare), (small, small_bare) = make(many), make(few)
    (again, again_bare) = make(few)
    args = (arrays[0],)
    ours = compare(
        f"{many} bound params against {few}",
        repeated(large, args), repeated(small, args), repeated(again, args), rounds=rounds,
    )  # fmt: skip
    bare = compare(
        "  the same by XLA's client alone, unchecked",
        repeated(large_bare, args), repeated(small_bare, args), repeated(again_bare, args),
        rounds=rounds,
    )  # fmt: skip
    return ours, bare


def _bare(loaded: LoadedExecutable, params: list[jax.Array]) -> Callable[..., Any]:
    """Return the least that a call through XLA's client can do."""
    execute = loaded.raw.execute_sharded
    handlers = loaded.result_handlers

    def call(x: jax.Array) -> Any:
        return execute([x, *params]).consume_with_handlers(handlers)

    return call


@functools.cache
def measure(rounds: int = 41) -> dict[str, Comparison]:
    """Measure everything once; the keys name the targets."""
    growth, bare = bound_growth(500, 10, rounds)
    return {
        "repeated2": flat(2, repeated, "repeated", rounds),
        "fed2": flat(2, fed, "each fed by the last", rounds),
        "repeated50": flat(50, repeated, "repeated", rounds),
        "fed50": flat(50, fed, "each fed by the last", rounds),
        "bound1": bound(1, fed, "fed", rounds),
        "bound10": bound(10, fed, "fed", rounds),
        "bound50": bound(50, fed, "fed", rounds),
        "bound500": bound(500, fed, "fed", rounds),
        "growth": growth,
        "growth_bare": bare,
        "tree2": tree(2, rounds),
        "tree20": tree(20, rounds),
        "host2": host_arguments(2, rounds),
    }


def test_targets(benchmark: Any, rounds: int, judged: bool) -> None:
    results = measure(rounds)
    for result in results.values():
        print(result)
    loaded = LoadedExecutable(_sum_module(2), bound=[1])
    loaded.bind({1: _arrays(1)[0]})
    benchmark(loaded.fast_call, _arrays(1)[0])
    if not judged:
        return
    for name in ("repeated2", "fed2", "repeated50", "fed50", "bound1", "bound10", "bound50"):
        assert results[name].not_slower, results[name]
    assert results["bound500"].ratio.high < 0.8, results["bound500"]
    assert results["growth"].within(1.2 * results["growth_bare"].ratio.high), results["growth"]
    for name in ("tree2", "tree20"):
        assert results[name].within(1.10), results[name]


def main() -> None:
    """Print the table."""
    print(f"jax {jax.__version__} on {jax.devices()[0]}")
    for result in measure().values():
        print(result)


if __name__ == "__main__":
    main()
