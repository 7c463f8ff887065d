"""PyTorch's functions and modules, against what our ops mean, on drawn inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.dtypes import as_dtype
from rlx.ir.graph import Graph, Value
from rlx.ir.interpret import run
from rlx.ops.io import Input
from rlx.ops.pooling import WindowKind
from rlx.ops.shape import EdgeMode

torch = pytest.importorskip("torch", reason="PyTorch is what results are compared with")
pytestmark = pytest.mark.slow

OPS: Any = ops  # classes by name
F = torch.nn.functional
RNG = np.random.default_rng()


def reals(*shape: int, low: float = -3.0, high: float = 3.0) -> Any:
    return RNG.uniform(low, high, shape)


def ints(high: int, *shape: int) -> Any:
    return RNG.integers(0, high, shape)


def check(ours: Any, theirs: Callable[..., Any], *arrays: Any, rtol: float = 1e-9) -> None:
    """Compare an op, or a function of graph values, with a function of tensors."""
    leaves = [
        Input(name=f"x{i}", dtype=as_dtype(a.dtype), shape=a.shape)() for i, a in enumerate(arrays)
    ]
    made = ours(*leaves)
    outputs = [made] if isinstance(made, Value) else list(made)
    found = run(Graph(leaves, (), outputs), list(arrays))
    wanted = theirs(*map(torch.from_numpy, arrays))
    expected = wanted if isinstance(wanted, tuple | list) else [wanted]
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=rtol, atol=rtol)


UNARY = {
    "Erf": (torch.erf, -3, 3), "Erfc": (torch.erfc, -3, 3), "ErfInv": (torch.erfinv, -0.99, 0.99),
    "Lgamma": (torch.lgamma, 0.1, 9), "Digamma": (torch.digamma, 0.1, 9),
    "BesselI0e": (torch.special.i0e, -9, 9), "BesselI1e": (torch.special.i1e, -9, 9),
    "Expm1": (torch.expm1, -3, 3), "Log1p": (torch.log1p, -0.9, 3), "Exp2": (torch.exp2, -3, 3),
    "Logistic": (torch.sigmoid, -9, 9), "Rsqrt": (torch.rsqrt, 0.1, 9), "Tan": (torch.tan, -1, 1),
    "Asin": (torch.asin, -1, 1), "Acosh": (torch.acosh, 1, 9), "Atanh": (torch.atanh, -0.9, 0.9),
    "Softplus": (F.softplus, -9, 9), "Silu": (F.silu, -9, 9), "Mish": (F.mish, -9, 9),
    "HardSwish": (F.hardswish, -9, 9), "HardSigmoid": (F.hardsigmoid, -9, 9),
    "LogSigmoid": (F.logsigmoid, -9, 9), "Softsign": (F.softsign, -9, 9),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number(name: str) -> None:
    function, low, high = UNARY[name]
    # Softplus of PyTorch is x itself from 20 on, and its i0e and i1e are good to 1e-7.
    rtol = 1e-6 if name.startswith("Bessel") else 1e-9
    check(getattr(OPS, name)(), function, reals(50, low=low, high=high), rtol=rtol)


def test_functions_of_two_numbers() -> None:
    a, x = reals(50, low=0.1, high=9), reals(50, low=0.1, high=9)
    check(OPS.Igamma(), torch.special.gammainc, a, x)
    check(OPS.Igammac(), torch.special.gammaincc, a, x)
    check(OPS.Zeta(), torch.special.zeta, a + 1, x)
    check(OPS.Atan2(), torch.atan2, reals(50), reals(50))
    check(OPS.Rem(), torch.fmod, reals(50), reals(50))
    check(OPS.NextAfter(), torch.nextafter, reals(50), reals(50))
    check(lambda v: v.gelu(), F.gelu, reals(50))
    check(lambda v: v.gelu(approximate=True), lambda t: F.gelu(t, approximate="tanh"), reals(50))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions(rank: int, groups: int) -> None:
    strides, pads, gaps = ((2, 1, 1)[:rank], (1, 0, 2)[:rank], (1, 2, 1)[:rank])
    x, w = reals(2, 4, *(7, 8, 6)[:rank]), reals(6, 4 // groups, *(3, 2, 3)[:rank])
    conv = OPS.Conv(stride=strides, padding=pads, dilation=gaps, groups=groups)
    theirs = getattr(F, f"conv{rank}d")
    check(conv, lambda a, b: theirs(a, b, None, strides, pads, gaps, groups), x, w)
    w = reals(4, 6 // groups, *(3, 2, 3)[:rank])
    extra = (1, 0, 0)[:rank]
    back = OPS.ConvTranspose(
        stride=strides, padding=pads, output_padding=extra, dilation=gaps, groups=groups
    )
    theirs_back = getattr(F, f"conv_transpose{rank}d")
    check(back, lambda a, b: theirs_back(a, b, None, strides, pads, extra, groups, gaps), x, w)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pooling(rank: int) -> None:
    x = reals(2, 3, *(7, 8, 6)[:rank])
    kernel, stride, padding = ((3, 2, 2)[:rank], (2, 1, 2)[:rank], (1, 1, 0)[:rank])
    around = {"kernel": kernel, "stride": stride, "padding": padding}
    theirs_max, theirs_mean = (getattr(F, f"{n}_pool{rank}d") for n in ("max", "avg"))
    check(
        OPS.Pool(kind=WindowKind.MAX, **around), lambda t: theirs_max(t, kernel, stride, padding), x
    )
    mean = OPS.Pool(kind=WindowKind.SUM, mean=True, **around)
    check(mean, lambda t: theirs_mean(t, kernel, stride, padding), x)


def test_windows_as_rows() -> None:
    op = OPS.Im2Col(kernel=(3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2))

    def theirs(t: Any) -> Any:
        columns = F.unfold(t, (3, 2), (1, 2), (1, 0), (2, 1))
        return columns.transpose(1, 2).reshape(-1, columns.shape[1])

    check(op, theirs, reals(2, 3, 7, 6))


MODES = {
    EdgeMode.REFLECT: "reflect",
    EdgeMode.REPLICATE: "replicate",
    EdgeMode.CIRCULAR: "circular",
}


@pytest.mark.parametrize("mode", MODES)
def test_edges(mode: EdgeMode) -> None:
    op = OPS.PadEdges(low=(0, 0, 2, 1), high=(0, 0, 1, 3), mode=mode)
    check(op, lambda t: F.pad(t, (1, 3, 2, 1), MODES[mode]), reals(2, 3, 5, 4))


def test_movement() -> None:
    x = reals(3, 4, 5)
    check(OPS.Roll(shifts=(2, -1), axes=(0, 2)), lambda t: torch.roll(t, (2, -1), (0, 2)), x)
    check(OPS.Tile(reps=(2, 1, 3)), lambda t: t.repeat(2, 1, 3), x)
    check(OPS.Reverse(axes=(0, 2)), lambda t: torch.flip(t, (0, 2)), x)
    for diagonal in (-1, 0, 2):
        check(OPS.Trilu(upper=True, diagonal=diagonal), lambda t: torch.triu(t, diagonal), x)  # noqa: B023
        check(OPS.Trilu(upper=False, diagonal=diagonal), lambda t: torch.tril(t, diagonal), x)  # noqa: B023
    check(OPS.ResizeNearest2x(), lambda t: F.interpolate(t, scale_factor=2), reals(2, 3, 4, 5))
    for size in ((6, 4, 10), (2, 9, 3)):
        check(OPS.Interpolate3d(size=size), lambda t: F.interpolate(t, size), reals(1, 2, 3, 4, 5))  # noqa: B023
    check(OPS.Gather(axis=1), lambda t, i: t[:, i], x, ints(4, 2, 6))
    check(OPS.GatherElements(axis=1), lambda t, i: torch.gather(t, 1, i), x, ints(4, 3, 7, 5))
    check(
        OPS.ScatterAdd(size=6, axis=1),
        lambda t, i: torch.zeros(3, 6, 5, dtype=t.dtype).index_add(1, i, t),
        x,
        ints(6, 4),
    )


def test_reductions() -> None:
    x = reals(4, 6)
    check(OPS.CumSum(axis=1), lambda t: torch.cumsum(t, 1), x)
    check(OPS.CumProd(axis=0), lambda t: torch.cumprod(t, 0), x)
    check(OPS.CumMax(axis=1), lambda t: torch.cummax(t, 1)[0], x)
    check(OPS.CumLogSumExp(axis=1), lambda t: torch.logcumsumexp(t, 1), x)
    check(OPS.LogSumExp(axis=1), lambda t: torch.logsumexp(t, 1), x)
    check(OPS.TopK(k=3), lambda t: tuple(torch.topk(t, 3)), x)
    check(OPS.ArgSort(axis=0, descending=True), lambda t: torch.argsort(t, 0, descending=True), x)
    check(OPS.Softmax(axis=0), lambda t: torch.softmax(t, 0), x)
    check(OPS.LogSoftmax(axis=1), lambda t: torch.log_softmax(t, 1), x)
    single = x.astype(np.float32)
    check(
        OPS.Histogram(bins=5, low=-2.0, high=2.0),
        lambda t: torch.histc(t, 5, -2, 2).to(torch.float32),
        single,
    )


def test_norms() -> None:
    x, gamma, beta = reals(2, 6, 4, 3), reals(6), reals(6)
    check(
        OPS.GroupNorm(num_groups=3, eps=1e-5),
        lambda t, g, b: F.group_norm(t, 3, g, b),
        x,
        gamma,
        beta,
    )
    last = reals(3), reals(3)
    check(OPS.LayerNorm(axis=3, eps=1e-5), lambda t, g, b: F.layer_norm(t, (3,), g, b), x, *last)
    check(OPS.RmsNorm(axis=3, eps=1e-5), lambda t, g, b: F.rms_norm(t, (3,), g, 1e-5) + b, x, *last)
    mean, variance = reals(6), reals(6, low=0.1)

    def theirs(t: Any, *others: Any) -> Any:
        g, b, m, v = others
        return F.batch_norm(t.movedim(-1, 1), m, v, g, b).movedim(1, -1)

    flipped = reals(2, 4, 3, 6)
    check(OPS.BatchNormInference(eps=1e-5), theirs, flipped, gamma, beta, mean, variance)


def test_attention() -> None:
    q, k, v = reals(2, 4, 5, 8), reals(2, 2, 5, 8), reals(2, 2, 5, 8)
    theirs = F.scaled_dot_product_attention
    op = OPS.Attention(num_heads=4, head_dim=8, layout="bhsd")
    check(op, lambda *t: theirs(*t, enable_gqa=True), q, k, v)
    from rlx.ops.attention import MaskKind

    causal = op.replace(mask_kind=MaskKind.CAUSAL)
    check(causal, lambda *t: theirs(*t, is_causal=True, enable_gqa=True), q, k, v)
    bias = op.replace(mask_kind=MaskKind.BIAS, score_scale=0.5)
    check(
        bias,
        lambda a, b, c, m: theirs(a, b, c, m, scale=0.5, enable_gqa=True),
        q, k, v, reals(2, 4, 5, 5),
    )  # fmt: skip


def test_losses() -> None:
    check(
        OPS.SoftmaxCrossEntropyWithLogits(),
        lambda x, i: F.cross_entropy(x, i, reduction="none"),
        reals(7, 5),
        ints(5, 7),
    )
    target = torch.softmax(torch.from_numpy(reals(7, 5)), 1).numpy()
    check(
        OPS.SoftmaxCrossEntropy(),
        lambda x, t: F.cross_entropy(x, t, reduction="none"),
        reals(7, 5),
        target,
    )


def test_linear_algebra() -> None:
    a, b = reals(2, 4, 4) + 6 * np.eye(4), reals(2, 4, 3)
    check(OPS.DenseSolve(), torch.linalg.solve, a, b)
    check(OPS.Det(), torch.linalg.det, a)
    check(OPS.LogDet(), lambda t: torch.linalg.slogdet(t)[1], a)
    symmetric = a @ a.swapaxes(-1, -2)
    check(OPS.Cholesky(), torch.linalg.cholesky, symmetric)
    check(lambda x: OPS.Eigh()(x)[1], torch.linalg.eigvalsh, symmetric)
    check(lambda x: OPS.EighBatch()(x).narrow(-1, 0, 4), torch.linalg.eigvalsh, symmetric)
    check(lambda x: OPS.Svd()(x)[0], torch.linalg.svdvals, b)
    check(lambda x: abs(OPS.Qr()(x)[1]), lambda t: torch.linalg.qr(t)[1].abs(), b)
    x, w, ids = reals(9, 4), reals(3, 4, 5), ints(3, 9)
    check(OPS.GroupedMatmul(), lambda t, u, i: (t[:, None] @ u[i])[:, 0], x, w, ids)
    down, up = reals(4, 2), reals(2, 5)
    check(
        OPS.LoraMatmul(scale=0.5),
        lambda t, u, p, q: t @ u + 0.5 * t @ p @ q,
        x, reals(4, 5), down, up,
    )  # fmt: skip
