"""Every gradient op equals JAX's gradient of its forward op, in f64, on its own samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest

import rlx_xla
from rlx.dtypes import DType, as_dtype
from rlx.ir.graph import Graph, Value, make_node
from rlx.ir.op import Op, all_ops
from rlx.ops.activation import Relu
from rlx.ops.activation_kinds import Activation, activate
from rlx.ops.attention import Attention, MaskKind
from rlx.ops.backward import (
    ActivationBackward,
    AttentionBackward,
    AttentionBackwardWrt,
    ComplexNormSqBackward,
)
from rlx.ops.complex_fft import LogMel
from rlx.ops.control_flow import Scan
from rlx.ops.convolution import Conv
from rlx.ops.indexing import Gather
from rlx.ops.io import Input
from rlx.ops.loss import SoftmaxCrossEntropy, SoftmaxCrossEntropyWithLogits
from rlx.ops.normalization import (
    AdaLayerNorm,
    BatchNormInference,
    GatedResidual,
    GroupNorm,
    LayerNorm,
    RmsNorm,
)
from rlx.ops.pooling import Pool, WindowKind
from rlx.ops.position import Rope
from rlx.ops.reduction import CumSum
from rlx.ops.sequence import GatedDeltaNet
from rlx.ops.solve import Eigh
from rlx_xla._jax_compat.jaxpr import enable_x64
from tests.samples import backward, backward_attention
from tests.samples.base import Sample

Array = np.ndarray[Any, Any]
Forward = Callable[..., Any]

TABLE: dict[str, list[Sample]] = {}
for _family in (backward, backward_attention):
    for _sample in _family.samples(np.random.default_rng(7)):
        TABLE.setdefault(_sample.op.op_name, []).append(_sample)
MOST = {"activation_backward": 40, "attention_backward": 12, "attention_backward_all": 3}
"""Samples that are compared, where it is not three."""


class Case:
    """A gradient op beside what it is the gradient of.

    Attributes:
        forward: the forward op, or a function of values.
        primals: arrays that it takes.
        upstream: gradients by its results.
        wrt: which primals the gradients are by, in the order of the gradient op's results.
    """

    def __init__(
        self, forward: Op | Forward, primals: Sequence[Array], *upstream: Array, wrt: Any = 0
    ) -> None:
        self.forward = forward
        self.primals = list(primals)
        self.upstream = list(upstream)
        self.wrt = [wrt] if isinstance(wrt, int) else list(wrt)

    def gradients(self) -> list[Array]:
        """What JAX gives."""
        leaves = [
            Input(name=f"x{i}", dtype=as_dtype(a.dtype), shape=a.shape)()
            for i, a in enumerate(self.primals)
        ]
        made = (
            make_node(self.forward, leaves).results
            if isinstance(self.forward, Op)
            else self.forward(*leaves)
        )
        outputs: Sequence[Value] = made if isinstance(made, tuple | list) else (made,)
        function = rlx_xla.to_jax(Graph(leaves, (), outputs))
        with enable_x64():

            def of_wanted(*wanted: Any) -> Any:
                arrays = list(self.primals)
                for i, x in zip(self.wrt, wanted, strict=True):
                    arrays[i] = x
                return function(*arrays)

            result, back = jax.vjp(of_wanted, *(self.primals[i] for i in self.wrt))
            cotangents = self.upstream if isinstance(result, list) else self.upstream[0]
            return [np.asarray(g) for g in back(cotangents)]


def _shared(op: Op, forward: type[Op]) -> Op:
    """The forward op with the attributes that it has in common with the gradient op."""
    attributes = op.attributes()
    return forward(**{n: attributes[n] for n in forward.attribute_names if n in attributes})


def _zeros(x: Array, axis: int) -> Array:
    return np.zeros(x.shape[axis], x.dtype)


def _layer_norm_gamma(op: Any, x: Array, dy: Array) -> Case:
    vector = _zeros(x, op.axis)
    return Case(_shared(op, LayerNorm), (x, vector, vector), dy, wrt=1)


def _group_norm(wrt: int) -> Callable[..., Case]:
    def case(op: Any, x: Array, dy: Array) -> Case:
        return Case(_shared(op, GroupNorm), (x, _zeros(x, 1), _zeros(x, 1)), dy, wrt=wrt)

    return case


def _by_input(op: Any, dy: Array, weight: Array) -> Case:
    x = np.zeros((dy.shape[0], weight.shape[1] * op.groups, *op.input_size), dy.dtype)
    return Case(_shared(op, Conv), (x, weight), dy)


def _by_weight(op: Any, x: Array, dy: Array) -> Case:
    weight = np.zeros((dy.shape[1], x.shape[1] // op.groups, *op.kernel), x.dtype)
    return Case(_shared(op, Conv), (x, weight), dy, wrt=1)


def _pool(op: Any, x: Array, dy: Array) -> Case:
    forward = Pool(kind=WindowKind.MAX, kernel=op.kernel, stride=op.stride, padding=op.padding)
    return Case(forward, (x,), dy)


def _attention(op: Any, q: Array, k: Array, v: Array, dy: Array, *mask: Array) -> Case:
    return Case(
        _shared(op, Attention), (q, k, v, *mask), dy, wrt=list(AttentionBackwardWrt).index(op.wrt)
    )


def _attention_all(op: Any, q: Array, k: Array, v: Array, dy: Array, *mask: Array) -> Case:
    return Case(_shared(op, Attention), (q, k, v, *mask), dy, wrt=(0, 1, 2))


def _gather(op: Any, dy: Array, indices: Array) -> Case:
    after = dy.shape[op.axis + indices.ndim :]
    table = np.zeros((*dy.shape[: op.axis], op.rows, *after), dy.dtype)
    return Case(Gather(axis=op.axis), (table, indices), dy)


def _loss(op: Any, logits: Array, labels: Array, d_loss: Array) -> Case:
    soft = labels.dtype == logits.dtype
    forward = SoftmaxCrossEntropy() if soft else SoftmaxCrossEntropyWithLogits()
    return Case(forward, (logits, labels), d_loss)


def _delta(op: Any, *arrays: Array) -> Case:
    q, k, v, g, beta, dy, *states = arrays
    primals, upstream = [q, k, v, g, beta, *states[:1]], [dy, *states[1:]]
    forward = _shared(op, GatedDeltaNet)
    return Case(forward, primals, *upstream, wrt=range(len(primals)))


def _scan(by: Callable[[Any], int]) -> Callable[..., Case]:
    """Of the step carry · x + s, whose gradient the samples hold."""

    def case(op: Any, init: Array, _: Array, upstream: Array, *xs: Array) -> Case:
        def forward(start: Value, *values: Value) -> Value:
            leaves = [
                Input(name=f"x{i}", dtype=v.dtype, shape=shape)()
                for i, (v, shape) in enumerate(((start, (3,)), (values[0], (3,)), (values[1], ())))
            ]
            carry, x, s = leaves
            after = carry * x + s.broadcast_to((3,))
            body = Graph(leaves, (), (after, after))
            last, trajectory = Scan(body=body, length=op.length, num_carry=1)(start, *values)
            return trajectory if op.save_trajectory else last

        return Case(forward, (init, *xs), upstream, wrt=by(op))

    return case


def _eigh(op: Any, v: Array, w: Array, dv: Array, dw: Array) -> Case:
    matrix = np.einsum("...ij,...j,...kj->...ik", v, w, v)
    with enable_x64():
        theirs = np.asarray(jax.lax.linalg.eigh(matrix)[0])
    signs = np.sign((v * theirs).sum(-2, keepdims=True))  # eigenvectors are unique up to those
    return Case(Eigh(), (matrix,), dv * signs, dw)


CASES: dict[str, Callable[..., Case]] = {
    "relu_backward": lambda op, x, dy: Case(Relu(), (x,), dy),
    "activation_backward": lambda op, x, dy: Case(lambda v: activate(op.kind, v), (x,), dy),
    "layer_norm_backward_input": lambda op, x, gamma, dy: Case(
        _shared(op, LayerNorm), (x, gamma, gamma), dy
    ),
    "layer_norm_backward_gamma": _layer_norm_gamma,
    **{
        f"rms_norm_backward_{name}": lambda op, *arrays, wrt=i: Case(
            _shared(op, RmsNorm), arrays[:3], arrays[3], wrt=wrt
        )
        for i, name in enumerate(("input", "gamma", "beta"))
    },
    "group_norm_backward_input": lambda op, x, gamma, beta, dy: Case(
        _shared(op, GroupNorm), (x, gamma, beta), dy
    ),
    "group_norm_backward_gamma": _group_norm(1),
    "group_norm_backward_beta": _group_norm(2),
    "batch_norm_inference_backward": lambda op, *arrays: Case(
        _shared(op, BatchNormInference), arrays[:5], arrays[5], wrt=range(5)
    ),
    "ada_layer_norm_backward": lambda op, *arrays: Case(
        _shared(op, AdaLayerNorm), arrays[:3], arrays[3], wrt=range(3)
    ),
    "gated_residual_backward": lambda op, *arrays: Case(
        GatedResidual(), arrays[:3], arrays[3], wrt=range(3)
    ),
    "conv2d_backward_input": _by_input,
    "conv3d_backward_input": _by_input,
    "conv2d_backward_weight": _by_weight,
    "conv3d_backward_weight": _by_weight,
    "max_pool2d_backward": _pool,
    "max_pool3d_backward": _pool,
    "attention_backward": _attention,
    "attention_backward_all": _attention_all,
    "cumsum_backward": lambda op, dy: Case(_shared(op, CumSum), (np.zeros_like(dy),), dy),
    "gather_backward": _gather,
    "rope_backward": lambda op, dy, cos, sin: Case(
        _shared(op, Rope), (np.zeros_like(dy), cos, sin), dy
    ),
    "softmax_cross_entropy_backward": _loss,
    "gated_delta_net_backward": _delta,
    "scan_backward": _scan(lambda op: 0),
    "scan_backward_xs": _scan(lambda op: 1 + op.xs_index),
    "eigh_backward": _eigh,
    "log_mel_backward": lambda op, spectrum, filters, dy: Case(
        LogMel(), (spectrum, filters), dy, wrt=(0, 1)
    ),
}

OTHER_MEANING = {
    "complex_norm_sq_backward": "a Wirtinger derivative, where JAX's counts both parts",
}
"""Gradient ops whose rule differs from JAX's on purpose; each has a test of its own below."""

