"""How a caller's arguments become a graph's inputs, and its outputs the caller's structure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from rlx.errors import RunError

if TYPE_CHECKING:
    from rlx.ir.graph import Graph


@final
@dataclass(frozen=True, kw_only=True)
class Signature:
    """Names and structure of a callable graph.

    Attributes:
        inputs: names of the graph's inputs, in order.
        outputs: names of the graph's outputs, in order.
        flatten: ``(args, kwargs) -> list`` of one value per input; None when positional arguments
            are the inputs themselves.
        unflatten: list of outputs → the caller's structure; None when the outputs are returned as
            a list.
        single: whether the caller's structure is one array.
        weak_types: inputs that came from Python scalars (JAX's weak types).
        weak_outputs: outputs, by index, whose type is weak in JAX's sense.
        key_inputs: PRNG implementation by name of each input that is a key array; ``float0`` for
            a tangent of integers, which the graph has as booleans.
        key_outputs: the same by index of each such output.
        donated: names of inputs whose buffers a call consumes.
        x64: whether 64-bit types were enabled where the function was traced.
        tied: whether results stay on their device when a later call wants them elsewhere: always
            (True), where an argument of the call does (False), or as the backend has it (None).
        in_tree: the tracer's own form of the structure of ``(args, kwargs)``, for its backend.
        out_tree: the same for the results.
        fed: for each leaf of ``in_tree`` whether it is an input (else a param, left out).
        narrow: makes the signature without some inputs where ``flatten`` is given; None where
            the inputs are positional.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    flatten: Callable[[Sequence[Any], Mapping[str, Any]], list[Any]] | None = None
    unflatten: Callable[[Sequence[Any]], Any] | None = None
    single: bool = False
    weak_types: frozenset[str] = frozenset()
    weak_outputs: frozenset[int] = frozenset()
    key_inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    key_outputs: Mapping[int, str] = field(default_factory=dict[int, str])
    donated: frozenset[str] = frozenset()
    x64: bool = False
    tied: bool | None = None
    in_tree: Any = None
    out_tree: Any = None
    fed: tuple[bool, ...] | None = None
    narrow: Callable[[frozenset[str]], Signature] | None = field(default=None, repr=False)

    def leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Return one value per input from the arguments of a call.

        Raises:
            RunError: a keyword where inputs are positional; what ``flatten`` raises.
        """
        if self.flatten is not None:
            return self.flatten(args, kwargs)
        if kwargs:
            raise RunError(
                f"call: inputs are required by position; got the keyword {next(iter(kwargs))!r}. "
                f"The order is {', '.join(self.inputs) or 'none'}; run(...) takes them by name."
            )
        return args

    def rebuild(self, outputs: Sequence[Any]) -> Any:
        """Put outputs into the caller's structure."""
        if self.single:
            return outputs[0]
        return list(outputs) if self.unflatten is None else self.unflatten(outputs)

    def without(self, names: Collection[str]) -> Signature:
        """The signature of a call that does not pass some inputs.

        Arguments that hold nothing else are left out of the call; the places of others stay and
        what they hold is not looked at.
        """
        left_out = frozenset(names).intersection(self.inputs)
        if not left_out:
            return self
        if self.narrow is not None:
            return self.narrow(left_out)
        return dataclasses.replace(
            self,
            inputs=tuple(name for name in self.inputs if name not in left_out),
            weak_types=self.weak_types - left_out,
            key_inputs={n: impl for n, impl in self.key_inputs.items() if n not in left_out},
            donated=self.donated - left_out,
        )

    @property
    def is_flat(self) -> bool:
        """Whether positional arguments are the inputs themselves."""
        return self.flatten is None


def flat_signature(graph: Graph) -> Signature:
    """The signature of a built graph: positional inputs, a list (or one array) out."""
    return Signature(
        inputs=tuple(v.name for v in graph.inputs),
        outputs=tuple(f"output_{i}" for i in range(len(graph.outputs))),
        single=len(graph.outputs) == 1,
    )
