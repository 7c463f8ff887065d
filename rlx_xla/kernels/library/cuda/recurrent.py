"""LSTM, GRU and plain recurrent networks on NVIDIA GPUs (``cuda/recurrent.cu``).

XLA runs each step as kernels of its own, which read all weights again. Here eight neighbouring
multiprocessors hold the weights of a direction in registers and hand each other the hidden state.
What x adds to the gates stays one large product of XLA's.

Wider networks than registers have room for keep a part of the weights in shared memory
(``lstm.cuda.wide`` and so on): 1.3 to 3 times as fast as XLA's loop for few sequences (H200).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

from rlx import dims
from rlx.dtypes import DType
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Op
from rlx.ops.dot import DotGeneral
from rlx.ops.sequence import Gru, Lstm, Rnn
from rlx.ops.sequence.loops import leaf, spread
from rlx.ops.shape import Concatenate, Slice
from rlx.types import TensorType
from rlx_xla._jax_compat import gpu
from rlx_xla.kernels import ptx
from rlx_xla.kernels.base import AbstractKernel, Refused, Supported
from rlx_xla.kernels.ptx import Launch
from rlx_xla.kernels.select import register_kernel

if TYPE_CHECKING:
    from rlx_xla._jax_compat.mlir import ir
    from rlx_xla.lowering.context import LoweringContext

Network: TypeAlias = "Lstm | Gru | Rnn"

_DTYPES = (DType.F32, DType.BF16, DType.F16)
_CLUSTER, _LANES = 8, 16
_WIDEST = 256
"""Most hidden units: a cluster's registers hold the weights of no more."""

_WIDEST_APART = {"lstm": 384, "gru": 448, "rnn": 512}
"""Most hidden units of which registers and shared memory of a cluster hold the weights."""

_REGISTERS = 16_384
"""Registers of a quarter of a multiprocessor, of 32 bits; warps are dealt to quarters in turn."""

_OWN_REGISTERS = 56
"""Registers of a thread that hold no weights."""

_SHARED = 227 * 1024
"""Shared memory of a block, in bytes."""

_CLUSTERS = 14
"""Clusters of eight that a GPU with 132 multiprocessors runs at once."""

_MOST_SEQUENCES = 128
_MOST_APART = {"lstm": 48, "gru": 48, "rnn": 24}
"""With more, in both directions together, XLA's products of all sequences at once are as fast."""


@final
@dataclass(frozen=True, kw_only=True)
class _RecurrentKernel(AbstractKernel):
    """One launch for each layer of a network.

    Attributes:
        wide: whether weights may lie in shared memory.
    """

    wide: bool = False

    def supports(self, op: Op, types: Sequence[TensorType], platform: str) -> Supported | Refused:
        del platform
        assert isinstance(op, Lstm | Gru | Rnn)
        refused = _refused(op, types, wide=self.wide)
        return ptx.available() if refused is None else refused

    def lower(self, ctx: LoweringContext, op: Any, *operands: ir.Value) -> Any:
        return _Layers(ctx, op, self.name).lower(operands)


def _refused(op: Network, types: Sequence[TensorType], *, wide: bool) -> Refused | None:
    x = types[0]
    if x.dtype not in _DTYPES:
        return Refused(f"x is {x.dtype} and none of {', '.join(map(str, _DTYPES))}")
    sizes = [size for size in x.shape if isinstance(size, int)]
    if len(sizes) != x.rank:
        return Refused(f"{x} is not static")
    if isinstance(op, Lstm) and op.cells:
        return Refused("cells=True: it keeps the cell states of the last step alone")
    if types[-1].dtype is DType.BOOL:
        return Refused(f"mask {types[-1]}: its clusters take every step of every sequence")
    if isinstance(op, Gru) and not op.reset_after:
        return Refused("reset_after=False: a second product of each step would wait for the first")
    batch, length, width = sizes
    if not width or not length or not 1 <= batch <= _MOST_SEQUENCES:
        return Refused(f"{x} is empty, or has more than {_MOST_SEQUENCES} sequences")
    most = _MOST_APART[op.op_name]
    if wide and batch * (2 if op.bidirectional else 1) > most:
        return Refused(f"{x} has more than {most} sequences of a direction")
    widest = _WIDEST_APART[op.op_name] if wide else _WIDEST
    if op.hidden_size > widest:
        where = "registers and shared memory" if wide else "registers"
        return Refused(
            f"hidden_size {op.hidden_size} is above {widest}: its weights do not fit into {where}"
        )
    capability = gpu.compute_capability()
    if capability is None or float(capability) < 9.0:
        return Refused(f"clusters of blocks need compute capability 9.0; found {capability}")
    return None


def _gates(op: Network) -> int:
    return 4 if isinstance(op, Lstm) else 3 if isinstance(op, Gru) else 1


def _kind(op: Network) -> int:
    if isinstance(op, Rnn):
        return 3 if op.relu else 2
    return 0 if isinstance(op, Lstm) else 1


