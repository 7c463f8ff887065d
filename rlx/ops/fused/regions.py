"""Regions: several elementwise steps that run as one loop over the elements."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from rlx import dims
from rlx.errors import DimError, DTypeError, InconclusiveDimError, ShapeError
from rlx.ir.op import Op, define_op
from rlx.types import Shape, TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Graph, Value

_FAMILIES = (
    "arithmetic", "transcendental", "special", "bitwise", "compare", "activation", "convert",
)  # fmt: skip
"""Families of ops whose result at a place depends on their operands at that place alone."""

_NOT_ELEMENTWISE = ("optimization_barrier",)
"""Ops of those families that are for whole tensors."""


@final
class RegionPrologue(enum.Enum):
    """What happens to one input of a region before the steps."""

    NONE = "none"
    RESIZE_NEAREST_2X = "resize_nearest_2x"
    """NCHW, every pixel repeated to a square of two by two."""


@final
class TransformStep(enum.Enum):
    """A step of `transform_region`."""

    RESIZE_NEAREST_2X = "resize_nearest_2x"
    """NCHW, every pixel repeated to a square of two by two."""


@define_op("elementwise_region")
class ElementwiseRegion(Op):
    """Elementwise steps over inputs that broadcast as NumPy's do.

    y[p] = body(*(x[p] for x in xs)) at every place p of the common shape

    Inputs:
        xs: T[...]   one for each input of the body; any shapes that broadcast.

    Attributes:
        body: the steps, as a graph on scalars: its inputs, values and outputs have rank 0.
        prologue: what happens first to the input number prologue_input.
        prologue_input: which input that is.

    Result:
        For each output of the body its dtype, of the shape to which xs (after the prologue)
        broadcast.

    Constraints:
        C1: body has no params and no effects, an input for each of xs and at least one output.
        C2: body holds elementwise ops on scalars, and constants.
        C3: each of xs has the dtype of its input of the body.
        C4: xs broadcast.
        C5: prologue_input is an input of rank 4 where there is a prologue, and 0 otherwise.

    Numerics: each step rounds as its op does.
    Source: RLX `Op::ElementwiseRegion`, whose chain of steps is the body here and whose modulus
    per input is NumPy's broadcasting.
    """

    body: Graph
    prologue: RegionPrologue = RegionPrologue.NONE
    prologue_input: int = 0

    def infer(self, *xs: TensorType) -> TensorType | tuple[TensorType, ...]:
        _check_body(self, self.body, xs, len(xs))
        shapes = [x.shape for x in xs]
        number, some = self.prologue_input, self.prologue is not RegionPrologue.NONE
        self.require(
            "C5",
            0 <= number < len(xs) and xs[number].rank == 4 if some else number == 0,
            f"prologue_input is required to be the number of an input of rank 4 where there is a "
            f"prologue, and 0 otherwise; got {number} with {self.prologue.value} and "
            f"{_listing(xs)}.",
        )
        if some:
            shapes[number] = _doubled(shapes[number])
        return _results(self.body, _common(self, "C4", shapes, xs))

    def decompose(self, *xs: Value) -> Value | tuple[Value, ...]:
        ready = list(xs)
        if self.prologue is not RegionPrologue.NONE:
            ready[self.prologue_input] = _resized(ready[self.prologue_input])
        shape = dims.broadcast_shapes(*(x.shape for x in ready))
        made = lift(self.body, [x.broadcast_to(shape) for x in ready], shape)
        return made[0] if len(made) == 1 else made


@define_op("batch_elementwise_region")
class BatchElementwiseRegion(Op):
    """The same elementwise steps over several slices, which are then joined.

    y = concatenate(region(x, *shared) for x in slices)   along axis 0

    Inputs:
        xs: T[R, ...]   the slices, of one type; then what all of them share, each of which
            broadcasts to a slice.

    Attributes:
        body: the steps, as a graph on scalars: inputs for an element of a slice, then for each
            shared one.
        num_batch_inputs: how many of xs are slices.

    Result:
        For each output of the body its dtype, of shape [num_batch_inputs · R, ...].

    Constraints:
        C1: body has no params and no effects, an input for a slice and for each shared one, and
            at least one output.
        C2: body holds elementwise ops on scalars, and constants.
        C3: each of xs has the dtype of its input of the body.
        C4: num_batch_inputs is from 1 to the number of xs; the slices have one shape of rank ≥ 1,
            to which the shared inputs broadcast.

    Source: RLX `Op::BatchElementwiseRegion`.
    """

    body: Graph
    num_batch_inputs: int

    def infer(self, *xs: TensorType) -> TensorType | tuple[TensorType, ...]:
        count = self.num_batch_inputs
        self.require(
            "C4",
            1 <= count <= len(xs) and xs[0].rank >= 1,
            f"num_batch_inputs is required to be from 1 to the number of inputs, of rank ≥ 1; got "
            f"{count} with {_listing(xs)}.",
        )
        shape = xs[0].shape
        for x in xs[1:count]:
            text = f"slices are required to have one shape; got {_listing(xs[:count])}. Pad them."
            self.require_same_dims("C4", x.shape, shape, text)
        for x in xs[:count]:
            _check_body(self, self.body, (x, *xs[count:]), len(xs) - count + 1)
        common = _common(self, "C4", [shape, *(x.shape for x in xs[count:])], xs)
        text = f"shared inputs are required to broadcast to a slice: {xs[0]}; got {_listing(xs)}."
        self.require_same_dims("C4", common, shape, text)
        return _results(self.body, (shape[0] * count, *shape[1:]))

    def decompose(self, *xs: Value) -> Value | tuple[Value, ...]:
        from rlx.ops.shape import Concatenate

        count, shape = self.num_batch_inputs, xs[0].shape
        shared = [x.broadcast_to(shape) for x in xs[count:]]
        parts = [lift(self.body, [x, *shared], shape) for x in xs[:count]]
        joined = tuple(Concatenate(axis=0)(*column) for column in zip(*parts, strict=True))
        return joined[0] if len(joined) == 1 else joined


@define_op("transform_region")
class TransformRegion(Op):
    """Steps that move elements, each applied to an input or to an earlier step.

    resize_nearest_2x: y[n, c, i, j] = x[n, c, ⌊i / 2⌋, ⌊j / 2⌋]

    Inputs:
        xs: T[N, C, H, W]

    Attributes:
        steps: (what to do, what to do it to); the operand counts the inputs first, then the
            steps: with two inputs, 2 is the result of the first step.

    Result:
        The last step's.

    Constraints:
        C1: there is at least one input and one step.
        C2: each step's operand is an input or an earlier step.
        C3: every operand has rank 4.

    Source: RLX `Op::TransformRegion`.
    """

    steps: tuple[tuple[TransformStep, int], ...]

    def infer(self, *xs: TensorType) -> TensorType:
        self.require(
            "C1",
            bool(xs) and bool(self.steps),
            f"at least one input and one step are required; got {len(xs)} and {len(self.steps)}.",
        )
        known = list(xs)
        for number, (step, operand) in enumerate(self.steps):
            self.require(
                "C2",
                0 <= operand < len(known),
                f"steps[{number}] is required to read an input or an earlier step, 0 to "
                f"{len(known) - 1}; got {operand}. Inputs come first.",
            )
            found = known[operand]
            self.require(
                "C3",
                found.rank == 4,
                f"{step.value} is required to read a tensor of rank 4; got {found}. Reshape it.",
            )
            known.append(found.with_shape(_doubled(found.shape)))
        return known[-1]

    def decompose(self, *xs: Value) -> Value:
        known = list(xs)
        for _, operand in self.steps:
            known.append(_resized(known[operand]))
        return known[-1]


def lift(body: Graph, arrays: Sequence[Value], shape: Shape) -> tuple[Value, ...]:
    """Apply a graph on scalars at every place of a shape.

    Args:
        body: elementwise ops on scalars.
        arrays: a value of the shape for each input of the body.
        shape: the common shape.

    Returns:
        A value of the shape for each output of the body.
    """
    from rlx.ir.graph import make_node

    known = dict(zip(body.inputs, arrays, strict=True))
    for node in body.nodes():
        if node.results[0] in known:
            continue
        if not node.inputs:  # a constant
            known[node.results[0]] = node.results[0].broadcast_to(shape)
            continue
        made = make_node(node.op, [known[v] for v in node.inputs])
        known.update(zip(node.results, made.results, strict=True))
    return tuple(known[v] for v in body.outputs)


def is_elementwise(op: Op) -> bool:
    """Whether an op may stand in a region."""
    module = type(op).__module__.split(".")
    ours = module[:2] == ["rlx", "ops"] and module[2] in _FAMILIES
    return ours and op.op_name not in _NOT_ELEMENTWISE and not op.holds_graphs


def _check_body(op: Op, body: Graph, xs: Sequence[TensorType], count: int) -> None:
    """Check C1, C2 and C3."""
    op.require(
        "C1",
        not body.params and not body.effects and len(body.inputs) == count and bool(body.outputs),
        f"body is required to have {count} inputs, at least one output, no params and no effects; "
        f"got {body!r}.",
    )
    for node in body.nodes():
        leaf = node.op.op_name in ("input", "constant")
        op.require(
            "C2",
            (leaf or (is_elementwise(node.op) and bool(node.inputs)))
            and all(t.rank == 0 for t in node.types),
            f"body is required to hold elementwise ops on scalars; got {node!r}. "
            "Leave it outside the region.",
        )
    for number, (x, leaf) in enumerate(zip(xs, body.inputs, strict=True)):
        op.require(
            "C3",
            x.dtype is leaf.type.dtype,
            f"xs[{number}] is required to be {leaf.type.dtype}, as its input of the body; "
            f"got {x}. Convert it.",
            DTypeError,
        )


def _common(op: Op, label: str, shapes: Sequence[Shape], xs: Sequence[TensorType]) -> Shape:
    try:
        return dims.broadcast_shapes(*shapes)
    except DimError as error:
        kind = InconclusiveDimError if isinstance(error, InconclusiveDimError) else ShapeError
        raise kind(
            f"{op.op_name} [{label}]: inputs are required to broadcast; got {_listing(xs)}. "
            f"{error}",
            label=label,
        ) from error


def _results(body: Graph, shape: Shape) -> TensorType | tuple[TensorType, ...]:
    types = tuple(v.type.with_shape(shape) for v in body.outputs)
    return types[0] if len(types) == 1 else types


def _listing(xs: Sequence[TensorType]) -> str:
    return ", ".join(map(str, xs)) or "no inputs"


def _doubled(shape: Shape) -> Shape:
    return (*shape[:2], *(2 * size for size in shape[2:]))


def _resized(x: Value) -> Value:
    from rlx.ops.shape import ResizeNearest2x

    made: Value = ResizeNearest2x()(x)
    return made