ELSEWHERE = {"fake_quantize", "spline", "synth"}
"""Stems of gradient ops that other test files compare."""


def _ours(name: str) -> bool:
    return "_backward" in name and not any(name.startswith(stem) for stem in ELSEWHERE)


def test_every_gradient_op_is_compared() -> None:
    names = {name for name in all_ops() if _ours(name)}
    assert names == set(CASES) | set(OTHER_MEANING)


def _samples(name: str) -> list[Sample]:
    found = [
        s
        for s in TABLE[name]
        if as_dtype(s.inputs[0].dtype) is DType.F64 and all(a.size for a in s.inputs)
    ]
    return found[: MOST.get(name, 3)]


@pytest.mark.parametrize("name", sorted(CASES))
def test_gradient(name: str) -> None:
    samples = _samples(name)
    assert samples
    for sample in samples:
        op, inputs = sample.op, sample.inputs
        if getattr(op, "kind", None) is Activation.ROUND:
            continue  # straight-through, see below
        if getattr(op, "kind", None) in (Activation.SQRT, Activation.RSQRT):
            inputs = (abs(inputs[0]) + 0.1, inputs[1])  # below 0 RLX has a rule, see below
        if name == "relu_backward":
            # At 0 JAX halves the gradient of a maximum, and NaN has none.
            inputs = tuple(np.where(np.isfinite(a) & (a != 0), a, 1.0) for a in inputs)
        case = CASES[name](op, *inputs)
        found = op.evaluate(*inputs)
        results = found if isinstance(found, tuple) else (found,)
        wanted = case.gradients()
        if name == "attention_backward_all":
            wanted = [np.concatenate(wanted)]
        if name == "eigh_backward":
            wanted = [(g + np.swapaxes(g, -1, -2)) / 2 for g in wanted]
        for got, want in zip(results, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-9, err_msg=f"{op!r}")


