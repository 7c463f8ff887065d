"""A compile report as HTML: one table for each section; everything from outside is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlx.dispatch import Choice
    from rlx.report import CompileReport

_CELL = "padding:1px 10px 1px 0;text-align:left;vertical-align:top;white-space:pre-wrap"
_COLOURS = {"native": "#1a7f37", "common": "inherit", "rewritten": "#9a6700"}
_BAD = "#cf222e"


def report_html(report: CompileReport) -> str:
    """Return the HTML of a report; the long sections fold."""
    parts = [
        '<div class="rlx-report">',
        f"<p><b>{_text(report.name)}</b> on <b>{_text(report.device)}</b></p>",
        _table(("what", "value"), _facts(report)),
        _folded("implementations", _implementations(report.dispatch.summaries), opened=True),
        _folded("largest buffers", _buffers(report)),
        _folded("passes", _passes(report)),
    ]
    listed = {
        "staging": report.staging,
        "decisions": report.decisions,
        "without effect": report.ineffective,
    }
    for title, lines in listed.items():
        if lines:
            parts.append(_folded(title, f"<pre>{_text(chr(10).join(lines))}</pre>", opened=True))
    parts.append("</div>")
    return "\n".join(parts)


def _facts(report: CompileReport) -> list[tuple[str, ...]]:
    shown = ("phases", "params", "memory", "cost", "dispatch", "opaque")
    rows = [(title, lines[0]) for title, lines in report.sections() if title in shown and lines]
    rows.insert(2, ("estimate", str(report.estimate)))
    return [(_text(title), _text(value)) for title, value in rows]


def _implementations(choices: Sequence[Choice]) -> str:
    rows: list[tuple[str, ...]] = []
    for choice in choices:
        path = choice.path.value
        made = f"{choice.kind} {choice.implementation}" if choice.implementation else ""
        rows.append(
            (
                _text(choice.op),
                f"{choice.count:,}",
                f'<span style="color:{_COLOURS.get(path, _BAD)}">{_text(path)}</span>',
                _text(made),
                "<br>".join(_text(reason) for reason in choice.refused),
            )
        )
    return _table(("op", "nodes", "path", "implementation", "refused"), rows)


def _buffers(report: CompileReport) -> str:
    rows = [
        (_text(b.name), _text(b.type), f"{b.nbytes:,}", _text(b.kind)) for b in report.largest(10)
    ]
    return _table(("value", "type", "bytes", "kind"), rows)


def _passes(report: CompileReport) -> str:
    rows = [
        (
            _text(record.name),
            f"{record.seconds * 1e3:.2f} ms",
            f"{record.before:,} → {record.after:,}" if record.changed else "unchanged",
            "<br>".join(_text(note) for note in record.notes),
        )
        for record in report.passes
    ]
    return _table(("pass", "time", "nodes", "notes"), rows)


def _folded(title: str, body: str, *, opened: bool = False) -> str:
    state = " open" if opened else ""
    return f"<details{state}><summary>{_text(title)}</summary>{body}</details>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already."""
    head = "".join(f'<th style="{_CELL}">{_text(name)}</th>' for name in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: object) -> str:
    return html.escape(str(value))
