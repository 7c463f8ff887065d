"""Attention and recurrences on the CPU against ``jax.jit``, the best form for XLA,
torch and onnxruntime.

Run with ``python -m tests.benchmarks.bench_attention [part of a name]`` for the table, or with
pytest to check that every kernel gains where it is enabled.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx.dtypes import DType, as_dtype
from rlx.ir.op import Op
from rlx.ops.sequence import GatedDeltaNet, Gru, Lstm, Rnn, SelectiveScan
from rlx.types import TensorType
from rlx_xla.kernels import ffi
from tests.benchmarks import onnx_rivals
from tests.benchmarks.bench_host_overhead import repeated
from tests.benchmarks.bench_kernels import CLEAR, measure_case, show
from tests.benchmarks.kernel_cases import Case, Run
from tests.benchmarks.onnx_rivals import CONTRIBUTED, OnnxNode
from tests.benchmarks.timing import Comparison, compare

FORWARD = "attention.cpu.ffi"
BACKWARD = "attention_backward_all.cpu.ffi"


def by_hand(q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool = True) -> jax.Array:
    """Attention as it is written, heads first, which suits XLA."""
    scores = jnp.einsum("bhsd,bhtd->bhst", q, k) * q.shape[-1] ** -0.5
    if causal:
        queries, keys = scores.shape[-2:]
        seen = jnp.tril(jnp.ones((queries, keys), bool), keys - queries)
        scores = jnp.where(seen, scores, -jnp.inf)
    return jnp.einsum("bhst,bhtd->bhsd", jax.nn.softmax(scores, axis=-1), v)


def natural(q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool = True) -> jax.Array:
    """Attention by jax.nn, heads after positions."""
    return jax.nn.dot_product_attention(q, k, v, is_causal=causal)


def best_form(q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool = True) -> jax.Array:
    """The same with heads first."""
    heads_first = (x.swapaxes(1, 2) for x in (q, k, v))
    return by_hand(*heads_first, causal=causal).swapaxes(1, 2)


def trained(form: Callable[..., jax.Array]) -> Callable[..., Any]:
    """A form with its gradients."""

    def both(q: jax.Array, k: jax.Array, v: jax.Array, dy: jax.Array) -> Any:
        y, back = jax.vjp(form, q, k, v)
        return y, back(dy)

    return both


def _torch(arrays: tuple[np.ndarray, ...], *, causal: bool, train: bool) -> dict[str, Run]:
    """Torch's own kernel, where torch is installed; arrays have heads after positions."""
    if importlib.util.find_spec("torch") is None:
        return {}
    torch: Any = importlib.import_module("torch")
    moved = [torch.from_numpy(np.ascontiguousarray(a.swapaxes(1, 2))) for a in arrays]
    attention = torch.nn.functional.scaled_dot_product_attention

    def forward() -> Any:
        return attention(*moved[:3], is_causal=causal)

    def backward() -> Any:
        leaves = [x.detach().requires_grad_() for x in moved[:3]]
        attention(*leaves, is_causal=causal).backward(moved[3])
        return [x.grad for x in leaves]

    return {"torch": backward if train else forward}


def _onnx(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, causal: bool) -> OnnxNode:
    """Onnxruntime's own attention: heads side by side after positions."""
    packed = [x.reshape(*x.shape[:2], -1) for x in (q, k, v)]
    return OnnxNode(
        kind="MultiHeadAttention",
        domain=CONTRIBUTED,
        inputs=packed,
        attributes={"num_heads": q.shape[2], "unidirectional": int(causal)},
    )


def _cases(rng: np.random.Generator) -> Iterator[Case]:
    for batch, heads, length in ((1, 8, 2048), (4, 16, 1024)):
        shape = (batch, length, heads, 64)
        arrays = tuple(rng.normal(size=shape).astype(np.float32) for _ in range(4))
        name = f"attention f32 causal B{batch} H{heads} S{length} D64"
        yield Case(
            name=name,
            kernel=FORWARD,
            function=natural,
            args=arrays[:3],
            target=2.1,
            best=best_form,
            rivals=_torch(arrays, causal=True, train=False),
            onnx=_onnx(*arrays[:3], causal=True),
            flops=2 * batch * heads * length * length * 64,
        )
        if batch == 1:
            yield Case(
                name=f"{name}, with gradients",
                kernel=BACKWARD,
                function=trained(natural),
                args=arrays,
                target=2.1,
                best=trained(best_form),
                rivals=_torch(arrays, causal=True, train=True),
                flops=7 * batch * heads * length * length * 64,
            )
    for dtype, kv_heads in ((DType.F32, 32), (DType.F32, 8), (DType.BF16, 8)):
        q = rng.normal(size=(1, 1, 32, 128)).astype(dtype.numpy)
        k, v = (rng.normal(size=(1, 2048, kv_heads, 128)).astype(dtype.numpy) for _ in "kv")
        yield Case(
            name=f"attention {dtype}, one query, H32 of {kv_heads}, 2,048 keys",
            kernel=FORWARD,
            function=lambda q, k, v: natural(q, k, v, causal=False),
            args=(q, k, v),
            target=1.5,
            rivals={} if kv_heads != 32 else _torch((q, k, v), causal=False, train=False),
            onnx=_onnx(q, k, v, causal=False) if kv_heads == 32 else None,
            flops=4 * 32 * 2048 * 128,
        )