def test_attention_samples_cover_every_mask_and_part() -> None:
    kinds = {s.op.attributes()["mask_kind"] for s in TABLE["attention_backward"]}
    parts = {s.op.attributes()["wrt"] for s in TABLE["attention_backward"]}
    assert kinds == set(MaskKind)
    assert parts == set(AttentionBackwardWrt)


ATTENTION = [
    (kind, rows)
    for kind in MaskKind
    for rows in ("zeros", "nan", "uniform")
    if kind is not MaskKind.NONE or rows == "zeros"
]


@pytest.mark.parametrize(("kind", "rows"), ATTENTION)
def test_attention(kind: MaskKind, rows: str, rng: np.random.Generator) -> None:
    q, dy = rng.uniform(-1, 1, (2, 2, 4, 6, 3))
    k, v = rng.uniform(-1, 1, (2, 2, 2, 4, 3))
    mask: list[Array] = []
    if kind is MaskKind.CUSTOM:
        mask = [np.asarray([[True, False, True, True], [False] * 4])]
    elif kind is MaskKind.BIAS:
        mask = [rng.uniform(-1, 1, (2, 1, 6, 4))]
    elif kind is MaskKind.LENGTHS:
        mask = [np.asarray([3, 0], np.int32)]
    shared: dict[str, Any] = {
        "num_heads": 4, "head_dim": 3, "mask_kind": kind, "masked_rows": rows, "layout": "bhsd",
        "score_scale": 0.8, "softcap": 1.5,
        "window": 1 if kind is MaskKind.SLIDING_WINDOW else None,
    }  # fmt: skip
    parts = list(AttentionBackwardWrt)[: 4 if kind is MaskKind.BIAS else 3]
    case = Case(Attention(**shared), (q, k, v, *mask), dy, wrt=range(len(parts)))
    for wrt, wanted in zip(parts, case.gradients(), strict=True):
        found = AttentionBackward(wrt=wrt, **shared).evaluate(q, k, v, dy, *mask)
        np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-10, err_msg=wrt.value)


