"""Dims: ring laws, floor identities, evaluation, text and decisions against random bindings."""

from __future__ import annotations

import pickle
from collections.abc import Callable

from hypothesis import assume, given
from hypothesis import strategies as st

from rlx import dims
from rlx.dims import Dim
from rlx.errors import DimError, InconclusiveDimError

# Bounds of several kinds, so that every rule that reads bounds is exercised.
SYMBOLS = {
    "b": dims.symbol("b"),
    "s": dims.symbol("s"),
    "k": dims.symbol("k", 2, 9),
    "z": dims.symbol("z", None, 3),
    "o": dims.symbol("o", -4, None),
}
RANGES = {"b": (1, 12), "s": (1, 12), "k": (2, 9), "z": (-9, 3), "o": (-4, 9)}

Binding = dict[str, int]
# An expression is drawn with its meaning, which knows nothing of normal forms.
Meaning = Callable[[Binding], int]
Pair = tuple[Dim, Meaning]

bindings = st.fixed_dictionaries({n: st.integers(*r) for n, r in RANGES.items()})


def leaf(name: str) -> Pair:
    return SYMBOLS[name], lambda env: env[name]


def number(value: int) -> Pair:
    return value, lambda env: value


leaves = st.one_of(st.sampled_from(sorted(SYMBOLS)).map(leaf), st.integers(-7, 7).map(number))


def combine(operator: str, x: Pair, y: Pair) -> Pair | None:
    """Apply an operator to expressions and meanings; None when it cannot be built."""
    (a, f), (b, g) = x, y
    try:
        match operator:
            case "+":
                return a + b, lambda env: f(env) + g(env)
            case "-":
                return a - b, lambda env: f(env) - g(env)
            case "*":
                return a * b, lambda env: f(env) * g(env)
            case "//":
                return dims.floordiv_(a, b), lambda env: f(env) // g(env)
            case "%":
                return dims.mod_(a, b), lambda env: f(env) % g(env)
            case "min":
                return dims.min_(a, b), lambda env: min(f(env), g(env))
            case _:
                return dims.max_(a, b), lambda env: max(f(env), g(env))
    except DimError:  # a divisor that is 0 in every binding, or a limit
        return None


