"""The tables of the benchmarks, for people (terminal, Markdown) and for programs (JSON)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.measure import Spread

Cell = str | int | Spread
BEGIN = "<!-- make bench writes from here ... -->"
END = "<!-- ... to here -->"


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table of results.

    number, title: as the headings count them; command: what prints it again
    text: how it was measured; columns: headings; rows: a cell for each column
    targets: what was asked for, in words, and whether it is met (None: not measured here)
    notes: what a reader must know to judge it, one sentence or more each
    """

    number: int
    title: str
    command: str
    text: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    targets: Sequence[tuple[str, bool | None]] = ()
    notes: Sequence[str] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.number}: a row of {len(row)} cells under {len(self.columns)} columns")

    def markdown(self) -> str:
        """The table as a section of a page."""
        lines = [f"### {self.number}. {self.title}", "", f"`{self.command}`. {self.text}", ""]
        lines += ["| " + " | ".join(self.columns) + " |", "|" + "---|" * len(self.columns)]
        lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in self.rows]
        if self.targets:
            lines += ["", *(f"- Target: {words}: {_MET[met]}." for words, met in self.targets)]
        if self.notes:
            lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines) + "\n"

    def plain(self) -> dict[str, Any]:
        """The table as JSON has it; a spread is an object with median, least, most, count."""
        rows = [
            {
                column: dataclasses.asdict(cell) if isinstance(cell, Spread) else cell
                for column, cell in zip(self.columns, row, strict=True)
            }
            for row in self.rows
        ]
        targets = [{"target": words, "met": met} for words, met in self.targets]
        return {
            "number": self.number,
            "title": self.title,
            "command": self.command,
            "text": self.text,
            "rows": rows,
            "targets": targets,
            "notes": list(self.notes),
        }


_MET = {True: "met", False: "**missed**", None: "not measured"}


def page(tables: Sequence[Table], machine: Mapping[str, str]) -> str:
    """All tables as Markdown, headed by what they were taken on."""
    head = ["## Side by side", "", *(f"- {name}: {words}" for name, words in machine.items()), ""]
    return "\n".join(head) + "\n" + "\n".join(table.markdown() for table in tables)


def replace_section(text: str, section: str) -> str:
    """`text` with `section` in the place that is marked for it, or marked and put at its end if there is none.

    Tables that stand there, and that `section` has no newer one of, stay.
    """
    before, begin, rest = text.partition(BEGIN)
    there, end, after = rest.partition(END)
    if begin and not end:
        raise ValueError(f"the page has a line {BEGIN!r} but none {END!r}")
    head, new = _cut(section)
    tables = {**_cut(there)[1], **new}
    body = "\n\n".join([head, *(tables[number] for number in sorted(tables))])
    marked = f"{BEGIN}\n\n{body}\n\n{END}"
    return f"{before}{marked}{after}" if begin else f"{text.rstrip()}\n\n{marked}\n"


def _cut(section: str) -> tuple[str, dict[int, str]]:
    """What comes before the tables, and the tables by number."""
    head, *parts = re.split(r"^(?=### \d+\. )", section.strip(), flags=re.MULTILINE)
    return head.strip(), {int(part[4 : part.index(".")]): part.strip() for part in parts}
