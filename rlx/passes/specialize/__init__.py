"""Writes an op in the form that XLA runs fastest on a platform; the meaning stays the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

from rlx.ir.graph import Graph, Node
from rlx.ir.rewrite import Rewritten, Rule, rewrite
from rlx.passes.base import AbstractPass, PassContext
from rlx.passes.specialize import (
    added_masks,
    convolution,
    elementary,
    extremes,
    pointwise,
    products,
    rows,
    scaled,
    top_k,
)
from rlx.passes.specialize.scaled import asks_for_f32_sums
from rlx.passes.specialize.widen import widen_chains

RULES: dict[str, tuple[Rule, ...]] = {
    "cpu": convolution.RULES,
    "cuda": (*top_k.RULES, *products.RULES),
    "rocm": (*top_k.RULES, *products.RULES),
}
"""Platform → rules, each with the benchmark that earned its place in its docstring."""


@final
@dataclass(frozen=True, kw_only=True)
class Specialize(AbstractPass):
    """Replaces forms that a platform's XLA carries out slowly.

    It runs only where a platform has such rules. Sums may be taken in another order, as every
    compiler of a convolution does. With ``CompileOptions(strict=True)`` every rounding that the
    graph asks for stays; otherwise, on CPUs, a chain of elementwise bf16 ops is computed in f32,
    trigonometric functions of f32 in f64, and one row of bf16 as two.

    Forms without a choice of values are lowering rules: narrow products summed in f32, running
    ops as row loops, argmax in vector lanes, bf16 rows stacked as bits. Left to XLA, as nothing
    that was tried gains (``bench_specialize``): softmax in f32 for bf16, ``rsqrt``, argmax of
    integers, products of one row of f16, u8 and f32 or with batch axes, and attention whose keys
    lie [batch, seq, head, size], which a transpose or a multiply and add only slows down.
    """

    name: ClassVar[str] = "specialize"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        applied: Counter[str] = Counter()
        rules = RULES.get(ctx.platform, ())
        if ctx.platform == "cpu":
            rules = (*rules, *convolution.rules(ctx), *pointwise.rules(ctx))
        # A device that is told which ops it may be given is given no others.
        free = ctx.platform == "cpu" and not ctx.options.supported_ops
        if free:
            rules = (*rules, *rows.rules(ctx), *added_masks.rules(graph, ctx))
        if ctx.platform == "cuda" and not asks_for_f32_sums(ctx.options):
            rules = (*rules, *scaled.rules(graph))
        made = rewrite(graph, *(_counted(rule, applied) for rule in rules))
        if free:
            made, written = elementary.write_out(made, strict=ctx.options.strict)
            applied.update(written)
            made, asked = extremes.keep_nan(made)
            applied.update(asked)
        if ctx.platform == "cpu" and not ctx.options.strict:
            made, widened = widen_chains(made)
            if widened:
                applied["Elementwise bf16 op in f32"] = widened
        for what, count in applied.items():
            ctx.note(f"{what} × {count}")
        return made


def _counted(rule: Rule, applied: Counter[str]) -> Rule:
    """The rule, with a count of its uses under the first line of its docstring."""
    what = (rule.__doc__ or "").partition("\n")[0].rstrip(".")

    def apply(node: Node) -> Rewritten:
        made = rule(node)
        if made is not None:
            applied[what] += 1
        return made

    counted: Callable[[Node], Rewritten] = apply
    vars(counted).update(vars(rule))  # which ops it is tried on
    return counted
