"""Puts fused ops in place of the patterns that a target has them for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, final

from rlx.fusion_report import Fusion, FusionReport
from rlx.ir.graph import Graph, Node, make_node
from rlx.ir.op import Op
from rlx.ops.fused import (
    ElementwiseRegion,
    FusedAttentionBlock,
    FusedConvBiasAct,
    FusedMatmulBiasAct,
    FusedMatmulResidual,
    FusedResidualLn,
    FusedResidualRmsNorm,
    FusedSwiglu,
)
from rlx.options.compile import CompileOptions
from rlx.options.dispatch import claim_of
from rlx.options.fusion import FusionOptions, FusionTarget
from rlx.passes.base import AbstractPass, PassContext
from rlx.passes.fuse import attention, norms, products, regions
from rlx.passes.fuse.forms import Fused, Matcher, Uses, replace_everywhere, rounds_once

_TRANSFORMER: tuple[type[Op], ...] = (
    FusedMatmulBiasAct,
    FusedResidualLn,
    FusedResidualRmsNorm,
    FusedSwiglu,
    FusedAttentionBlock,
    ElementwiseRegion,
)
CLAIMS: dict[FusionTarget, tuple[type[Op], ...]] = {
    FusionTarget.CPU: _TRANSFORMER,
    FusionTarget.CUDA: (*_TRANSFORMER, FusedConvBiasAct),
    FusionTarget.ROCM: (*_TRANSFORMER, FusedConvBiasAct),
    FusionTarget.METAL: (*_TRANSFORMER, FusedMatmulResidual),
    FusionTarget.MLX: _TRANSFORMER,
    FusionTarget.WGPU: _TRANSFORMER,
    FusionTarget.TPU: (FusedMatmulBiasAct, FusedResidualLn, ElementwiseRegion),
}
"""Which fused ops RLX's backend of each kind claims."""

_OWN = {
    "cpu": FusionTarget.CPU,
    "cuda": FusionTarget.CUDA,
    "rocm": FusionTarget.ROCM,
    "tpu": FusionTarget.TPU,
}
"""The targets of XLA's platforms; any other counts as a CPU."""

Step = tuple[tuple[type[Op], ...], Callable[[Graph], Matcher]]


@final
@dataclass(frozen=True, kw_only=True)
class Fuse(AbstractPass):
    """Fuses products, norms, gates, attention and elementwise chains.

    A node is absorbed only when one node reads it, once, and it is no output. Without a target,
    only what a kernel of the device carries out is fused, so that nothing gets slower on XLA,
    which fuses such chains by itself. With ``strict`` nothing is fused that would leave out a
    rounding, and products stay as they are.

    Attributes:
        target: whose fused ops are made; None for those with kernels here.
        options: what fusion may do.
        staged: params are prepared in a stage of their own, so that their weights may be joined.
    """

    name: ClassVar[str] = "fuse"
    target: FusionTarget | None = None
    options: FusionOptions = field(default_factory=FusionOptions)
    staged: bool = False

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        target = self.target
        if target is None and ctx.options.assert_fusion_clean:
            target = _OWN.get(ctx.platform, FusionTarget.CPU)
        options = self.options
        if target is not None and options == FusionOptions():
            options = FusionOptions.for_target(target)
        made = graph
        if not options.skip_fusion and (target is not None or ctx.has_kernel is not None):
            made = _Fusing(target, options, self.staged, ctx).run(graph)
        ctx.found = Fusion(graph, made, asked=target is not None)
        return made