def _recurrences(rng: np.random.Generator) -> Iterator[tuple[str, Op, tuple[np.ndarray, ...]]]:
    """Name, op and inputs; their baseline is the same graph without the kernel, a lax.scan."""

    def draw(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    x, b = draw(1, 256, 512), draw(1, 256, 16)
    yield (
        "selective_scan f32 S256 H512 N16",
        SelectiveScan(state_size=16),
        (x, abs(x), -abs(draw(512, 16)), b, b),
    )
    q, gate = draw(1, 256, 8, 64), abs(draw(1, 256, 8))
    yield (
        "gated_delta_net f32 S256 H8 N64",
        GatedDeltaNet(state_size=64),
        (q, q / 8, q, -gate, gate / 2),
    )
    for kind, gates in ((Lstm, 4), (Gru, 3), (Rnn, 1)):
        for batch in (1, 8):
            rows = gates * 128
            weights = (draw(rows * 64) / 8, draw(1, rows, 128) / 12)
            biases = (draw(1, rows),) * (2 if kind is Gru else 1)
            name = f"{kind.op_name} f32 B{batch} S100 I64 H128"
            yield name, kind(hidden_size=128), (draw(batch, 100, 64), *weights, *biases)


CASES = list(_cases(np.random.default_rng(0)))
RECURRENCES = list(_recurrences(np.random.default_rng(0)))


def measure_op(
    name: str, op: Op, arrays: tuple[np.ndarray, ...], rounds: int
) -> dict[str, Comparison]:
    """Time a graph of one op: against the same graph without the kernel, and onnxruntime."""
    b = rlx.GraphBuilder("recurrence")
    types = [TensorType(as_dtype(a.dtype), a.shape) for a in arrays]
    graph = b.build(op(*(b.input(f"x{i}", t) for i, t in enumerate(types))))
    common = rlx.CompileOptions(
        kernel_dispatch=rlx.KernelDispatch(policy=rlx.KernelPolicy.FORCE_COMMON)
    )
    session = rlx.Session("cpu")
    ours = session.compile(graph)
    assert f"{op.op_name}.cpu.ffi" in {c.implementation for c in ours.report().kernels}
    theirs = [session.compile(graph, options=common) for _ in range(2)]
    given = [jnp.asarray(a) for a in arrays]
    runs = [repeated(p, given) for p in (ours, *theirs)]
    found = {"lax.scan": compare(name, *runs, rounds=rounds)}
    node = _network(op, arrays)
    run = None if node is None else onnx_rivals.runner(node)
    if node is not None and run is not None:
        onnx_rivals.check(node, run, 0, jax.tree.leaves(ours(*given))[0])
        rival = repeated(run, ())
        found["onnxruntime"] = compare(name, runs[0], rival, rival, rounds=rounds)
    return found


def _network(op: Op, arrays: tuple[np.ndarray, ...]) -> OnnxNode | None:
    """The recurrent network as a node, whose gates stand in another order."""
    if not isinstance(op, Lstm | Gru | Rnn):
        return None
    order = {Lstm: (0, 3, 1, 2), Gru: (1, 0, 2), Rnn: (0,)}[type(op)]
    x, w_ih, w_hh, *biases = arrays
    size = op.hidden_size

    def turned(w: np.ndarray) -> np.ndarray:
        gates = w.reshape(len(order), size, -1)
        return np.concatenate([gates[i] for i in order])[None]

    bias = [turned(b)[..., 0] for b in biases]
    both = [*bias, np.zeros_like(bias[0])][:2]
    return OnnxNode(
        kind=op.op_name.upper(),
        inputs=[np.ascontiguousarray(x.swapaxes(0, 1))],
        constants={1: turned(w_ih), 2: turned(w_hh), 3: np.concatenate(both, axis=1)},
        attributes={"hidden_size": size, **({"linear_before_reset": 1} if len(order) == 3 else {})},
    )


@pytest.fixture(autouse=True)
def _library() -> None:
    library = ffi.load()
    if isinstance(library, ffi.Unavailable):
        pytest.skip(library.reason)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_attention_gains(case: Case, judged: bool, rounds: int) -> None:
    found = measure_case(case, min(rounds, 7))
    for result in found.values():
        print(result)
    assert not judged or found["jit"].within(CLEAR)


@pytest.mark.parametrize("number", range(len(RECURRENCES)), ids=lambda n: RECURRENCES[n][0])
def test_recurrences_gain(number: int, judged: bool, rounds: int) -> None:
    found = measure_op(*RECURRENCES[number], rounds=min(rounds, 21))
    for result in found.values():
        print(result)
    assert not judged or found["lax.scan"].within(1 / 1.2)


def main(part: str = "") -> None:
    """Print the table: times of the kernel, and how many times faster it is than each."""
    for case in CASES:
        if part in case.name:
            show(case.name, measure_case(case, 7), f"(target {case.target}x)")
    for name, op, arrays in RECURRENCES:
        if part in name:
            show(name, measure_op(name, op, arrays, 21))


if __name__ == "__main__":
    main(*sys.argv[1:2])
