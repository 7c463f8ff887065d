"""RLX's builder names for transforms, sequence models, loops, losses and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from rlx.errors import RegistryError, ShapeError
from rlx.ir import operators
from rlx.ir.builder_names import listed, value_of
from rlx.ir.graph import Graph

if TYPE_CHECKING:
    from rlx.ir.graph import Value
    from rlx.ops.complex_fft import BlockNorm
    from rlx.types import Dim


class AbstractModelNames:
    """Methods of ``GraphBuilder``; spectra of real signals come as (real, imaginary)."""

    # Transforms: unscaled both ways by default, as RLX's.
    def fft(self, x: Value, *, inverse: bool = False, norm: BlockNorm | str = "backward") -> Value:
        """Transform of the last axis: complex, or real parts followed by imaginary ones.

        Args:
            x: f32, f64 or complex.
            inverse: which direction.
            norm: ``backward`` scales nothing, ``forward`` the inverse by 1/N, ``ortho`` both.

        Raises:
            RegistryError: the norm is unknown.
        """
        from rlx.ops.complex_fft import BlockFft

        made: Value = BlockFft(inverse=inverse, norm=_norm(norm))(x)
        return made

    fft_norm = fft

    def fft_axis(
        self,
        x: Value,
        axis: int,
        *,
        inverse: bool = False,
        norm: BlockNorm | str = "backward",
    ) -> Value:
        """The transform along any axis."""
        from rlx.ops.complex_fft import fft_axis

        return fft_axis(value_of("fft_axis", x), axis, inverse=inverse, norm=_norm(norm))

    def fftn(
        self, x: Value, axes: Sequence[int] | None = None, *, norm: BlockNorm | str = "backward"
    ) -> Value:
        """The transform along several axes of a complex tensor, all by default."""
        from rlx.ops.complex_fft import fftn

        return fftn(value_of("fftn", x), axes, norm=_norm(norm))

    def ifftn(
        self, x: Value, axes: Sequence[int] | None = None, *, norm: BlockNorm | str = "backward"
    ) -> Value:
        """The inverse of fftn; times the number of elements with the default norm."""
        from rlx.ops.complex_fft import ifftn

        return ifftn(value_of("ifftn", x), axes, norm=_norm(norm))

    def fft_real(self, x: Value) -> tuple[Value, Value]:
        """The whole spectrum of real signals, padded to a power of two."""
        from rlx.ops.complex_fft import fft_real

        return fft_real(value_of("fft_real", x))

    def ifft_spectrum(
        self, real: Value, imag: Value, *, norm: BlockNorm | str = "backward"
    ) -> tuple[Value, Value]:
        """The inverse transform of a whole spectrum given by its parts."""
        from rlx.ops.complex_fft import ifft_spectrum

        return ifft_spectrum(real, imag, norm=_norm(norm))

    def rfft(self, x: Value) -> tuple[Value, Value]:
        """Half of the spectrum of real signals, padded to a power of two."""
        from rlx.ops.complex_fft import rfft

        return rfft(value_of("rfft", x))

    def irfft(self, real: Value, imag: Value, n: int | None = None) -> Value:
        """The first n samples of real signals from half of their spectrum; undoes rfft."""
        from rlx.ops.complex_fft import irfft

        return irfft(value_of("irfft", real), imag, n)

    def stft(self, x: Value, frame_length: int, hop: int, window: Value | None = None) -> Value:
        """Spectra of overlapping frames: [frames, …, 2·half]."""
        from rlx.ops.complex_fft import stft

        return stft(value_of("stft", x), frame_length, hop, window)

    def fft_conv1d(self, x: Value, ir: Value) -> Value:
        """Full linear convolution along the last axis by a transform."""
        from rlx.ops.complex_fft import fft_conv1d

        return fft_conv1d(value_of("fft_conv1d", x), value_of("fft_conv1d", ir))

    def fftfreq(self, n: int, d: float = 1.0) -> Value:
        """Frequencies of the bins, f64[n]; that of bin n / 2 is positive."""
        from rlx.ops.complex_fft import fftfreq

        return fftfreq(n, d)

    def rfftfreq(self, n: int, d: float = 1.0) -> Value:
        """Frequencies of the bins of half a spectrum, f64[n // 2 + 1]."""
        from rlx.ops.complex_fft import rfftfreq

        return rfftfreq(n, d)

    fftfreq_tensor = fftfreq
    rfftfreq_tensor = rfftfreq

    def psd(self, x: Value) -> Value:
        """Power of every bin of complex signals."""
        from rlx.ops.complex_fft import psd

        return psd(value_of("psd", x))

    def psd_real(self, x: Value) -> Value:
        """Power of every bin of half the spectrum of real signals."""
        from rlx.ops.complex_fft import psd_real

        return psd_real(value_of("psd_real", x))

    def pad_last_axis_to_pow2(self, x: Value) -> Value:
        """Zeros behind the last axis, up to the next power of two."""
        from rlx.ops.complex_fft import pad_last_axis_to_pow2

        return pad_last_axis_to_pow2(value_of("pad_last_axis_to_pow2", x))

    def split_spectrum(self, x: Value) -> tuple[Value, Value]:
        """Real and imaginary part of a spectrum."""
        from rlx.ops.complex_fft import split_spectrum

        return split_spectrum(value_of("split_spectrum", x))

    def complex_norm_sq(self, x: Value) -> Value:
        """The squared modulus of complex numbers."""
        return operators.unary("ComplexNormSq", x)

    def conjugate(self, x: Value) -> Value:
        """Complex conjugates."""
        return operators.unary("Conj", x)

    # Products with adapters, and solves of batches.
    def lora_matmul(self, x: Value, weight: Value, a: Value, b: Value, scale: float = 1.0) -> Value:
        """x·weight + scale · (x·a)·b."""
        from rlx.ops.dot import LoraMatmul

        made: Value = LoraMatmul(scale=scale)(x, weight, a, b)
        return made

    def batched_dense_solve(self, a: Value, b: Value) -> Value:
        """The x of a·x = b for every index of a's leading axes."""
        from rlx.ops.solve import DenseSolve

        made: Value = DenseSolve()(a, b)
        return made

    # Sequence models; sizes of states follow from the inputs.
    def selective_scan(self, x: Value, delta: Value, a: Value, b: Value, c: Value) -> Value:
        """A selective state space over x [B, S, H]; a is [H, N], b and c are [B, S, N]."""
        from rlx.ops.sequence import SelectiveScan

        made: Value = SelectiveScan(state_size=_last("selective_scan", a))(x, delta, a, b, c)
        return made

    def gated_delta_net(self, q: Value, k: Value, v: Value, g: Value, beta: Value) -> Value:
        """The gated delta rule over q, k, v [B, S, H, N], from a state of zeros."""
        from rlx.ops.sequence import GatedDeltaNet

        made: Value = GatedDeltaNet(
            state_size=_last("gated_delta_net", q), gate_per_channel=_rank(g) == 4
        )(q, k, v, g, beta)
        return made

    def gated_delta_net_carry(
        self, q: Value, k: Value, v: Value, g: Value, beta: Value, state: Value
    ) -> tuple[Value, Value]:
        """The gated delta rule from a state [B, H, N, N]: the result and the last state."""
        from rlx.ops.sequence import GatedDeltaNet

        made: tuple[Value, Value] = GatedDeltaNet(
            state_size=_last("gated_delta_net_carry", q),
            carry_state=True,
            gate_per_channel=_rank(g) == 4,
        )(q, k, v, g, beta, state)
        return made

    # Loops with one carried tensor: body takes (carry, bcasts, slices of xs) and gives the next.
    def scan(
        self,
        body: Graph,
        init: Value,
        length: Dim,
        *,
        bcasts: Sequence[Value] = (),
        xs: Sequence[Value] = (),
    ) -> Value:
        """The last carry of a loop.

        Args:
            body: a graph that takes the carry, then bcasts, then one slice of each of xs, and
                returns the next carry.
            init: the first carry.
            length: how many steps.
            bcasts: what every step reads whole.
            xs: what each step reads one slice of, [length, …].

        Raises:
            ShapeError: body does not take those, or does not return one value.
        """
        return _scan(body, init, length, bcasts, xs)[0]

    def scan_trajectory(
        self,
        body: Graph,
        init: Value,
        length: Dim,
        *,
        bcasts: Sequence[Value] = (),
        xs: Sequence[Value] = (),
    ) -> Value:
        """Every carry of a loop, [length, …]: row t is the carry after step t."""
        return _scan(body, init, length, bcasts, xs)[1]

    def scan_checkpointed(
        self,
        body: Graph,
        init: Value,
        length: int,
        num_checkpoints: int,
        *,
        bcasts: Sequence[Value] = (),
        xs: Sequence[Value] = (),
    ) -> Value:
        """Some carries of a loop: rows ⌊t·length / num_checkpoints⌋ of the trajectory.

        Raises:
            ShapeError: num_checkpoints is not from 1 to length.
        """
        from rlx.ops.indexing import Gather

        whole = all(isinstance(cast("object", n), int) for n in (num_checkpoints, length))
        if not whole or not 1 <= num_checkpoints <= length:
            raise ShapeError(
                f"scan_checkpointed: num_checkpoints is required to be from 1 to length = "
                f"{length}; got {num_checkpoints}."
            )
        rows = [t * length // num_checkpoints for t in range(num_checkpoints)]
        trajectory = _scan(body, init, length, bcasts, xs)[1]
        return Gather(axis=0)(trajectory, operators.constant(rows, "i32"))

    # Losses and sampling.
    def softmax_cross_entropy_with_logits(self, logits: Value, labels: Value) -> Value:
        """Cross entropy of the softmax of each row, for one right class in each row."""
        from rlx.ops.loss import SoftmaxCrossEntropyWithLogits

        made: Value = SoftmaxCrossEntropyWithLogits()(logits, labels)
        return made

    def sample(
        self,
        logits: Value,
        top_k: int = 0,
        top_p: float = 1.0,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> Value:
        """An index drawn from each row of logits [B, V]: i32[B]."""
        from rlx.ops.random import Sample

        op = Sample(top_k=top_k, top_p=top_p, temperature=temperature, seed=seed)
        made: Value = op(logits)
        return made

    def custom_fn(
        self,
        operands: Sequence[Value],
        fwd: Graph,
        vjp: Graph | None = None,
        jvp: Graph | None = None,
        name: str = "custom_fn",
    ) -> Value | tuple[Value, ...]:
        """A graph applied to operands, with derivatives of its own: its result or results."""
        from rlx.ops.custom import CustomFn

        made: Value | tuple[Value, ...] = CustomFn(fwd=fwd, vjp=vjp, jvp=jvp, name=name)(*operands)
        return made


def _norm(norm: BlockNorm | str) -> BlockNorm:
    from rlx.ops.complex_fft import BlockNorm

    known = [member.value for member in BlockNorm]
    if not isinstance(norm, BlockNorm) and norm not in known:
        raise RegistryError(f"fft: norm is required to be one of {known}; got {norm!r}.")
    return BlockNorm(norm)


def _last(where: str, x: Value) -> int:
    x = value_of(where, x)
    size = x.shape[-1] if x.rank else None
    if not isinstance(size, int):
        raise ShapeError(f"{where}: the state's size is required to be a number; got {x.type}.")
    return size


def _rank(x: Value) -> int:
    return value_of("gated_delta_net", x).rank


def _scan(
    body: Graph, init: Value, length: Dim, bcasts: Sequence[Value], xs: Sequence[Value]
) -> tuple[Value, Value]:
    from rlx.ops.control_flow import Scan

    bcasts, xs = listed("scan", "bcasts", bcasts), listed("scan", "xs", xs)
    shared = len(bcasts)
    if not isinstance(cast("object", body), Graph) or (
        len(body.inputs) != 1 + shared + len(xs) or len(body.outputs) != 1
    ):
        raise ShapeError(
            f"scan: body is required to be a graph of the carry, {shared} bcasts and {len(xs)} "
            f"slices that returns the next carry; got {body!r}."
        )
    carry, *others = body.inputs
    # The op has what it does not carry first, and stacks what a body returns after the carry.
    (after,) = body.outputs
    leaves = (*others[:shared], carry, *others[shared:])
    step = Graph(leaves, body.params, (after, after), body.effects, name=body.name)
    op = Scan(body=step, length=length, num_consts=shared, num_carry=1)
    last, trajectory = op(*bcasts, init, *xs)
    return last, trajectory
