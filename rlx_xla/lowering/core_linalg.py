"""Linear algebra without a library: functions of JAX whose StableHLO has no custom calls.

They stand in where a module must be portable, and on platforms whose library lacks a method. All
are exact to rounding, loops over columns or pairs of columns, and slower than a library.

Source: LAPACK's unblocked routines (getf2, geqr2, laqp2, org2r, gtsv) for the factorisations;
Jacobi's method with the pairs of a round-robin tournament for eigenvalues and singular values
(Golub & Van Loan, Matrix Computations, sections 8.5 and 8.6).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_SWEEPS = 40
"""Sweeps over all pairs after which Jacobi's method gives up; about ten are needed."""


def batched(function: Callable[..., Any], leading: int) -> Callable[..., Any]:
    """A function of single matrices and vectors as one of stacks with so many leading axes."""
    for _ in range(leading):
        function = jax.vmap(function)
    return function


def cholesky(a: jax.Array) -> jax.Array:
    """The lower factor of one matrix, of which the lower triangle is read."""
    n = a.shape[0]
    rows = jnp.arange(n)

    def step(k: Any, state: Any) -> Any:
        a, good = state
        pivot = jnp.real(a[k, k])
        root = jnp.sqrt(pivot).astype(a.dtype)
        column = jnp.where(rows > k, a[:, k] / root, 0)
        a = a - jnp.outer(column, jnp.conj(column))
        column = jnp.where(rows == k, root, column)
        return a.at[:, k].set(jnp.where(rows < k, a[:, k], column)), good & (pivot > 0)

    half = jnp.tril(a, -1) + jnp.diag(jnp.real(jnp.diagonal(a)).astype(a.dtype))
    factor, good = lax.fori_loop(0, n, step, (half, jnp.asarray(True)))
    return jnp.tril(jnp.where(good, factor, jnp.asarray(jnp.nan, a.dtype)))


def triangular_solve(
    a: jax.Array,
    b: jax.Array,
    *,
    left_side: bool,
    lower: bool,
    transpose_a: bool,
    conjugate_a: bool,
    unit_diagonal: bool,
) -> jax.Array:
    """Substitution, row by row; ``a`` stands on the left or the right of the unknown."""
    a = jnp.conj(a) if conjugate_a else a
    if transpose_a == left_side:  # once in all, where the unknown is on the right as well
        a, lower = a.T, not lower
    b = b if left_side else b.T
    if not lower:
        a, b = a[::-1, ::-1], b[::-1]
    a = jnp.tril(a)

    def step(i: Any, x: jax.Array) -> jax.Array:
        rest = b[i] - a[i] @ x
        return x.at[i].set(rest if unit_diagonal else rest / a[i, i])

    if unit_diagonal:
        a = jnp.tril(a, -1)
    x = lax.fori_loop(0, a.shape[0], step, jnp.zeros_like(b))
    x = x if lower else x[::-1]
    return x if left_side else x.T


