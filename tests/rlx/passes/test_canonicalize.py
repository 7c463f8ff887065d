"""Each rule of canonicalize: a graph before, and the graph expected; and what must stay."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.dtypes import DType
from rlx.ir.builder import GraphBuilder
from rlx.ir.graph import Graph, same
from rlx.ir.interpret import interpret
from rlx.ir.text_parse import parse
from rlx.ops.convolution import ConvGeneralDilated
from rlx.ops.shape import BroadcastInDim, Transpose
from rlx.passes import Canonicalize, PassContext
from rlx.types import TensorType

# Inputs, the nodes before, and what the result's nodes are expected to be ("" for x itself).
CASES = {
    "neg_of_neg": ("x: f32[4]", "%0 = neg(%x): f32[4]; %1 = neg(%0): f32[4]", ""),
    "add_of_minus_zero": (
        "x: f32[4]",
        "%0 = constant [-0.0, -0.0, -0.0, -0.0]: f32[4]; "
        "%1 = add(%x, %0): f32[4]",
        "",
    ),
    "add_of_broadcast_minus_zero": (
        "x: bf16[4]",
        "%0 = constant -0.0: bf16[]; "
        "%1 = broadcast_in_dim(%0) {shape = (4,), broadcast_dimensions = ()}: bf16[4]; "
        "%2 = add(%1, %x): bf16[4]",
        "",
    ),
    "add_of_integer_zero": (
        "x: i32[]",
        "%0 = constant 0: i32[]; %1 = add(%x, %0): i32[]",
        "",
    ),
    "sub_of_zero": (
        "x: f32[]",
        "%0 = constant 0.0: f32[]; %1 = sub(%x, %0): f32[]",
        "",
    ),
    "mul_by_one": (
        "x: f16[]",
        "%0 = constant 1.0: f16[]; %1 = mul(%0, %x): f16[]",
        "",
    ),
    "div_by_one": (
        "x: i32[]",
        "%0 = constant 1: i32[]; %1 = div(%x, %0): i32[]",
        "",
    ),
    "pow_of_one": (
        "x: f32[]",
        "%0 = constant 1.0: f32[]; %1 = pow(%x, %0): f32[]",
        "",
    ),
    "integer_pow_of_one": ("x: c64[3]", "%0 = integer_pow(%x) {exponent = 1}: c64[3]", ""),
    "max_of_itself": ("x: f32[3]", "%0 = max(%x, %x): f32[3]", ""),
    "clamp_twice": (
        "x: f32[3], lo: f32[], hi: f32[]",
        "%0 = clamp(%lo, %x, %hi): f32[3]; %1 = clamp(%lo, %0, %hi): f32[3]",
        "%0 = clamp(%lo, %x, %hi): f32[3]",
    ),
    "convert_to_itself": ("x: f32[3]", "%0 = convert(%x) {dtype = f32}: f32[3]", ""),
    "convert_there_and_back": (
        "x: f32[3]",
        "%0 = convert(%x) {dtype = f64}: f64[3]; %1 = convert(%0) {dtype = f32}: f32[3]",
        "",
    ),
    "convert_on_the_way": (
        "x: bf16[3]",
        "%0 = convert(%x) {dtype = f32}: f32[3]; %1 = convert(%0) {dtype = i8}: i8[3]",
        "%0 = convert(%x) {dtype = i8}: i8[3]",
    ),
    "convert_wider_integer_through_float": (
        "x: u8[3]",
        "%0 = convert(%x) {dtype = f32}: f32[3]; %1 = convert(%0) {dtype = i16}: i16[3]",
        "%0 = convert(%x) {dtype = i16}: i16[3]",
    ),
    "not_of_not": ("x: bool[3]", "%0 = not(%x): bool[3]; %1 = not(%0): bool[3]", ""),
    "exclusive_sum": (
        "x: f32[3, 4]",
        "%0 = cumsum(%x) {axis = 1, reverse = false, exclusive = true}: f32[3, 4]",
        "%0 = constant 0.0: f32[]; "
        "%1 = pad(%x, %0) {low = (0, 1), high = (0, -1), interior = (0, 0)}: f32[3, 4]; "
        "%2 = cumsum(%1) {axis = 1, reverse = false, exclusive = false}: f32[3, 4]",
    ),
    "exclusive_maximum_from_the_end": (
        "x: i8[4]",
        "%0 = cummax(%x) {axis = 0, reverse = true, exclusive = true}: i8[4]",
        "%0 = constant -128: i8[]; "
        "%1 = pad(%x, %0) {low = (-1,), high = (1,), interior = (0,)}: i8[4]; "
        "%2 = cummax(%1) {axis = 0, reverse = true, exclusive = false}: i8[4]",
    ),
    "and_of_itself": ("x: u8[3]", "%0 = and(%x, %x): u8[3]", ""),
    "or_with_no_bits": (
        "x: i32[]",
        "%0 = constant 0: i32[]; %1 = or(%x, %0): i32[]",
        "",
    ),
    "and_with_all_bits": (
        "x: i8[]",
        "%0 = constant -1: i8[]; %1 = and(%0, %x): i8[]",
        "",
    ),
    "and_with_true": (
        "x: bool[]",
        "%0 = constant true: bool[]; %1 = and(%0, %x): bool[]",
        "",
    ),
    "select_by_constant": (
        "y: f32[3], x: f32[3]",
        "%0 = constant false: bool[]; %1 = select(%0, %y, %x): f32[3]",
        "",
    ),
    "select_of_one_value": (
        "p: bool[3], x: f32[3]",
        "%0 = select(%p, %x, %x): f32[3]",
        "",
    ),
    "select_n_by_constant": (
        "y: f32[3], x: f32[3]",
        "%0 = constant 9: i32[]; %1 = select_n(%0, %y, %x): f32[3]",
        "",
    ),
    "reshape_to_itself": ("x: f32[b, 3]", "%0 = reshape(%x) {shape = (<b>, 3)}: f32[b, 3]", ""),
    "reshape_of_reshape": (
        "x: f32[b, 6]",
        "%0 = reshape(%x) {shape = (<b*6>,)}: f32[b*6]; "
        "%1 = reshape(%0) {shape = (<b>, 2, 3)}: f32[b, 2, 3]",
        "%0 = reshape(%x) {shape = (<b>, 2, 3)}: f32[b, 2, 3]",
    ),
    "transpose_in_order": (
        "x: f32[2, 3]",
        "%0 = transpose(%x) {permutation = (0, 1)}: f32[2, 3]",
        "",
    ),
    "transpose_of_transpose": (
        "x: f32[2, 3, 4]",
        "%0 = transpose(%x) {permutation = (1, 2, 0)}: f32[3, 4, 2]; "
        "%1 = transpose(%0) {permutation = (2, 1, 0)}: f32[2, 4, 3]",
        "%0 = transpose(%x) {permutation = (0, 2, 1)}: f32[2, 4, 3]",
    ),
    "transpose_back": (
        "x: f32[2, 3]",
        "%0 = transpose(%x) {permutation = (1, 0)}: f32[3, 2]; "
        "%1 = transpose(%0) {permutation = (1, 0)}: f32[2, 3]",
        "",
    ),
    "transpose_of_broadcast": (
        "x: f32[3]",
        "%0 = broadcast_in_dim(%x) {shape = (2, 3, 4), broadcast_dimensions = (1,)}: f32[2, 3, 4]; "
        "%1 = transpose(%0) {permutation = (1, 2, 0)}: f32[3, 4, 2]",
        "%0 = broadcast_in_dim(%x) {shape = (3, 4, 2), broadcast_dimensions = (0,)}: f32[3, 4, 2]",
    ),
    "broadcast_to_itself": (
        "x: f32[2, 3]",
        "%0 = broadcast_in_dim(%x) {shape = (2, 3), broadcast_dimensions = (0, 1)}: f32[2, 3]",
        "",
    ),
    "broadcast_of_broadcast": (
        "x: f32[1]",
        "%0 = broadcast_in_dim(%x) {shape = (1, 3), broadcast_dimensions = (0,)}: f32[1, 3]; "
        "%1 = broadcast_in_dim(%0) {shape = (5, 1, 3), broadcast_dimensions = (1, 2)}: "
        "f32[5, 1, 3]",
        "%0 = broadcast_in_dim(%x) {shape = (5, 1, 3), broadcast_dimensions = (1,)}: f32[5, 1, 3]",
    ),
    "reverse_of_size_one": ("x: f32[1, 3]", "%0 = reverse(%x) {axes = (0,)}: f32[1, 3]", ""),
    "reverse_of_reverse": (
        "x: f32[2, 3]",
        "%0 = reverse(%x) {axes = (0, 1)}: f32[2, 3]; %1 = reverse(%0) {axes = (1,)}: f32[2, 3]",
        "%0 = reverse(%x) {axes = (0,)}: f32[2, 3]",
    ),
    "tile_once": ("x: f32[2]", "%0 = tile(%x) {reps = (1,)}: f32[2]", ""),
    "slice_of_everything": (
        "x: f32[4]",
        "%0 = slice(%x) {start_indices = (0,), limit_indices = (4,), strides = (1,)}: f32[4]",
        "",
    ),
    "narrow_to_everything": (
        "x: f32[4]",
        "%0 = narrow(%x) {axis = 0, start = 0, length = 4}: f32[4]",
        "",
    ),
    "pad_by_nothing": (
        "x: f32[4], p: f32[]",
        "%0 = pad(%x, %p) {low = (0,), high = (0,), interior = (0,)}: f32[4]",
        "",
    ),
    "concatenate_of_one": ("x: f32[4]", "%0 = concatenate(%x) {axis = 0}: f32[4]", ""),
    "concatenate_without_empty": (
        "x: f32[4], e: f32[0], y: f32[2]",
        "%0 = concatenate(%x, %e, %y) {axis = 0}: f32[6]",
        "%0 = concatenate(%x, %y) {axis = 0}: f32[6]",
    ),
    "slice_at_known_place": (
        "x: f32[4, 5], i: i32[]",
        "%0 = constant 9: i32[]; "
        "%1 = dynamic_slice(%x, %0, %i) {sizes = (2, 5)}: f32[2, 5]",
        "%0 = slice(%x) {start_indices = (2, 0), limit_indices = (4, 5), strides = (1, 1)}: "
        "f32[2, 5]",
    ),
    "max_over_size_one": (
        "x: f32[3, 1]",
        "%0 = reduce_max(%x) {axes = (1,)}: f32[3]",
        "%0 = reshape(%x) {shape = (3,)}: f32[3]",
    ),
    "min_over_nothing": ("x: f32[3]", "%0 = reduce_min(%x) {axes = ()}: f32[3]", ""),
    "integer_sum_over_size_one": (
        "x: i32[1]",
        "%0 = reduce_sum(%x) {axes = (0,)}: i32[]",
        "%0 = reshape(%x) {shape = ()}: i32[]",
    ),
    "fold_rhs_transpose_into_dot": (
        "x: f32[2, 3], w: f32[5, 3]",
        "%0 = transpose(%w) {permutation = (1, 0)}: f32[3, 5]; "
        "%1 = dot_general(%x, %0) {lhs_contracting = (1,), rhs_contracting = (0,)}: f32[2, 5]",
        "%0 = dot_general(%x, %w) {lhs_contracting = (1,), rhs_contracting = (1,)}: f32[2, 5]",
    ),
    "fold_both_transposes_into_batched_dot": (
        "x: f32[3, 7, 2], w: f32[5, 3, 7]",
        "%0 = transpose(%x) {permutation = (1, 2, 0)}: f32[7, 2, 3]; "
        "%1 = transpose(%w) {permutation = (2, 1, 0)}: f32[7, 3, 5]; "
        "%2 = dot_general(%0, %1) {lhs_contracting = (2,), rhs_contracting = (1,), "
        "lhs_batch = (0,), rhs_batch = (0,)}: f32[7, 2, 5]",
        "%0 = dot_general(%x, %w) {lhs_contracting = (0,), rhs_contracting = (1,), "
        "lhs_batch = (1,), rhs_batch = (2,)}: f32[7, 2, 5]",
    ),
    "fold_transpose_into_matmul": (
        "x: f32[2, 3], w: f32[5, 3]",
        "%0 = transpose(%w) {permutation = (1, 0)}: f32[3, 5]; %1 = matmul(%x, %0): f32[2, 5]",
        "%0 = dot_general(%x, %w) {lhs_contracting = (1,), rhs_contracting = (1,)}: f32[2, 5]",
    ),
}  # fmt: skip

# What looks like one of the above and would lose NaN, Inf, −0, digits or the order of axes.
UNSOUND = {
    "add_of_plus_zero": (
        "x: f32[]",
        "%0 = constant 0.0: f32[]; %1 = add(%x, %0): f32[]",
    ),
    "sub_of_minus_zero": (
        "x: f32[]",
        "%0 = constant -0.0: f32[]; %1 = sub(%x, %0): f32[]",
    ),
    "mul_by_zero": (
        "x: f32[]",
        "%0 = constant 0.0: f32[]; %1 = mul(%x, %0): f32[]",
    ),
    "complex_mul_by_one": (
        "x: c64[]",
        "%0 = constant (1.0, 0.0): c64[]; %1 = mul(%x, %0): c64[]",
    ),
    "sub_of_itself": ("x: f32[]", "%0 = sub(%x, %x): f32[]"),
    "div_by_itself": ("x: f32[]", "%0 = div(%x, %x): f32[]"),
    "compare_with_itself": (
        "x: f32[]",
        "%0 = compare(%x, %x) {direction = Direction.EQ}: bool[]",
    ),
    "reassociation": (
        "x: f32[], y: f32[]",
        "%0 = add(%x, %y): f32[]; %1 = sub(%x, %0): f32[]; %2 = add(%1, %y): f32[]",
    ),
    "float_sum_over_size_one": ("x: f32[1]", "%0 = reduce_sum(%x) {axes = (0,)}: f32[]"),
    "convert_through_narrow": (
        "x: f32[]",
        "%0 = convert(%x) {dtype = f16}: f16[]; %1 = convert(%0) {dtype = f32}: f32[]",
    ),
    "convert_integer_through_float": (
        "x: i32[]",
        "%0 = convert(%x) {dtype = f32}: f32[]; %1 = convert(%0) {dtype = i32}: i32[]",
    ),
    "convert_narrower_integer_through_float": (
        "x: i32[]",
        "%0 = convert(%x) {dtype = f64}: f64[]; %1 = convert(%0) {dtype = i8}: i8[]",
    ),
    "convert_unsigned_through_float": (
        "x: u16[]",
        "%0 = convert(%x) {dtype = f32}: f32[]; %1 = convert(%0) {dtype = i16}: i16[]",
    ),
    "convert_through_unsigned": (
        "x: i8[]",
        "%0 = convert(%x) {dtype = u32}: u32[]; %1 = convert(%0) {dtype = f32}: f32[]",
    ),
    "dot_of_reordered_axes": (
        "x: f32[4, 2, 3], w: f32[3, 5]",
        "%0 = transpose(%x) {permutation = (1, 0, 2)}: f32[2, 4, 3]; "
        "%1 = dot_general(%0, %w) {lhs_contracting = (2,), rhs_contracting = (0,)}: f32[2, 4, 5]",
    ),
    "slice_at_unknown_place": (
        "x: f32[4], i: i32[]",
        "%0 = dynamic_slice(%x, %i) {sizes = (2,)}: f32[2]",
    ),
    "different_clamp": (
        "x: f32[], lo: f32[], hi: f32[]",
        "%0 = clamp(%lo, %x, %hi): f32[]; %1 = clamp(%hi, %0, %lo): f32[]",
    ),
}


def graph_of(leaves: str, nodes: str) -> Graph:
    """The graph of ``"x: f32[4], …"`` and nodes split by semicolons; its output is the last."""
    lines: list[str] = []
    for leaf in leaves.split(", "):
        if ":" not in leaf:  # a comma inside a shape
            lines[-1] += f", {leaf}"
            continue
        name, type_ = leaf.split(": ")
        lines.append(f'input %{name} "{name}": {type_}')
    lines += nodes.split("; ") if nodes else []
    last = lines[-1].split(" = ")[0].strip() if nodes else "%x"
    body = "\n  ".join([*lines, f"return {last}"])
    return parse(f'graph "g" {{\n  {body}\n}}')


def canonical(graph: Graph) -> Graph:
    return Canonicalize().run(graph, PassContext())


@pytest.mark.parametrize("case", CASES)
def test_rule(case: str) -> None:
    leaves, before, expected = CASES[case]
    result = canonical(graph_of(leaves, before))
    assert str(result) == str(graph_of(leaves, expected))
    assert canonical(result) is result


@pytest.mark.parametrize("case", UNSOUND)
def test_what_would_lose_something_stays(case: str) -> None:
    graph = graph_of(*UNSOUND[case])
    assert canonical(graph) is graph


CHANNELS_LAST = "lhs_spec = (0, 3, 1, 2), rhs_spec = (3, 2, 0, 1), out_spec = (0, 3, 1, 2)"
MIXED = "lhs_spec = (0, 3, 1, 2), rhs_spec = (0, 1, 2, 3), out_spec = (0, 3, 1, 2)"
WINDOW = (
    "window_strides = (2, 1), padding = ((0, 1), (0, 0)), lhs_dilation = (1, 1), "
    "rhs_dilation = (1, 1), "
)


def _convolution(specs: str, weight: str = "input") -> Graph:
    """A convolution of an image with channels first and a kernel [out, in, h, w], both turned."""
    kernel = "(2, 3, 1, 0)" if specs == CHANNELS_LAST else "(0, 1, 2, 3)"
    turned = "f32[3, 2, 5, 4]" if specs == CHANNELS_LAST else "f32[4, 5, 3, 2]"
    return parse(f"""
    graph "g" {{
      input %x "x": f32[2, 5, 7, 6]
      {weight} %w "w": f32[4, 5, 3, 2]
      %0 = transpose(%x) {{permutation = (0, 2, 3, 1)}}: f32[2, 7, 6, 5]
      %1 = transpose(%w) {{permutation = {kernel}}}: {turned}
      %2 = conv_general_dilated(%0, %1) {{{WINDOW}{specs}}}: f32[2, 3, 5, 4]
      return %2
    }}
    """)


def _layouts(graph: Graph, platform: str) -> tuple[tuple[int, ...], int]:
    """What the layout of lhs becomes, and how many transposes are left."""
    made = Canonicalize().run(graph, PassContext(platform=platform))
    assert Canonicalize().run(made, PassContext(platform=platform)) is made
    (op,) = [n.op for n in made.nodes() if isinstance(n.op, ConvGeneralDilated)]
    return op.lhs_spec, sum(isinstance(n.op, Transpose) for n in made.nodes())


def test_transposes_fold_into_a_convolution(rng: np.random.Generator) -> None:
    graph = _convolution(CHANNELS_LAST)
    made = canonical(graph)
    assert "transpose" not in str(made)
    assert "lhs_spec = (0, 1, 2, 3), rhs_spec = (0, 1, 2, 3), out_spec = (0, 3, 1, 2)" in str(made)
    feeds = {
        "x": rng.standard_normal((2, 5, 7, 6)).astype(np.float32),
        "w": rng.standard_normal((4, 5, 3, 2)).astype(np.float32),
    }
    before, after = interpret(graph, feeds), interpret(made, feeds)
    np.testing.assert_allclose(after[0], before[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("specs", "weight", "platform", "expected"),
    [
        (CHANNELS_LAST, "input", "cuda", ((0, 1, 2, 3), 0)),
        (CHANNELS_LAST, "param", "cuda", ((0, 1, 2, 3), 1)),  # turned once, by the prepare stage
        (CHANNELS_LAST, "input", "cpu", ((0, 3, 1, 2), 2)),  # a kernel takes this layout
        (MIXED, "input", "cpu", ((0, 1, 2, 3), 0)),
    ],
)
def test_the_platform_decides_what_folds_into_a_convolution(
    specs: str, weight: str, platform: str, expected: tuple[tuple[int, ...], int]
) -> None:
    assert _layouts(_convolution(specs, weight), platform) == expected


def test_cond_by_constant_becomes_a_call() -> None:
    before = parse("""
    graph @neg "neg" {
      input %x "x": f32[]
      %0 = neg(%x): f32[]
      return %0
    }
    graph @abs "abs" {
      input %x "x": f32[]
      %0 = abs(%x): f32[]
      return %0
    }
    graph "g" {
      input %x "x": f32[]
      %0 = constant 7: i32[]
      %1 = cond(%0, %x) {branches = (@neg, @abs)}: f32[]
      return %1
    }
    """)
    expected = parse("""
    graph @abs "abs" {
      input %x "x": f32[]
      %0 = abs(%x): f32[]
      return %0
    }
    graph "g" {
      input %x "x": f32[]
      %0 = call(%x) {body = @abs, name = "abs"}: f32[]
      return %0
    }
    """)
    assert str(canonical(before)) == str(expected)


def test_rules_reach_the_bodies_of_loops() -> None:
    before = parse("""
    graph @body "body" {
      input %c "c": f32[]
      %0 = neg(%c): f32[]
      %1 = neg(%0): f32[]
      %2 = abs(%1): f32[]
      return %2
    }
    graph "g" {
      input %x "x": f32[]
      %0 = scan(%x) {body = @body, length = 3, num_carry = 1}: f32[]
      return %0
    }
    """)
    result = canonical(before)
    assert "neg" not in str(result)
    assert canonical(result) is result


def test_a_loss_of_zero_times_nan_stays_nan() -> None:
    b = GraphBuilder("loss")
    values, mask = b.input("values", "f32[2]"), b.input("mask", "f32[2]")
    graph = b.build((values * mask).sum())
    feeds = {"values": np.array([np.nan, 1], np.float32), "mask": np.array([0, 1], np.float32)}
    assert np.isnan(interpret(canonical(graph), feeds)[0])


def test_cancelling_terms_are_not_reassociated() -> None:
    b = GraphBuilder("cancel")
    x, y = b.input("x", "f32[]"), b.input("y", "f32[]")
    graph = b.build(x - (x + y) + y)
    feeds = {"x": np.float32(1e30), "y": np.float32(1.0)}
    assert interpret(canonical(graph), feeds)[0] == 1.0


def test_a_long_chain_folds_in_one_sweep() -> None:
    b = GraphBuilder("chain")
    x = b.input("x", "f32[3, 4]")
    value = x
    for _ in range(1001):
        value = value.transpose(1, 0)
    result = canonical(b.build(value))
    assert same(result, _transposed_once())


def _transposed_once() -> Graph:
    b = GraphBuilder("chain")
    return b.build(b.input("x", "f32[3, 4]").transpose(1, 0))


def test_a_broadcast_of_a_long_literal_is_not_searched() -> None:
    b = GraphBuilder("long")
    ones = BroadcastInDim(shape=(1000,), broadcast_dimensions=(0,))(
        b.constant(np.ones(1000, np.float32))
    )
    graph = b.build(b.input("x", "f32[1000]") * ones)
    assert "mul" in str(canonical(graph))


@pytest.mark.parametrize("name", ["CumSum", "CumProd", "CumMax", "CumMin", "CumLogSumExp"])
@pytest.mark.parametrize("reverse", [False, True])
def test_exclusive_forms_keep_their_results(name: str, reverse: bool) -> None:
    op = getattr(ops, name)(axis=1, reverse=reverse, exclusive=True)
    for shape in ((3, 5), (2, 1), (2, 0)):
        b = GraphBuilder("g")
        graph = b.build(op(b.input("x", TensorType(DType.F32, shape))))
        x = {"x": np.random.default_rng().normal(size=shape).astype(np.float32)}
        found, wanted = interpret(canonical(graph), x)[0], interpret(graph, x)[0]
        np.testing.assert_array_equal(found, wanted)
