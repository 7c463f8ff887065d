"""JAX's linear algebra as functions of raw arrays, one per primitive, on JAX 0.7.2 to 0.12."""

from __future__ import annotations

from typing import Any

import jax
from jax._src.lax import linalg as _linalg

geqrf = _linalg.geqrf
"""``a, taus`` of matrices."""


def geqp3(a: jax.Array, jpvt: jax.Array) -> Any:
    """``a, jpvt, taus`` of matrices and the columns to keep in front."""
    return _linalg.geqp3(a, jpvt)


def has_ormqr() -> bool:
    """Tell whether this version of JAX multiplies by a QR factor without forming it."""
    return hasattr(_linalg, "ormqr")


def ormqr(a: jax.Array, taus: jax.Array, c: jax.Array, *, left: bool, transpose: bool) -> Any:
    """The product of the Q of a factorisation with ``c``, where ``has_ormqr``."""
    return getattr(_linalg, "ormqr")(a, taus, c, left=left, transpose=transpose)  # noqa: B009


def eigh(a: jax.Array, *, lower: bool, sort_eigenvalues: bool, method: str | None) -> Any:
    """``v, w`` of Hermitian matrices; ``method`` is a name in JAX's enumeration.

    Raises:
        NotImplementedError: this version of JAX has no such method.
    """
    settings: dict[str, Any] = {}
    if method is not None:
        settings["implementation"] = _member("EighImplementation", method)
    return _linalg.eigh(
        a, lower=lower, sort_eigenvalues=sort_eigenvalues, symmetrize_input=False, **settings
    )


def eig(a: jax.Array, *, left: bool, right: bool, vector_derivatives: bool) -> Any:
    """``w`` and the wanted vectors, left ones first, of general matrices."""
    settings: dict[str, Any] = {}
    if vector_derivatives:
        settings["enable_eigvec_derivs"] = True
    return _linalg.eig(
        a, compute_left_eigenvectors=left, compute_right_eigenvectors=right, **settings
    )


def svd(a: jax.Array, *, full_matrices: bool, compute_uv: bool, method: str | None) -> Any:
    """``s, u, vt`` of matrices, or ``s`` in a tuple.

    Raises:
        NotImplementedError: this version of JAX has no such method.
    """
    algorithm = None if method is None else _member("SvdAlgorithm", method)
    made: Any = _linalg.svd(
        a, full_matrices=full_matrices, compute_uv=compute_uv, algorithm=algorithm
    )
    return (made[1], made[0], made[2]) if compute_uv else (made,)


def _member(kinds: str, name: str) -> Any:
    members: dict[str, Any] = getattr(getattr(_linalg, kinds, None), "__members__", {})
    if name not in members:
        raise NotImplementedError(f"jax {jax.__version__} has no {kinds}.{name}")
    return members[name]