def grow(children: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    operators = st.sampled_from(["+", "-", "*", "//", "//", "%", "%", "min", "max"])
    built = st.builds(combine, operators, children, children)
    return built.filter(lambda pair: pair is not None)


pairs = st.recursive(leaves, grow, max_leaves=8)
exprs = pairs.map(lambda pair: pair[0])


def value_of(meaning: Meaning, env: Binding) -> int | None:
    try:
        return meaning(env)
    except ZeroDivisionError:
        return None


@given(exprs, exprs, exprs)
def test_ring_laws(x: Dim, y: Dim, z: Dim) -> None:
    assert x + y == y + x
    assert (x + y) + z == x + (y + z)
    assert x * y == y * x
    assert (x * y) * z == x * (y * z)
    assert x * (y + z) == x * y + x * z
    assert x - x == 0
    assert x + 0 == x
    assert 1 * x == x
    assert 0 * x == 0
    assert 0 - (0 - x) == x
    assert hash(x + y) == hash(y + x)


@given(pairs, bindings)
def test_evaluation_commutes_with_every_operation(pair: Pair, env: Binding) -> None:
    expected = value_of(pair[1], env)
    assume(expected is not None)
    assert dims.evaluate(pair[0], env) == expected


@given(pairs, bindings, st.sets(st.sampled_from(sorted(SYMBOLS))))
def test_evaluation_commutes_with_partial_substitution(
    pair: Pair, env: Binding, first: set[str]
) -> None:
    expected = value_of(pair[1], env)
    assume(expected is not None)
    part = dims.substitute(pair[0], {n: env[n] for n in first})
    assert not first & set(dims.symbols(part))
    assert dims.evaluate(part, env) == expected


@given(pairs, pairs, bindings)
def test_evaluation_commutes_with_substitution_of_expressions(
    pair: Pair, inner: Pair, env: Binding
) -> None:
    value = value_of(inner[1], env)
    assume(value is not None and value >= 1)
    expected = value_of(pair[1], {**env, "b": value or 0})
    assume(expected is not None)
    try:
        replaced = dims.substitute(pair[0], {"b": inner[0]})
    except DimError:  # not shown to be >= 1, or a divisor that is 0
        assume(False)
        return
    assert dims.evaluate(replaced, env) == expected


@given(exprs, exprs, st.integers(-9, 9).filter(bool))
def test_floor_identities(x: Dim, y: Dim, k: int) -> None:
    assert (k * x) // k == x
    assert (k * x) % k == 0
    assert (x + k * y) // k == x // k + y
    assert (x + k * y) % k == x % k
    assert x // 1 == x
    assert dims.equal(k * (x // k) + x % k, x)


@given(exprs, bindings)
def test_division_by_an_expression(x: Dim, env: Binding) -> None:
    b, s = SYMBOLS["b"], SYMBOLS["s"]
    assert (x * b) // b == x
    assert (x * b * s) % (b * s) == 0
    assert (x * (b + s)) // (b + s) == x
    assert (b * s + x) // s == b + dims.floordiv_(x, s)


@given(exprs)
def test_text_round_trip(x: Dim) -> None:
    assert dims.parse(str(x), SYMBOLS) == x
    assert str(dims.parse(str(x), SYMBOLS)) == str(x)
    assert pickle.loads(pickle.dumps(x)) == x


@given(exprs, bindings)
def test_text_is_python(x: Dim, env: Binding) -> None:
    value = dims.evaluate(x, env) if _defined(x, env) else None
    assume(value is not None)
    names = {"__builtins__": {}, "min": min, "max": max, **env}
    assert eval(str(x), names) == value


def _defined(x: Dim, env: Binding) -> bool:
    try:
        dims.evaluate(x, env)
    except DimError:
        return False
    return True


@given(pairs, bindings)
def test_bounds_hold(pair: Pair, env: Binding) -> None:
    value = value_of(pair[1], env)
    assume(value is not None)
    low, high = dims.bounds(pair[0])
    assert low is None or low <= value
    assert high is None or value <= high


@given(pairs, pairs, bindings)
def test_decisions_are_never_wrong(x: Pair, y: Pair, env: Binding) -> None:
    left, right = value_of(x[1], env), value_of(y[1], env)
    assume(left is not None and right is not None)
    assert left is not None
    assert right is not None
    questions: list[tuple[Callable[[Dim, Dim], bool], bool]] = [
        (dims.equal, left == right),
        (dims.less, left < right),
        (dims.less_equal, left <= right),
    ]
    if right:
        questions.append((dims.divisible, left % right == 0))
    for ask, truth in questions:
        try:
            answer = ask(x[0], y[0])
        except InconclusiveDimError:
            continue
        assert answer == truth


@given(pairs, pairs, bindings)
def test_broadcast_is_never_wrong(x: Pair, y: Pair, env: Binding) -> None:
    left, right = value_of(x[1], env), value_of(y[1], env)
    assume(left is not None and right is not None)
    fits = left == right or 1 in (left, right)
    try:
        result = dims.broadcast(x[0], y[0])
    except InconclusiveDimError:
        return
    except DimError:
        assert not fits
        return
    assert fits
    assert dims.evaluate(result, env) == (right if left == 1 else left)


@given(bindings)
def test_inference_undoes_evaluation(env: Binding) -> None:
    b, s, k = SYMBOLS["b"], SYMBOLS["s"], SYMBOLS["k"]
    inputs = [("y", (b * s // 2, 3 * k - 1, 7)), ("x", (2 * b + 1, b + s))]
    actual = {n: tuple(dims.evaluate(d, env) for d in shape) for n, shape in inputs}
    found = dims.infer_bindings(inputs, actual)
    assert found == dims.DimBinding({n: env[n] for n in "bsk"})
