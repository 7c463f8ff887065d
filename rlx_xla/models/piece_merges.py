"""Pieces of a text by merging neighbours, the highest score first (SentencePiece's BPE).

Source: Kudo and Richardson 2018, arXiv:1808.06226.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence


def merge_pieces(text: str, ids: Mapping[str, int], scores: Sequence[float]) -> list[str]:
    """Return the pieces of a text: single characters, and what merges of neighbours made.

    Of all neighbours that together are a known piece those with the highest score merge first, the
    leftmost of equals; until none is left.

    Args:
        text: what is split; the join of the result.
        ids: number of each known piece.
        scores: of each piece by its number.
    """
    count = len(text)
    pieces = list(text)
    left, right = list(range(-1, count - 1)), list(range(1, count + 1))
    queue: list[tuple[float, int, int, str]] = []

    def offer(first: int) -> None:
        second = right[first]
        if second < count:
            joined = pieces[first] + pieces[second]
            number = ids.get(joined)
            if number is not None:
                heapq.heappush(queue, (-scores[number], first, second, joined))

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