def launch(op: Network, batch: int, length: int) -> Launch:
    """How a layer is started."""
    directions = 2 if op.bidirectional else 1
    gates = _gates(op)
    wide = op.hidden_size > _WIDEST
    rows = next(
        (r for r in (1, 2, 4) if -(-batch // r) * directions <= _CLUSTERS), 4 if wide else 8
    )
    units = -(-op.hidden_size // _CLUSTER)
    threads = -(-units * _LANES // 32) * 32
    each = -(-op.hidden_size // 64) * 64 // _LANES
    kept = _kept(gates, each, rows, threads) if wide else each
    return Launch(
        entry="recurrent",
        grid=(-(-batch // rows) * _CLUSTER, directions),
        block=(threads,),
        shared_bytes=4 * gates * (each - kept) * threads,
        defines={
            "B": batch,
            "L": length,
            "D": directions,
            "H": op.hidden_size,
            "G": gates,
            "ROWS": rows,
            "KIND": _kind(op),
            "CARRY": int(op.carry),
            "KEPT": kept,
        },
    )


def _kept(gates: int, each: int, rows: int, threads: int) -> int:
    """How many of the ``each`` columns that a thread has of a gate lie in registers, in fours.

    As many as there is room for; more, which the compiler then moves to memory, where the others
    would not fit into shared memory.
    """
    registers = _REGISTERS // (32 * -(-threads // 128)) // 8 * 8
    most = min(each, (registers - _OWN_REGISTERS) // gates // 4 * 4)
    room = _SHARED - 4 * 2 * rows * each * _LANES  # beside the hidden states
    least = each - room // (4 * gates * threads) // 4 * 4
    return max(4, most, least)


@final
class _Layers:
    """A network's layers, one after another."""

    def __init__(self, ctx: LoweringContext, op: Network, kernel: str) -> None:
        """Remember sizes."""
        self.ctx, self.op, self.kernel = ctx, op, kernel
        self.directions = 2 if op.bidirectional else 1
        self.rows = _gates(op) * op.hidden_size
        self.batch, self.length, _ = (dims.evaluate(d, {}) for d in ctx.input_types[0].shape)

    def lower(self, operands: Sequence[ir.Value]) -> list[ir.Value]:
        x, *others = operands
        types = list(self.ctx.input_types[1:])
        kind = self.ctx.input_types[0]
        last: list[list[ir.Value]] = []
        offset = 0
        for layer in range(self.op.num_layers):
            taken, offset = self._enter(layer, offset, kind, types, [x, *others])
            results = self._results()
            x, *states = ptx.call(
                self.ctx,
                self.kernel,
                "recurrent.cu",
                launch(self.op, self.batch, self.length),
                taken,
                results,
            )
            wide = self.directions * self.op.hidden_size
            kind = TensorType(DType.F32, (self.batch, self.length, wide))
            x = self._inline("flat", [results[0]], [x], _reshape_to(kind))[0]
            last.append(states)
        return self._finish(x, kind, last)

    def _results(self) -> list[TensorType]:
        states = 2 if isinstance(self.op, Lstm) else 1
        shape = (self.batch, self.length, self.directions, self.op.hidden_size)
        state = TensorType(DType.F32, (self.directions, self.batch, self.op.hidden_size))
        return [TensorType(DType.F32, shape), *[state] * states]

    def _enter(
        self,
        layer: int,
        offset: int,
        kind: TensorType,
        types: Sequence[TensorType],
        operands: Sequence[ir.Value],
    ) -> tuple[list[ir.Value], int]:
        """What a layer's launch reads, and where the next layer's input weights start."""
        width = dims.evaluate(kind.shape[2], {})
        size = self.directions * self.rows * width
        first = layer * self.directions

        def build(x: Value, w_ih: Value, w_hh: Value, bias: Value, *rest: Value) -> list[Value]:
            mine = _part(w_ih, offset, size).reshape(self.directions * self.rows, width)
            here = [
                _part(v, first, self.directions).convert(DType.F32) for v in (w_hh, bias, *rest)
            ]
            product = DotGeneral(
                lhs_contracting=(2,), rhs_contracting=(1,), lhs_batch=(), rhs_batch=()
            )(x.convert(DType.F32), mine.convert(DType.F32))
            added = here[1].reshape(self.directions * self.rows)
            entering = product + spread(added, product.shape, 2)
            return [entering, here[0], *here[2:]]

        return self._inline("enter", [kind, *types], operands, build), offset + size

    def _finish(
        self, y: ir.Value, kind: TensorType, last: Sequence[Sequence[ir.Value]]
    ) -> list[ir.Value]:
        """The results in the op's dtype; the states of all layers joined."""
        dtype = self.ctx.output_types[0].dtype
        states = [list(values) for values in zip(*last, strict=True)] if self.op.carry else []
        state = self._results()[1]

        def build(y: Value, *values: Value) -> list[Value]:
            layers = self.op.num_layers
            groups = [values[i : i + layers] for i in range(0, len(values), layers)]
            joined = [g[0] if layers == 1 else Concatenate(axis=0)(*g) for g in groups]
            return [value.convert(dtype) for value in (y, *joined)]

        flat = [value for values in states for value in values]
        return self._inline("leave", [kind, *[state] * len(flat)], [y, *flat], build)

    def _inline(
        self,
        name: str,
        types: Sequence[TensorType],
        operands: Sequence[ir.Value],
        build: Callable[..., list[Value]],
    ) -> list[ir.Value]:
        leaves = [leaf(f"x{i}", type_) for i, type_ in enumerate(types)]
        graph = Graph(leaves, (), tuple(build(*leaves)), name=name)
        return self.ctx.inline(graph, list(operands))


def _part(x: Value, start: int, count: int) -> Value:
    """Rows of the first axis."""
    others = [dims.evaluate(size, {}) for size in x.shape[1:]]
    return Slice(
        start_indices=(start, *[0] * len(others)),
        limit_indices=(start + count, *others),
        strides=(1,) * x.rank,
    )(x)


def _reshape_to(type_: TensorType) -> Callable[[Value], list[Value]]:
    return lambda y: [y.reshape(*type_.shape)]


for _op in (Lstm, Gru, Rnn):
    register_kernel(_RecurrentKernel(name=f"{_op.op_name}.cuda.ptx", op=_op, platforms=("cuda",)))
    register_kernel(
        _RecurrentKernel(
            name=f"{_op.op_name}.cuda.wide",
            op=_op,
            platforms=("cuda",),
            priority=-1,
            wide=True,
        )
    )
