"""What is left opaque, and what JAX itself refuses on the CPU. Every other case is modelled.

One that no longer holds fails the suite.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import jax

from tests.conformance.harness.runner import Outcome, Status


@dataclass(frozen=True)
class Limitation:
    """Cases that do not become ops alone.

    Attributes:
        group: the primitive, as the harness names it.
        status: external or refused.
        reason: why.
        cases: a regular expression that is searched in the case's name; all by default.
        detail: a part of the outcome's detail: the opaque primitive, or JAX's message.
        since: the first version of jax that it holds for; "" means every older one too.
        before: the first version of jax that it no longer holds for; "" means every newer one too.
    """

    group: str
    status: Status
    reason: str
    cases: str = ""
    detail: str = ""
    since: str = ""
    before: str = ""

    def holds(self, version: str = jax.__version__) -> bool:
        """Whether a version of jax has it."""
        late_enough = not self.since or _numbers(self.since) <= _numbers(version)
        return late_enough and (not self.before or _numbers(version) < _numbers(self.before))

    def covers(self, group: str, name: str) -> bool:
        """Whether a case is meant, under the installed jax."""
        return self.holds() and group == self.group and re.search(self.cases, name) is not None


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (0, 12, 1) of 0.12.1.dev3."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found.group().split("."))) if found else ()


_NO_LAPACK = "LAPACK has no routine for 16-bit floats"

LIMITATIONS = (
    # From 0.11 on the suite has no 16-bit cases of these.
    *(
        Limitation(group, Status.REFUSED, _NO_LAPACK, cases, "Unsupported dtype", before="0.11")
        for group, cases in (
            ("cholesky", "_float16_"),
            *((group, "_(float16|bfloat16)_") for group in ("eig", "eigh", "lu", "qr", "svd")),
        )
    ),
    Limitation("scatter_add", Status.REFUSED, "bool has no sum", "bool", "does not accept"),
    Limitation("scatter_mul", Status.REFUSED, "bool has no product", "bool", "does not accept"),
)


def limitation_of(group: str, name: str) -> Limitation | None:
    """The limitation that a case has, or None for one that must be modelled."""
    return next((limit for limit in LIMITATIONS if limit.covers(group, name)), None)


def violation(outcome: Outcome) -> str:
    """Say how an outcome differs from what is expected, or return an empty string."""
    limit = limitation_of(outcome.group, outcome.name)
    wanted = Status.MODELLED if limit is None else limit.status
    told = f"{outcome.name}: {outcome.status.value}"
    if outcome.status is not wanted:
        hint = "" if limit is None else " (a limitation that no longer holds, or another failure)"
        return f"{told} instead of {wanted.value}{hint}: {outcome.detail}"
    if limit is not None and limit.detail not in outcome.detail:
        return f"{told}, not for {limit.detail!r}: {outcome.detail}"
    return ""


def unused(outcomes: Iterable[Outcome]) -> list[Limitation]:
    """The limitations of the installed jax that none of these outcomes has."""
    found = {limitation_of(o.group, o.name) for o in outcomes}
    return [limit for limit in LIMITATIONS if limit.holds() and limit not in found]
