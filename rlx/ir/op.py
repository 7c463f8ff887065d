"""Ops: one frozen dataclass each, declared with ``@define_op`` and nowhere else.

The fields are the attributes; the parameters of ``infer`` are the inputs; ``infer`` is the only
shape and dtype check; ``evaluate`` (NumPy) or ``decompose`` (into other ops) is the meaning.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, dataclass_transform, final

from rlx import dims
from rlx.errors import (
    DTypeError,
    InconclusiveDimError,
    RegistryError,
    ShapeError,
    did_you_mean,
)
from rlx.ir import annotations, attributes

if TYPE_CHECKING:
    from rlx.ir.graph import Node, Value
    from rlx.types import Shape, TensorType


@final
class Level(enum.Enum):
    """The highest stage at which an op may stand."""

    HIR = "hir"
    MIR = "mir"


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Operand:
    """One parameter of ``infer``."""

    name: str
    optional: bool
    variadic: bool


class Op:
    """Base of all ops. Derive directly from it, and decorate with ``@define_op``.

    Class attributes:
        op_name: the name in text, unique.
        level: the highest stage at which the op may stand.
        version: grows when attributes or meaning change; printed as ``name.v2`` unless it is 1.
        operands: the inputs, read from ``infer``.
        primitive: whether the meaning is ``evaluate`` alone (no decomposition).
        composite: whether the op decomposes into others.
        attribute_names: the dataclass fields in order.
        holds_graphs: whether an attribute is annotated with ``Graph``.
    """

    op_name: ClassVar[str]
    level: ClassVar[Level]
    version: ClassVar[int] = 1
    operands: ClassVar[tuple[Operand, ...]]
    attribute_names: ClassVar[tuple[str, ...]]
    holds_graphs: ClassVar[bool] = False
    has_evaluate: ClassVar[bool]
    has_decompose: ClassVar[bool]
    _key: Hashable

    def __post_init__(self) -> None:
        if not self.attribute_names:
            return
        right, normal = True, attributes.NORMAL
        for name, allows, is_float in annotations.checks(type(self)):
            value = clean = getattr(self, name)
            kind = value.__class__
            if kind not in normal and not (kind is tuple and normal.issuperset(map(type, value))):
                clean = attributes.normalise(f"{self.op_name}.{name}", value)
            allowed = allows(clean)
            if allowed and is_float and type(clean) is int:
                clean = float(clean)
            if clean is not value:
                object.__setattr__(self, name, clean)
            right = right and allowed
        if not right:
            wrong = " ".join(text for _, text in annotations.faults(type(self), self.attributes()))
            raise RegistryError(f"{self.op_name}: {wrong} Pass a value of that type.")

    # ``*args, **kwargs`` of type Any is what lets an override name its own operands.
    def infer(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result type, or a tuple of them; the only shape and dtype check."""
        raise RegistryError(f"{type(self).__name__} does not define infer.")

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Return the NumPy result, or a tuple of them; inherited from the decomposition."""
        from rlx.ir.interpret import evaluate_decomposition

        del kwargs
        return evaluate_decomposition(self, args)

    def decompose(self, *args: Any, **kwargs: Any) -> Any:
        """Return the same meaning made of other ops (a Value or a tuple of them)."""
        raise RegistryError(f"op {self.op_name!r} is primitive: it has no decomposition.")

    def __call__(self, *inputs: Value) -> Any:
        """Make a node with this op; return its Value, or a tuple when there are several."""
        results = _maker()(self, inputs).results
        return results[0] if len(results) == 1 else results

    def infer_types(self, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """Check the input count, run ``infer``, and return the result types as a tuple."""
        if len(types) != len(self.operands):
            self._check_count(len(types))
        result = self.infer(*types)
        return cast("tuple[TensorType, ...]", result if type(result) is tuple else (result,))

    def attributes(self) -> dict[str, Any]:
        """The attributes by name, in declaration order."""
        return {name: getattr(self, name) for name in self.attribute_names}

    def replace(self, **changes: Any) -> Op:
        """The same op with some attributes changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def require(
        self,
        label: str,
        condition: bool,
        message: str | Callable[[], str],
        error: type[ShapeError] | type[DTypeError] = ShapeError,
    ) -> None:
        """Raise ``error`` with the constraint's label unless the condition holds.

        Args:
            label: the constraint in the docstring, ``"C1"`` …
            condition: what must hold.
            message: ``"what is required; what was found. What to do."``, or a function giving it
                (cheaper when the text is costly).
            error: ShapeError (default) or DTypeError.
        """
        if not condition:
            text = message if isinstance(message, str) else message()
            raise error(f"{self.op_name} [{label}]: {text}", label=label)

    def require_same_dims(
        self, label: str, found: Shape, wanted: Shape, message: str | Callable[[], str]
    ) -> None:
        """Raise unless two shapes are equal for every binding of their symbols.

        Raises:
            ShapeError: they differ, in rank or in a dim.
            InconclusiveDimError: symbolic dims may or may not be equal; carries the label.
        """
        if found == wanted:
            return
        self.require(label, len(found) == len(wanted), message)
        undecided: InconclusiveDimError | None = None
        for lhs, rhs in zip(found, wanted, strict=True):
            try:
                equal = dims.equal(lhs, rhs)
            except InconclusiveDimError as error:
                undecided = undecided or error  # a later axis may differ for certain
                continue
            self.require(label, equal, message)
        if undecided is not None:
            text = message if isinstance(message, str) else message()
            raise InconclusiveDimError(
                f"{self.op_name} [{label}]: {text} {undecided}", label=label
            ) from undecided

    def operand_names(self, count: int) -> list[str]:
        """Name ``count`` inputs; a variadic one is numbered ``xs[0]``, ``xs[1]`` and so on."""
        names: list[str] = []
        for operand in self.operands:
            if operand.variadic:
                names.extend(f"{operand.name}[{i}]" for i in range(count - len(names)))
            elif len(names) < count:
                names.append(operand.name)
        return names

    def identity(self) -> Hashable:
        """Class and attributes by type and bit pattern; what ``==`` and ``hash`` use."""
        found: Hashable = self.__dict__.get("_key")
        if found is None:
            parts = [attributes.key(getattr(self, n)) for n in self.attribute_names]
            found = (type(self), *parts)
            object.__setattr__(self, "_key", found)
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Op):
            return NotImplemented
        return self is other or self.identity() == other.identity()

    def __hash__(self) -> int:
        return hash(self.identity())

    def __repr__(self) -> str:
        shown = ", ".join(f"{n}={getattr(self, n)!r}" for n in self.attribute_names)
        return f"{type(self).__name__}({shown})"

    def _check_count(self, count: int) -> None:
        low = sum(not o.optional and not o.variadic for o in self.operands)
        variadic = any(o.variadic for o in self.operands)
        high = None if variadic else len(self.operands)
        if count < low or (high is not None and count > high):
            wanted = f"at least {low}" if high is None else f"{low}"
            if high is not None and high != low:
                wanted = f"{low} to {high}"
            names = ", ".join(o.name for o in self.operands)
            raise ShapeError(
                f"{self.op_name}: required {wanted} inputs ({names}); got {count}.", label="count"
            )