def lu(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``lu``, pivots and permutation of one matrix."""
    m, n = a.shape
    rows, columns = jnp.arange(m), jnp.arange(n)

    def step(k: Any, state: Any) -> Any:
        a, pivots, order = state
        size = jnp.where(rows >= k, _size(a[:, k]), -1)
        i = jnp.argmax(size).astype(jnp.int32)
        a, order = _exchanged(a, k, i), _exchanged(order, k, i)
        pivot = a[k, k]
        quotient = a[:, k] / jnp.where(pivot == 0, jnp.ones_like(pivot), pivot)
        column = jnp.where(rows > k, quotient, a[:, k])
        a = a.at[:, k].set(column)
        below = jnp.where(rows > k, column, 0)
        right = jnp.where(columns > k, a[k, :], 0)
        return a - jnp.outer(below, right), pivots.at[k].set(i), order

    count = min(m, n)
    start = a, jnp.zeros(count, jnp.int32), jnp.arange(m, dtype=jnp.int32)
    return lax.fori_loop(0, count, step, start)


def permutation(pivots: jax.Array, *, size: int) -> jax.Array:
    """The order of rows after the exchanges of pivots."""
    order = jnp.arange(size, dtype=pivots.dtype)
    return lax.fori_loop(
        0, pivots.shape[0], lambda k, order: _exchanged(order, k, pivots[k]), order
    )


def geqrf(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Reflections with R above them, and their factors."""
    count = min(a.shape)

    def step(k: Any, state: Any) -> Any:
        a, taus = state
        a, tau = _reflected(a, k)
        return a, taus.at[k].set(tau)

    return lax.fori_loop(0, count, step, (a, jnp.zeros(count, a.dtype)))


def geqp3(a: jax.Array, first: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """As ``geqrf`` with columns exchanged; the order, counted from 1, stands in the middle."""
    m, n = a.shape
    count = min(m, n)
    order = jnp.argsort(first == 0, stable=True).astype(jnp.int32)
    fixed = jnp.sum(first != 0)
    rows, columns = jnp.arange(m), jnp.arange(n)

    def step(k: Any, state: Any) -> Any:
        a, order, taus = state
        left = jnp.where(rows[:, None] >= k, a, 0)
        norms = jnp.where(columns >= k, jnp.sum(_square(left), axis=0), -1)
        i = jnp.where(k < fixed, k, jnp.argmax(norms))
        a, order = _exchanged(a.T, k, i).T, _exchanged(order, k, i)
        a, tau = _reflected(a, k)
        return a, order, taus.at[k].set(tau)

    start = a[:, order], order, jnp.zeros(count, a.dtype)
    a, order, taus = lax.fori_loop(0, count, step, start)
    return a, order + 1, taus


def householder_product(a: jax.Array, taus: jax.Array) -> jax.Array:
    """The first columns of the product of reflections."""
    m, n = a.shape
    count = taus.shape[0]
    rows = jnp.arange(m)

    def step(i: Any, q: jax.Array) -> jax.Array:
        k = count - 1 - i
        v = jnp.where(rows > k, a[:, k], 0) + (rows == k).astype(a.dtype)
        return q - taus[k] * jnp.outer(v, jnp.conj(v) @ q)

    return lax.fori_loop(0, count, step, jnp.eye(m, n, dtype=a.dtype))


def eigh(a: jax.Array, *, lower: bool) -> tuple[jax.Array, jax.Array]:
    """Eigenvectors and ascending eigenvalues of one Hermitian matrix."""
    n = a.shape[0]
    half = jnp.tril(a, -1) if lower else jnp.conj(jnp.triu(a, 1)).T
    whole = half + jnp.conj(half).T + jnp.diag(jnp.real(jnp.diagonal(a)).astype(a.dtype))
    scale = _scale(whole)
    table, size = _pairs(n)
    whole = jnp.pad(whole / scale, ((0, size - n), (0, size - n)))
    bound = jnp.finfo(whole.dtype).eps * jnp.sqrt(jnp.sum(_square(whole)))

    def rotate(state: Any, p: jax.Array, q: jax.Array) -> Any:
        a, v, worst = state
        entry = a[p, q]
        cos, sin, phase = _rotation(jnp.real(a[p, p]), jnp.real(a[q, q]), entry)
        a = _columns(a, p, q, cos, sin, phase)
        a = jnp.conj(_columns(jnp.conj(a).T, p, q, cos, sin, phase)).T
        a = a.at[p, q].set(0).at[q, p].set(0)
        return a, _columns(v, p, q, cos, sin, phase), jnp.maximum(worst, jnp.max(jnp.abs(entry)))

    start = whole, jnp.eye(size, dtype=a.dtype)
    whole, v = _sweep(rotate, start, table, bound / max(n, 1))
    w = jnp.real(jnp.diagonal(whole))[:n]
    order = jnp.argsort(w, stable=True)
    good = jnp.isfinite(scale)
    nan = jnp.asarray(jnp.nan, w.dtype)
    return jnp.where(good, v[:n, :n][:, order], nan), jnp.where(good, w[order] * scale, nan)


def svd(a: jax.Array, *, full_matrices: bool, compute_uv: bool) -> tuple[jax.Array, ...]:
    """``s, u, vᴴ`` of one matrix, or ``s`` alone."""
    m, n = a.shape
    if m < n:
        found = svd(jnp.conj(a).T, full_matrices=full_matrices, compute_uv=compute_uv)
        if not compute_uv:
            return found
        s, u, vh = found
        return s, jnp.conj(vh).T, jnp.conj(u).T
    if not n:  # a loop is traced once, and would look at a column
        s = jnp.zeros(0, jnp.finfo(a.dtype).dtype)
        u = jnp.eye(m, m if full_matrices else 0, dtype=a.dtype)
        return (s, u, jnp.zeros((0, 0), a.dtype)) if compute_uv else (s,)
    scale = _scale(a)
    table, size = _pairs(n)
    work = jnp.pad(a / scale, ((0, 0), (0, size - n)))
    eps = jnp.finfo(a.dtype).eps
    small = eps * eps * jnp.sum(_square(work))

    def rotate(state: Any, p: jax.Array, q: jax.Array) -> Any:
        w, v, worst = state
        left, right = w[:, p], w[:, q]
        alpha, beta = jnp.sum(_square(left), axis=0), jnp.sum(_square(right), axis=0)
        gamma = jnp.sum(jnp.conj(left) * right, axis=0)
        length = jnp.sqrt(alpha) * jnp.sqrt(beta)
        ratio = jnp.where(length > small, jnp.abs(gamma) / jnp.where(length > 0, length, 1), 0)
        cos, sin, phase = _rotation(alpha, beta, gamma)
        w = _columns(w, p, q, cos, sin, phase)
        return w, _columns(v, p, q, cos, sin, phase), jnp.maximum(worst, jnp.max(ratio))

    start = work, jnp.eye(size, dtype=a.dtype)
    work, v = _sweep(rotate, start, table, eps * m)
    norms = jnp.sqrt(jnp.sum(_square(work), axis=0))[:n]
    order = jnp.argsort(-norms, stable=True)
    good = jnp.isfinite(scale)
    nan = jnp.asarray(jnp.nan, norms.dtype)
    s = jnp.where(good, norms[order] * scale, nan)
    if not compute_uv:
        return (s,)
    # The columns are orthogonal; a QR of them makes unit vectors, also where a length is 0.
    packed, taus = geqrf(work[:, :n][:, order])
    diagonal = jnp.diagonal(packed)
    length = jnp.abs(diagonal)
    turned = jnp.where(length > 0, diagonal / jnp.where(length > 0, length, 1), 1).astype(a.dtype)
    width = m if full_matrices else n
    u = householder_product(jnp.pad(packed, ((0, 0), (0, width - n))), taus)
    u = u * jnp.pad(turned, (0, width - n), constant_values=1)
    vh = jnp.conj(v[:n, :n][:, order]).T
    return s, jnp.where(good, u, nan), jnp.where(good, vh, nan)


def tridiagonal_solve(dl: jax.Array, d: jax.Array, du: jax.Array, b: jax.Array) -> jax.Array:
    """Elimination with exchanges of rows, as LAPACK's gtsv; NaN where the matrix is singular."""
    n = d.shape[0]

    def eliminate(i: Any, state: Any) -> Any:
        d, du, far, b = state
        below, here = dl[i + 1], d[i]
        swap = _size(below) > _size(here)
        top = jnp.where(swap, below, here)
        factor = jnp.where(swap, here, below) / jnp.where(top == 0, jnp.ones_like(top), top)
        next_d, next_du, this_du = d[i + 1], du[i + 1], du[i]
        first, second = b[i], b[i + 1]
        d = d.at[i].set(top)
        d = d.at[i + 1].set(jnp.where(swap, this_du - factor * next_d, next_d - factor * this_du))
        du = du.at[i].set(jnp.where(swap, next_d, this_du))
        du = du.at[i + 1].set(jnp.where(swap, -factor * next_du, next_du))
        far = far.at[i].set(jnp.where(swap, next_du, 0))
        b = b.at[i].set(jnp.where(swap, second, first))
        b = b.at[i + 1].set(jnp.where(swap, first - factor * second, second - factor * first))
        return d, du, far, b

    du = du.at[n - 1].set(0)
    d, du, far, b = lax.fori_loop(0, n - 1, eliminate, (d, du, jnp.zeros_like(d), b))

    def substitute(k: Any, x: jax.Array) -> jax.Array:
        i = n - 1 - k
        # Two rows of zeros follow the last one.
        value = (b[i] - du[i] * x[i + 1] - far[i] * x[i + 2]) / d[i]
        return x.at[i].set(value)

    x = lax.fori_loop(0, n, substitute, jnp.zeros((n + 2, b.shape[1]), b.dtype))[:n]
    return jnp.where(jnp.any(d == 0), jnp.asarray(jnp.nan, b.dtype), x)


def _pairs(n: int) -> tuple[np.ndarray[Any, Any], int]:
    """Rounds of disjoint pairs in which each two of ``n`` meet once, and ``n`` made even."""
    size = max(n + n % 2, 2)
    ring = list(range(size))
    rounds: list[list[tuple[int, int]]] = []
    for _ in range(size - 1):
        pairs = zip(ring[: size // 2], ring[: size // 2 - 1 : -1], strict=True)
        rounds.append([(min(pair), max(pair)) for pair in pairs])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return np.asarray(rounds, np.int32), size


def _sweep(rotate: Any, start: Any, table: np.ndarray[Any, Any], bound: Any) -> Any:
    """Rotate all pairs, again and again until none is further from orthogonal than the bound."""
    rounds = jnp.asarray(table)

    def sweep(state: Any) -> Any:
        first, second, _, count = state
        real = jnp.zeros((), jnp.finfo(first.dtype).dtype)

        def step(i: Any, inner: Any) -> Any:
            pairs = rounds[i]
            return rotate(inner, pairs[:, 0], pairs[:, 1])

        first, second, worst = lax.fori_loop(0, table.shape[0], step, (first, second, real))
        return first, second, worst, count + 1

    def unfinished(state: Any) -> Any:
        return (state[2] > bound) & (state[3] < _SWEEPS)

    worst = jnp.full((), jnp.inf, jnp.finfo(start[0].dtype).dtype)
    return lax.while_loop(unfinished, sweep, (*start, worst, jnp.int32(0)))[:2]


def _rotation(alpha: Any, beta: Any, gamma: Any) -> tuple[Any, Any, Any]:
    """Cosine, sine and phase that make columns of products alpha, beta, gamma orthogonal."""
    length = jnp.abs(gamma)
    none = length == 0
    safe = jnp.where(none, 1, length)
    slope = (beta - alpha) / (2 * safe)
    sign = jnp.where(slope < 0, -1, 1).astype(slope.dtype)
    tan = sign / (jnp.abs(slope) + jnp.hypot(slope, jnp.ones_like(slope)))
    tan = jnp.where(none, 0, tan)
    cos = 1 / jnp.sqrt(1 + tan * tan)
    phase = jnp.where(none, 1, gamma / safe.astype(gamma.dtype))
    return cos, cos * tan, phase


def _columns(a: Any, p: Any, q: Any, cos: Any, sin: Any, phase: Any) -> Any:
    """Columns p and q of a matrix after a rotation of each pair."""
    left, right = a[:, p], a[:, q] * jnp.conj(phase)
    return a.at[:, p].set(cos * left - sin * right).at[:, q].set(sin * left + cos * right)


def _reflected(a: jax.Array, k: Any) -> tuple[jax.Array, jax.Array]:
    """A matrix after the reflection that clears column k below the diagonal, kept in its place."""
    m, n = a.shape
    rows, columns = jnp.arange(m), jnp.arange(n)
    alpha = a[k, k]
    tail = jnp.where(rows > k, a[:, k], 0)
    scale = _scale(jnp.where(rows >= k, a[:, k], 0))
    rest = jnp.sum(_square(tail / scale))
    norm = scale * jnp.sqrt(rest + _square(alpha / scale))
    still = (rest == 0) & (jnp.imag(alpha) == 0)
    beta = jnp.where(jnp.real(alpha) >= 0, -norm, norm)
    beta = jnp.where(still, 1, beta).astype(a.dtype)
    tau = jnp.where(still, 0, (beta - alpha) / beta)
    below = jnp.where(still, 0, tail / jnp.where(still, jnp.ones_like(alpha), alpha - beta))
    v = below + (rows == k).astype(a.dtype)
    moved = a - jnp.conj(tau) * jnp.outer(v, jnp.conj(v) @ jnp.where(columns > k, a, 0))
    kept = jnp.where(rows > k, below, moved[:, k])
    kept = jnp.where(rows == k, jnp.where(still, alpha, beta), kept)
    return moved.at[:, k].set(kept), tau


def _exchanged(a: jax.Array, k: Any, i: Any) -> jax.Array:
    first, second = a[k], a[i]
    return a.at[k].set(second).at[i].set(first)


def _size(x: Any) -> Any:
    """What LAPACK compares: the sum of the parts of a complex number."""
    return jnp.abs(jnp.real(x)) + jnp.abs(jnp.imag(x)) if jnp.iscomplexobj(x) else jnp.abs(x)


def _square(x: Any) -> Any:
    return jnp.real(x) ** 2 + jnp.imag(x) ** 2 if jnp.iscomplexobj(x) else x * x


def _scale(x: jax.Array) -> jax.Array:
    """The largest part of an array, or 1 where that is 0; NaN and infinities pass.

    Quotients by it neither over- nor underflow.
    """
    most = jnp.max(_size(x)) if x.size else jnp.zeros((), jnp.finfo(x.dtype).dtype)
    return jnp.where(most == 0, jnp.ones_like(most), most)