@final
class _Fusing:
    """One run for one target."""

    def __init__(
        self, target: FusionTarget | None, options: FusionOptions, staged: bool, ctx: PassContext
    ) -> None:
        self._target = target
        self._options = options
        self._staged = staged
        self._ctx = ctx

    def run(self, graph: Graph) -> Graph:
        """Every step that the target claims, in RLX's order."""
        may = self._filter()
        for ops, start in self._steps():
            if not self._takes(ops):
                continue

            def guarded(inner: Graph, start: Callable[[Graph], Matcher] = start) -> Matcher:
                match = start(inner)

                def checked(uses: Uses, node: Node) -> Fused | None:
                    found = match(uses, node)
                    return found if found is not None and may(node, found) else None

                return checked

            graph, _ = replace_everywhere(graph, guarded)
        return graph

    def _takes(self, ops: Sequence[type[Op]]) -> bool:
        """Whether a step's ops are claimed; steps of no new op are for a named target only."""
        if self._target is not None:
            return set(ops) <= set(CLAIMS[self._target])
        return bool(ops) and all(map(self._ctx.kernel_ops, ops))

    def _steps(self) -> list[Step]:
        """RLX's order; a step is taken when its ops are claimed."""
        merge = products.MergeWeights(staged=self._staged)
        steps: list[Step] = [
            ((FusedAttentionBlock,), lambda graph: attention.attention_block),
            ((FusedSwiglu,), merge.swiglu),
            ((FusedMatmulBiasAct,), lambda graph: products.matmul_bias_act),
            ((FusedConvBiasAct,), lambda graph: products.conv_bias_act),
            ((FusedResidualLn,), lambda graph: norms.residual_ln),
            ((FusedResidualRmsNorm,), lambda graph: norms.residual_rms_norm),
            ((), lambda graph: norms.rms_norm_reshape),
            ((FusedMatmulResidual,), lambda graph: products.matmul_residual),
            ((), merge.shared_input),
            ((FusedSwiglu,), lambda graph: products.swiglu),
        ]
        if not self._options.unfuse_elementwise_regions:
            marks = regions.MarkRegions(self._options.max_steps, self._options.max_inputs)
            steps.append(((ElementwiseRegion,), marks))
        return steps

    def _filter(self) -> Callable[[Node, Fused], bool]:
        """Whether a match may stand for a node."""
        ctx = self._ctx
        claim = claim_of(ctx.options.supported_ops)
        strict, has_kernel, by_kernel = ctx.options.strict, ctx.has_kernel, self._target is None

        def may(node: Node, found: Fused) -> bool:
            if strict and not rounds_once(node):
                return False
            if found.make is not None:  # products of other shapes may add up in another order
                return not by_kernel and not strict
            if not by_kernel and claim is None:
                return True
            made = make_node(found.op, found.inputs)
            if by_kernel and (has_kernel is None or not has_kernel(made)):
                return False
            return claim is None or claim(made)

        return may


@final
@dataclass(frozen=True, kw_only=True)
class UnfuseElementwiseRegions(AbstractPass):
    """Takes elementwise regions apart into their ops."""

    name: ClassVar[str] = "unfuse-elementwise-regions"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        return regions.unfuse(graph)


def fuse(
    graph: Graph,
    target: FusionTarget,
    options: FusionOptions | None = None,
    *,
    staged: bool = False,
) -> tuple[Graph, FusionReport]:
    """Fuse a graph for a target in one call.

    Args:
        graph: MIR.
        target: whose fused ops are made.
        options: what fusion may do; None for the target's own.
        staged: whether params count as constants whose weights may be joined.

    Returns:
        The graph, and what was fused and missed.

    Example:
        >>> import rlx
        >>> b = rlx.GraphBuilder()
        >>> x, w, c = b.input("x", "f32[2, 3]"), b.param("w", "f32[3, 4]"), b.param("c", "f32[4]")
        >>> _, report = fuse(b.build((x @ w + c).gelu()), rlx.FusionTarget.CPU)
        >>> report.summary_line()
        'nodes=7→4 matmul=1→0 fused_mm_act=1 fused_swiglu=0 elementwise_region=0 missed_mm_act=0'
    """
    chosen = FusionOptions.for_target(target) if options is None else options
    ctx = PassContext(CompileOptions())
    made = Fuse(target=target, options=chosen, staged=staged).run(graph, ctx)
    if chosen.unfuse_elementwise_regions:
        made = UnfuseElementwiseRegions().run(made, ctx)
    return made, FusionReport.analyze(graph, made)