def test_round_passes_the_gradient_on(rng: np.random.Generator) -> None:
    x, dy = rng.uniform(-3, 3, (2, 9))
    found = ActivationBackward(kind=Activation.ROUND).evaluate(x, dy)
    np.testing.assert_array_equal(found, dy)


@pytest.mark.parametrize(
    ("kind", "at", "slope"),
    [
        ("abs", 0.0, 0.0),
        ("relu", 0.0, 0.0),
        ("sqrt", 0.0, 0.0),
        ("sqrt", -1.0, 0.0),
        ("rsqrt", 0.0, 0.0),
        ("rsqrt", -2.0, 0.0),
        ("tan", 0.5, 1 + np.tan(0.5) ** 2),
        ("hard_sigmoid", 3.0, 0.0),
        ("hard_swish", -3.0, 0.0),
        ("sign", 2.0, 0.0),
        ("floor", 2.5, 0.0),
    ],
)
def test_slopes_where_rlx_chooses(kind: str, at: float, slope: float) -> None:
    op = ActivationBackward(kind=Activation(kind))
    found = op.evaluate(np.asarray([at]), np.asarray([2.0]))
    np.testing.assert_allclose(found, [2.0 * slope], rtol=1e-12)


def test_complex_norm_sq(rng: np.random.Generator) -> None:
    z, g = rng.normal(size=5) + 1j * rng.normal(size=5), rng.normal(size=5)
    found = ComplexNormSqBackward().evaluate(z, g)
    np.testing.assert_allclose(found, g * z)
    with enable_x64():
        _, back = jax.vjp(lambda z: z.real**2 + z.imag**2, z)
        np.testing.assert_allclose(np.conj(np.asarray(back(g)[0])) / 2, found, rtol=1e-12)