@functools.cache
def _maker() -> Callable[[Op, Sequence[Value]], Node]:
    """What makes nodes; its module needs this one, and an import at every call takes its time."""
    from rlx.ir.graph import make_node

    return make_node


_OPS: dict[str, type[Op]] = {}
_FAMILIES = (
    "io", "arithmetic", "transcendental", "special", "bitwise", "compare", "activation", "convert",
    "complex_fft", "shape", "indexing", "reduction", "sorting", "dot", "solve", "normalization",
    "convolution", "pooling", "attention", "position", "sequence", "random", "quantized", "loss",
    "backward", "fused", "collective", "control_flow", "custom", "effect", "blocks", "external",
)  # fmt: skip
"""Family modules of ``rlx.ops``; one that does not exist yet is passed over."""

OpClass = TypeVar("OpClass", bound=type[Op])


@dataclass_transform(frozen_default=True, kw_only_default=True)
def define_op(
    name: str, *, level: Level = Level.MIR, version: int = 1
) -> Callable[[OpClass], OpClass]:
    """Register an op class under a name, after checking its declaration.

    Args:
        name: the name in text, unique among all ops.
        level: the highest stage at which the op may stand.
        version: number of the declaration; text of another version is refused when it is read.

    Raises:
        RegistryError: the name is taken (both modules are named), an attribute's type is outside
            the closed set, or ``infer``, ``evaluate`` and ``decompose`` disagree on the inputs.
    """

    def register(cls: OpClass) -> OpClass:
        # A qualified re-import of the same module (reload) replaces; anything else is a clash.
        other = _OPS.get(name)
        if other is not None and (other.__module__, other.__qualname__) != (
            cls.__module__,
            cls.__qualname__,
        ):
            raise RegistryError(
                f"define_op: op name {name!r} is taken by {other.__module__}.{other.__qualname__}; "
                f"{cls.__module__}.{cls.__qualname__} needs another."
            )
        made = dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)
        made.op_name = name
        made.level = level
        made.version = version
        made.attribute_names = tuple(f.name for f in dataclasses.fields(made))  # type: ignore[arg-type]
        made.holds_graphs = any("Graph" in str(f.type) for f in dataclasses.fields(made))  # type: ignore[arg-type]
        for field in dataclasses.fields(made):  # type: ignore[arg-type]
            _check_annotation(made, field.name, annotations.text_of(field.type))
        made.operands = _operands(made, "infer")
        made.has_evaluate = made.evaluate is not Op.evaluate
        made.has_decompose = made.decompose is not Op.decompose
        _check_meaning(made)
        _OPS[name] = made
        return made

    return register


