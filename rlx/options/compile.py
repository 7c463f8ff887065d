"""``CompileOptions``: everything that may change how a graph is compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast, final

from rlx.errors import CompileError, did_you_mean
from rlx.options import env
from rlx.options.checks import check, without_effect
from rlx.options.dispatch import KernelDispatch, dispatch_from_env
from rlx.options.fusion import FusionOptions, FusionTarget
from rlx.options.precision import Precision, PrecisionPolicy
from rlx.options.rng import RngOptions

if TYPE_CHECKING:
    from rlx.ir.graph import Node
    from rlx.quant import ScaledQuantConfig


def _flag(name: str) -> Any:
    return field(default_factory=lambda: env.flag(name))


@final
@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """Options of one compile; ``replace`` makes a changed copy.

    Fields that a variable sets (``rlx/options/env.py`` has the table) take it as their default;
    ``CompileOptions.baseline()`` does not look at the environment.

    Attributes:
        precision: the dtype that floats are computed in; F32 leaves the graph's own dtypes.
        policy: which classes of ops compute in a low precision; None for none.
        scaled_quant: turn matmuls of rank 2 into scaled low-precision ones (an
            ``rlx.quant.ScaledQuantConfig``).
        weights: pack the weights of products and lookups of a traced function: ``"packed"`` for
            eight bits a number (``q8_0``), or the name of another scheme as ``rlx_xla.quantize``
            takes it, which does the same before compiling. Weights that came packed stay as they
            are; None packs none.
        rng: where random ops without a seed of their own draw from.
        dce: leave out params, call arguments, call results and loop carries that nothing uses.
        constant_folding: compute constant parts of the graph at compile time.
        verbose: print each pass with its time and node counts while compiling
            (``RLX_VERBOSE``).
        fusion_target: whose fused ops are made, as RLX's backend of that kind claims them; None
            makes those for which the session's device has a kernel (XLA fuses by itself), or with
            ``assert_fusion_clean`` those of the session's kind.
        fusion_opts: what fusion may do.
        assert_fusion_clean: fail when fusion misses a pattern.
        supported_ops: names of the ops, or a predicate on nodes, that the device may be given as
            they are; None asks the backend alone.
        dim_binding: sizes for symbols, put in before anything else.
        param_bindings: param name → array. They become constants before folding; large ones stay
            params with that value. They cannot be set again.
        quant_param_bindings: param name → packed bytes; otherwise as ``param_bindings``.
        kernel_dispatch: which implementations may be chosen (``RLX_KERNEL_DISPATCH``).
        scan_unroll_max_length: longest scan, in steps, that is written out where it makes at most
            4,096 nodes; 0 writes out none.
        roll_blocks: how many equal blocks in a row become a scan over their stacked weights, which
            compiles faster; 0 makes none, and the report says where it would pay.
        cache_param_invariant: compute what depends on params alone once, in a program of its own,
            and again after ``set_param`` (``RLX_CACHE_PARAM_INVARIANT``).
        strict: let XLA keep every rounding that the graph asks for, and every pair of ops whose
            short form has other values: log(exp x) stays infinite where exp x is.
        matmul_precision: ``"default"``, ``"high"`` or ``"highest"``: least precision of matmuls
            and convolutions; None leaves the graph's own.
        lint_numerics: note constants that hold NaN or infinity, and pairs of ops that XLA
            replaces by a form with other values, in the report
            (``RLX_LINT_NUMERICS``).
        fusion_report: print what was fused and what was missed (``RLX_FUSION_REPORT``).
        dispatch_report: print how nodes are carried out (``RLX_DISPATCH_REPORT``).
        ir_dump: folder that gets the text of every level (``RLX_IR_DUMP``); None for none.
        validate: interpret the graph before and after every pass on drawn inputs, and name the
            pass that changed the result; slow.
        cast_inputs: convert inputs of another dtype instead of refusing them.
        specialization_cache_size: how many shapes a graph with symbolic dims keeps compiled.
        buckets: sizes that symbols are rounded up to: ``{"n": [16, 64]}``, ``"pow2"`` or
            ``"auto"``. What cannot be proven unchanged by padding is compiled exactly.
        on_unsafe: what to do where an op cannot be padded: ``"exact"`` compiles the sizes as they
            come and says so in ``specializations()``, ``"error"`` refuses.
        constraints: what holds for symbols at every call, such as ``"seq % 64 == 0"``; checked.
        donate: names of inputs whose buffers a call consumes.
        resident: input name → output that feeds it: inputs that live on the device, as
            ``CompiledGraph.keep`` declares them later.
        compiler_options: XLA flags by name, with Python values.
        arena_alignment: bytes; RLX's memory planner only.
        disable_mpsgraph: Apple's devices only.
        disable_conv_bias_act_fusion: RLX's CUDA backend only.
        no_io_peaks_output: RLX's spectral outputs only.
    """

    precision: Precision = Precision.F32
    policy: PrecisionPolicy | None = None
    scaled_quant: ScaledQuantConfig | None = None
    weights: str | None = None
    rng: RngOptions = field(default_factory=RngOptions)
    dce: bool = True
    constant_folding: bool = True
    verbose: bool = _flag("RLX_VERBOSE")
    fusion_target: FusionTarget | None = None
    fusion_opts: FusionOptions = field(default_factory=FusionOptions)
    assert_fusion_clean: bool = False
    supported_ops: Collection[str] | Callable[[Node], bool] | None = None
    dim_binding: Mapping[str, int] | None = None
    param_bindings: Mapping[str, Any] | None = None
    quant_param_bindings: Mapping[str, bytes] | None = None
    kernel_dispatch: KernelDispatch = field(default_factory=dispatch_from_env)
    scan_unroll_max_length: int = 0
    roll_blocks: int = 0
    cache_param_invariant: bool = _flag("RLX_CACHE_PARAM_INVARIANT")
    strict: bool = False
    matmul_precision: str | None = None
    lint_numerics: bool = _flag("RLX_LINT_NUMERICS")
    fusion_report: bool = _flag("RLX_FUSION_REPORT")
    dispatch_report: bool = _flag("RLX_DISPATCH_REPORT")
    ir_dump: str | None = field(default_factory=lambda: env.var("RLX_IR_DUMP") or None)
    validate: bool = False
    cast_inputs: bool = False
    specialization_cache_size: int = 32
    buckets: Mapping[str, Any] | str | None = None
    on_unsafe: str = "exact"
    constraints: tuple[str, ...] = ()
    donate: frozenset[str] = frozenset()
    resident: Mapping[str, int] = field(default_factory=dict[str, int])
    compiler_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    arena_alignment: int = 64
    disable_mpsgraph: bool = False
    disable_conv_bias_act_fusion: bool = False
    no_io_peaks_output: bool = False

    def __post_init__(self) -> None:
        for known in dataclasses.fields(self):
            check(known.name, getattr(self, known.name))
        object.__setattr__(self, "donate", frozenset(self.donate))
        object.__setattr__(self, "constraints", tuple(self.constraints))
        if self.supported_ops is not None and not callable(self.supported_ops):
            object.__setattr__(self, "supported_ops", frozenset(self.supported_ops))
        both = sorted(self.donate.intersection(self.resident))
        if both:
            raise CompileError(
                f"CompileOptions.resident: a resident input is donated already; got {both[0]!r} "
                "in donate too. Leave it out there."
            )

    def __hash__(self) -> int:
        """Of equal options the same number; of a mapping only the keys count."""
        values = [getattr(self, f.name) for f in dataclasses.fields(self)]
        return hash(tuple(map(_hashable, values)))

    @staticmethod
    def new() -> CompileOptions:
        """The defaults, with what the environment sets."""
        return CompileOptions()

    @staticmethod
    def default() -> CompileOptions:
        """The same as ``new``, under RLX's second name."""
        return CompileOptions()

    @staticmethod
    def from_env() -> CompileOptions:
        """The same as ``new``, under RLX's third name."""
        return CompileOptions()

    @staticmethod
    def baseline() -> CompileOptions:
        """The defaults, whatever the environment says."""
        return CompileOptions(
            verbose=False,
            kernel_dispatch=KernelDispatch(),
            cache_param_invariant=False,
            lint_numerics=False,
            fusion_report=False,
            dispatch_report=False,
            ir_dump=None,
        )

    def apply_env(self) -> CompileOptions:
        """These options with what the environment sets put in."""
        baseline, now = CompileOptions.baseline(), CompileOptions()
        found = {
            name: getattr(now, name)
            for name in (f.name for f in dataclasses.fields(self))
            if getattr(now, name) != getattr(baseline, name)
        }
        return self.replace(**found) if found else self

    def replace(self, **changes: Any) -> CompileOptions:
        """The same options with some fields changed.

        Raises:
            CompileError: no such field.
        """
        known = [f.name for f in dataclasses.fields(self)]
        unknown = [name for name in changes if name not in known]
        if unknown:
            raise CompileError(
                f"CompileOptions has no field {unknown[0]!r}; fields are {', '.join(known)}."
                f"{did_you_mean(unknown[0], known)}"
            )
        return dataclasses.replace(self, **changes)

    def without_effect(self) -> list[str]:
        """Lines on the fields that are set and change nothing here, each with its reason."""
        names = [f.name for f in dataclasses.fields(self)]
        baseline = CompileOptions.baseline()
        return without_effect(
            {name: getattr(self, name) for name in names},
            {name: getattr(baseline, name) for name in names},
        )


def _hashable(value: object) -> object:
    """A mapping's keys for the mapping: its values may be arrays."""
    if not isinstance(value, Mapping):
        return value
    return frozenset(cast("Mapping[object, object]", value))
