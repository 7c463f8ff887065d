"""Merging neighbouring pieces of a text, the best pair first.

Source: Sennrich et al. 2016, arXiv:1508.07909; Kudo and Richardson 2018, arXiv:1808.06226.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence


def merge_pieces(text: Sequence[str], rank: Callable[[str, str], float | None]) -> list[str]:
    """Return the pieces that are left when no two neighbours merge.

    Of all neighbours that may merge those with the least rank do so first, the leftmost of equals.

    Args:
        text: the pieces at first, single characters; the join of the result.
        rank: of a merge of two pieces; None where they do not merge.
    """
    count = len(text)
    pieces = list(text)
    left, right = list(range(-1, count - 1)), list(range(1, count + 1))
    queue: list[tuple[float, int, int, str]] = []

    def offer(first: int) -> None:
        second = right[first]
        if second < count:
            found = rank(pieces[first], pieces[second])
            if found is not None:
                heapq.heappush(queue, (found, first, second, pieces[first] + pieces[second]))

    for i in range(count - 1):
        offer(i)
    while queue:
        _, first, second, joined = heapq.heappop(queue)
        # A piece that has merged since is empty or longer than it was.
        if right[first] != second or not pieces[first] or pieces[first] + pieces[second] != joined:
            continue
        pieces[first], pieces[second] = joined, ""
        right[first] = right[second]
        if right[first] < count:
            left[right[first]] = first
        if left[first] >= 0:
            offer(left[first])
        offer(first)
    return [piece for piece in pieces if piece]