def op_named(name: str) -> type[Op]:
    """Return the op class registered under a name.

    An unknown name loads the ops of other packages: the entry points of the group ``rlx.ops``,
    each a module whose import defines ops.

    Raises:
        RegistryError: no such op; the closest name is suggested.
    """
    found = _OPS.get(name) or all_ops().get(name)
    if found is None:
        _load_packages()
        found = _OPS.get(name)
    if found is None:
        raise RegistryError(
            f"op {name!r} is not registered.{did_you_mean(name, _OPS)} If another package defines "
            "it, import that package first."
        )
    return found


def all_ops() -> Mapping[str, type[Op]]:
    """Every registered op by name; loads all families of ``rlx.ops``."""
    for family in existing_families():
        importlib.import_module(f"rlx.ops.{family}")
    return dict(sorted(_OPS.items()))


def _load_packages() -> None:
    for point in entry_points(group="rlx.ops"):
        try:
            point.load()
        except ImportError as error:
            raise RegistryError(
                f"entry point {point.name!r} of the group 'rlx.ops': {point.value!r} is required "
                f"to import; {error}. Repair or uninstall the package."
            ) from error


def existing_families() -> Iterator[str]:
    """Names of the family modules that are there."""
    for family in _FAMILIES:
        if importlib.util.find_spec(f"rlx.ops.{family}") is not None:
            yield family


def _operands(cls: type[Op], method: str) -> tuple[Operand, ...]:
    found: list[Operand] = []
    for parameter in list(inspect.signature(getattr(cls, method)).parameters.values())[1:]:
        variadic = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        if parameter.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
            raise RegistryError(
                f"{cls.__name__}.{method}: inputs are positional; {parameter.name!r} is not."
            )
        optional = parameter.default is not inspect.Parameter.empty
        found.append(Operand(parameter.name, optional, variadic))
    return tuple(found)


def _check_meaning(cls: type[Op]) -> None:
    if cls.infer is Op.infer:
        raise RegistryError(f"define_op: {cls.__name__} needs infer.")
    if not cls.has_evaluate and not cls.has_decompose:
        raise RegistryError(f"define_op: {cls.__name__} needs evaluate or decompose (or both).")
    for method in ("evaluate", "decompose"):
        if getattr(cls, method) is getattr(Op, method):
            continue
        names = [(o.name, o.variadic) for o in _operands(cls, method)]
        wanted = [(o.name, o.variadic) for o in cls.operands]
        if names != wanted:
            raise RegistryError(
                f"define_op: {cls.__name__}.{method} takes {[n for n, _ in names]}; "
                f"infer takes {[n for n, _ in wanted]}. Use the same names."
            )


_ALLOWED = {
    "bool", "int", "float", "str", "bytes", "None", "DType", "Dim", "Shape", "Literal", "Graph",
    "Opaque", "tuple", "Ellipsis", "Attribute",
}  # fmt: skip


def _check_annotation(cls: type[Op], field: str, annotation: str) -> None:
    module = importlib.import_module(cls.__module__)
    for node in ast.walk(ast.parse(annotation, mode="eval")):
        if not isinstance(node, ast.Name) or node.id in _ALLOWED:
            continue
        target = getattr(module, node.id, None)
        if not (isinstance(target, type) and issubclass(target, enum.Enum)):
            raise RegistryError(
                f"define_op: {cls.__name__}.{field} is annotated {annotation!r}; {node.id!r} is "
                "outside the closed set of attribute types."
            )
