"""Self-attention from the hidden state to its output projection."""

from __future__ import annotations

from rlx.ir.graph import Node, Value
from rlx.ops.arithmetic import Add
from rlx.ops.attention import Attention, MaskKind
from rlx.ops.fused import FusedAttentionBlock
from rlx.ops.position import Rope
from rlx.ops.shape import Narrow, Slice, Split
from rlx.passes.fuse.forms import Fused, Product, Uses, biased, product_of


def attention_block(uses: Uses, node: Node) -> Fused | None:
    """Joint projection to q, k, v → attention (with rope) → projection; biases on both or none."""
    outer = _projection(uses, node)
    if outer is None or not uses.only(outer[0].x):
        return None
    product, out_bias = outer
    attention = product.x.node
    op = attention.op
    if not isinstance(op, Attention) or product.x.rank != 3:
        return None
    plain = Attention(num_heads=op.num_heads, head_dim=op.head_dim, mask_kind=MaskKind.CUSTOM)
    if op != plain or attention.inputs[3].rank != 2:
        return None
    q, k, v, mask = attention.inputs
    tables: tuple[Value, ...] = ()
    if isinstance(q.node.op, Rope):
        turned = _unturned(uses, q, k, plain)
        if turned is None:
            return None
        q, k, tables = turned
    width = op.num_heads * op.head_dim
    joined = _thirds(uses, (q, k, v), width)
    if joined is None:
        return None
    inner = _projection(uses, joined.node)
    if inner is None or (inner[1] is None) != (out_bias is None):
        return None
    qkv, qkv_bias = inner
    hidden = qkv.x
    if hidden.rank != 3 or qkv.weight.shape != (hidden.shape[2], 3 * width):
        return None
    if mask.shape != hidden.shape[:2] or product.weight.dtype is not hidden.dtype:
        return None
    if isinstance(joined.node.op, Add) and not uses.only(qkv.value):
        return None
    extras = () if qkv_bias is None or out_bias is None else (qkv_bias, out_bias)
    fused = FusedAttentionBlock(
        num_heads=op.num_heads,
        head_dim=op.head_dim,
        has_bias=bool(extras),
        has_rope=bool(tables),
    )
    return Fused(fused, (hidden, qkv.weight, product.weight, mask, *extras, *tables))


def _projection(uses: Uses, node: Node) -> tuple[Product, Value | None] | None:
    """The product that a node is, and the bias that it adds, if any."""
    if isinstance(node.op, Add):
        found = biased(node, node.types[0].rank - 1)
        product = product_of(found[0]) if found else None
        if found is None or product is None or not uses.only(product.value):
            return None
        return (product, found[1]) if found[1].dtype is product.x.dtype else None
    product = product_of(node.results[0]) if len(node.results) == 1 else None
    return None if product is None else (product, None)


def _unturned(
    uses: Uses, q: Value, k: Value, like: Attention
) -> tuple[Value, Value, tuple[Value, ...]] | None:
    """The operands of q's and k's rotations, which are alike, and the tables."""
    wanted = Rope(head_dim=like.head_dim, n_rot=like.head_dim)
    tables = q.node.inputs[1:]
    if not q.node.op == k.node.op == wanted or k.node.inputs[1:] != tables:
        return None
    if not uses.only(q) or not uses.only(k):
        return None
    return q.node.inputs[0], k.node.inputs[0], tables


def _thirds(uses: Uses, parts: tuple[Value, Value, Value], width: int) -> Value | None:
    """The value whose last axis is these three parts in order, each read once."""
    sources: set[Value] = set()
    for index, part in enumerate(parts):
        node = part.node
        op = node.op
        if not isinstance(op, Narrow | Slice | Split) or not uses.only(part):
            return None
        x = node.inputs[0]
        if x.rank != part.rank or x.shape[-1] != 3 * width or part.shape[-1] != width:
            return None
        if part.shape[:-1] != x.shape[:-1] or _start(part) != index * width:
            return None
        sources.add(x)
    if len(sources) != 1:
        return None
    (joined,) = sources
    readers = set(uses.users(joined))
    return joined if readers == {p.node for p in parts} and joined not in uses.outputs else None


def _start(part: Value) -> object:
    """Where a part of the last axis begins; None where that is not plain."""
    op = part.node.op
    last = part.rank - 1
    if isinstance(op, Narrow):
        return op.start if op.axis == last else None
    if isinstance(op, Slice):
        return op.start_indices[-1] if all(s == 1 for s in op.strides) else None
    if isinstance(op, Split) and op.axis == last:
        sizes = op.sizes[: part.index]
        return sum(s for s in sizes if isinstance(s, int))
    return None
