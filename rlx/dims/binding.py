"""Bindings of symbols to sizes, and inferring them from the shapes of inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast, final

from rlx.dims.decide import divisible
from rlx.dims.expr import Dim, DimExpr, as_number, check_bounds, evaluate, is_static, substitute
from rlx.dims.polynomial import Symbol
from rlx.errors import DimError, SizesError, UnboundDimError, did_you_mean


@final
class DimBinding(Mapping[str, int]):
    """An immutable, hashable map from symbol names to sizes, in the order of the names.

    `set` returns a new binding. RLX's numbered symbols are ``batch``, ``seq``, ``rows`` and
    ``past_seq``.
    """

    __slots__ = ("_hash", "_sizes")

    def __init__(self, sizes: Mapping[str, int] | Iterable[tuple[str, int]] = ()) -> None:
        """Make a binding.

        Args:
            sizes: symbol name -> size >= 0, as a mapping or as pairs.

        Raises:
            DimError: a size is no int or negative, or a name occurs twice with two sizes.
        """
        if isinstance(sizes, str) or not isinstance(cast("object", sizes), Iterable):
            raise DimError(
                "DimBinding: a mapping (symbol → size), or pairs of them, is required; got "
                f"{sizes!r}."
            )
        found: dict[str, int] = {}
        pairs: Iterable[tuple[str, int]] = (
            cast(Mapping[str, int], sizes).items() if isinstance(sizes, Mapping) else sizes
        )
        for name, size in pairs:
            number = _size(size, name)
            if found.setdefault(name, number) != number:
                raise DimError(
                    f"DimBinding: symbol {name} must have one size; got {found[name]} and "
                    f"{number}. Remove one of them."
                )
        self._sizes = dict(sorted(found.items()))
        self._hash = hash(tuple(self._sizes.items()))

    @classmethod
    def new(cls) -> DimBinding:
        """Return the empty binding."""
        return cls()

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[str, int]]) -> DimBinding:
        """Return a binding of (name, size) pairs."""
        return cls(pairs)

    @classmethod
    def batch_seq(cls, batch: int, seq: int) -> DimBinding:
        """Bind ``batch`` and ``seq``, and ``rows`` to their product when batch > 1."""
        sizes = {"batch": batch, "seq": seq}
        if batch > 1:
            sizes["rows"] = batch * seq
        return cls(sizes)

    @classmethod
    def batch_past_seq(cls, batch: int, past_seq: int) -> DimBinding:
        """Bind ``batch`` and ``past_seq``."""
        return cls({"batch": batch, "past_seq": past_seq})

    def set(self, name: str, size: int) -> DimBinding:
        """Return this binding with one size added or replaced."""
        return DimBinding({**self._sizes, name: size})

    def __getitem__(self, name: str) -> int:
        """Return a size; KeyError when the name is not bound."""
        return self._sizes[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, sorted."""
        return iter(self._sizes)

    def __len__(self) -> int:
        """Return the number of bound names."""
        return len(self._sizes)

    def __eq__(self, other: object) -> bool:
        """Whether both bind the same names to the same sizes."""
        return isinstance(other, DimBinding) and self._sizes == other._sizes

    def __hash__(self) -> int:
        """Hash names and sizes."""
        return self._hash

    def __str__(self) -> str:
        """Return ``batch=2, seq=16``."""
        return ", ".join(f"{name}={size}" for name, size in self._sizes.items())

    def __repr__(self) -> str:
        """Show the sizes."""
        return f"DimBinding({self._sizes})"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by value: hashes of strings differ between processes."""
        return DimBinding, (self._sizes,)


def same_binding(a: DimBinding, b: DimBinding) -> bool:
    """Whether two bindings have the same entries."""
    return a == b


def infer_bindings(
    inputs: Iterable[tuple[str, Sequence[Dim]]],
    actual: Mapping[str, Sequence[int]],
    known: DimBinding | None = None,
) -> DimBinding:
    """Solve the symbols of declared shapes from actual shapes.

    A bare symbol is read off; an expression that is linear in its one unknown symbol, such as
    ``2*b + 1``, is solved; every other expression is checked when its symbols are bound.

    Args:
        inputs: (name, declared shape) of each input.
        actual: input name -> actual shape; an input that is left out is skipped.
        known: sizes that are given and must agree.

    Returns:
        The binding of `known` and of all symbols of the inputs in `actual`.

    Raises:
        DimError: shapes contradict each other, their declaration or a symbol's bounds; every
            fault has a line.
        UnboundDimError: a size does not determine its symbols.
    """
    declared = dict(inputs)
    unknown = [name for name in actual if name not in declared]
    if unknown:
        raise DimError(
            f"infer_bindings: names of inputs are required: {', '.join(declared)}; "
            f"got {', '.join(unknown)}.{did_you_mean(unknown[0], declared)} Remove or rename it."
        )
    solver = _Solver(known)
    for name, shape in declared.items():
        if name in actual:
            solver.add_input(name, shape, actual[name])
    solver.solve()
    return DimBinding(solver.sizes)


@final
class _Solver:
    """Sizes found so far, where each came from, and faults."""

    def __init__(self, known: DimBinding | None) -> None:
        self.sizes: dict[str, int] = dict(known or {})
        self.sources: dict[str, str] = dict.fromkeys(self.sizes, "the given binding")
        self.waiting: list[tuple[str, DimExpr, int]] = []
        self.given: list[tuple[str, Symbol]] = []
        self.faults: list[str] = []

    def add_input(self, name: str, shape: Sequence[Dim], sizes: Sequence[int]) -> None:
        """Read off ints and bare symbols; keep expressions for later."""
        if isinstance(sizes, str) or not hasattr(sizes, "__len__"):
            raise DimError(
                f"infer_bindings: a shape such as (2, 3) is required for input '{name}'; got "
                f"{sizes!r}. Pass a tuple of sizes."
            )
        if len(shape) != len(sizes):
            self.faults.append(
                f"input '{name}' must have rank {len(shape)}, shape {_shape_text(shape)}; "
                f"got rank {len(sizes)}, shape {_shape_text(sizes)}"
            )
            return
        for axis, (dim, value) in enumerate(zip(shape, sizes, strict=True)):
            size = value if type(value) is int else _size(value, f"'{name}' axis {axis}")
            if not isinstance(dim, DimExpr):
                if dim != size:
                    self.faults.append(f"input '{name}' axis {axis} must be {dim}; got {size}")
            elif dim.name is not None:
                self.bind(dim.polynomial.symbols[dim.name], size, f"'{name}' axis {axis}")
            else:
                self.waiting.append((f"'{name}' axis {axis}", dim, size))

    def bind(self, symbol: Symbol, size: int, source: str) -> None:
        """Record a size, or a fault when it contradicts."""
        name = symbol.name
        known = self.sizes.get(name)
        if known is None:
            self.sizes[name] = known = size
            self.sources[name] = source
        if known != size:
            self.faults.append(
                f"symbol {name} bound to {known} by {self.sources[name]} and {size} by {source}"
            )
        elif (symbol.lower is not None and size < symbol.lower) or (
            symbol.upper is not None and size > symbol.upper
        ):
            limits = " and ".join(
                f"{sign} {bound}"
                for sign, bound in ((">=", symbol.lower), ("<=", symbol.upper))
                if bound is not None
            )
            self.faults.append(f"symbol {name} must be {limits}; got {size} by {source}")

    def solve(self) -> None:
        """Solve or check the waiting expressions until nothing changes, then report."""
        waiting = self.waiting
        while waiting and not self.faults:
            left: list[tuple[str, DimExpr, int]] = []
            for source, dim, size in waiting:
                if not self.settle(source, dim, size):
                    left.append((source, dim, size))
            if len(left) == len(waiting):
                break
            waiting = left
        if self.faults:
            raise SizesError(
                "infer_bindings: actual shapes must agree with the declared ones; "
                + "; ".join(self.faults)
                + ". Pass inputs whose sizes agree."
            )
        if waiting:
            rows = "; ".join(
                f"{source}: {dim} = {size} leaves "
                + ", ".join(n for n in sorted(dim.polynomial.symbols) if n not in self.sizes)
                for source, dim, size in waiting
            )
            raise UnboundDimError(
                f"infer_bindings: sizes must determine every symbol; {rows} open. "
                "Pass an explicit DimBinding, or an input whose dim is the bare symbol."
            )

    def settle(self, source: str, dim: DimExpr, size: int) -> bool:
        """Check or solve one expression; False when it must wait."""
        open_names = [n for n in dim.polynomial.symbols if n not in self.sizes]
        if not open_names:
            found = evaluate(dim, self.sizes)
            if found != size:
                used = ", ".join(
                    f"{n}={self.sizes[n]} by {self.sources[n]}"
                    for n in sorted(dim.polynomial.symbols)
                )
                self.faults.append(f"{source} must be {dim} = {found} ({used}); got {size}")
            return True
        if len(open_names) > 1:
            return False
        rest = substitute(dim, self.sizes)
        line = _linear(rest, open_names[0])
        if line is None:
            return False
        slope, offset = line
        if (size - offset) % slope:
            self.faults.append(
                f"{source}: {dim} = {size} must have an integer solution; "
                f"{open_names[0]} = {size - offset}/{slope} is none"
            )
            return True
        solved = (size - offset) // slope
        self.bind(dim.polynomial.symbols[open_names[0]], solved, source)
        return True


def infer_bindings_from_lengths(
    inputs: Iterable[tuple[str, Sequence[Dim]]], lengths: Mapping[str, int]
) -> DimBinding:
    """Solve the symbols of declared shapes from flat lengths, with RLX's messages.

    Args:
        inputs: (name, declared shape) of each input; at most one dim of each is dynamic.
        lengths: input name -> number of elements; an input that is left out is skipped.

    Raises:
        DimError: an input has two dynamic dims, a static product of 0, a length that does not
            divide, or a size that contradicts another input or the symbol's bounds.
    """
    sizes: dict[str, int] = {}
    for name, shape in inputs:
        if name not in lengths or is_static(shape):
            continue
        length = _size(lengths[name], name)
        dynamic = [dim for dim in shape if isinstance(dim, DimExpr)]
        static = 1
        for dim in shape:
            static *= 1 if isinstance(dim, DimExpr) else dim
        names = list(dynamic[0].polynomial.symbols)
        line = _linear(dynamic[0], names[0]) if len(names) == 1 else None
        if len(dynamic) > 1 or line is None:
            raise SizesError(
                f"Input '{name}' has multiple dynamic dims; pass an explicit DimBinding"
            )
        if static == 0:
            raise SizesError(f"Input '{name}': static dim product is zero")
        slope, offset = line
        if not divisible(length, static) or (length // static - offset) % slope:
            raise SizesError(
                f"Input '{name}': len {length} not divisible by static product {static}"
            )
        size = (length // static - offset) // slope
        first = sizes.setdefault(names[0], size)
        if first != size:
            raise SizesError(f"symbol {names[0]} bound to {first} and {size} from different inputs")
        declared = dynamic[0].polynomial.symbols[names[0]]
        check_bounds(declared, size, f"infer_bindings: input '{name}'")
    return DimBinding(sizes)


def _linear(dim: Dim, name: str) -> tuple[int, int] | None:
    """Return (slope, offset) when dim is slope * name + offset with slope != 0."""
    if not isinstance(dim, DimExpr):
        return None
    slope, offset = 0, 0
    for monomial, coefficient in dim.polynomial.terms:
        if not monomial:
            offset = coefficient
            continue
        atom, exponent = monomial[0]
        single = len(monomial) == 1 and exponent == 1
        if not (single and isinstance(atom, Symbol) and atom.name == name):
            return None
        slope = coefficient
    return slope, offset


def _size(value: object, name: str) -> int:
    number = as_number(value)
    if number is not None and number >= 0:
        return number
    raise DimError(
        f"DimBinding: the size of {name} must be an int >= 0; got {value!r}. Pass a size."
    )


def _shape_text(shape: Sequence[Dim]) -> str:
    return "[" + ", ".join(str(d) for d in shape) + "]"
