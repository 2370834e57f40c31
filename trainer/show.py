"""What people see: one line for each thing that happened, and tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lighthouse.core_values import Happened, RunStatus
from lighthouse.deadlines import Knobs, explain

STYLES = {
    "step": "",
    "lost": "bold red",
    "died": "bold red",
    "failure": "red",
    "abandon": "red",
    "ended": "bold red",
    "refused": "bold red",
    "fenced": "bold red",
    "mismatch": "bold red",
    "formed": "bold cyan",
    "switched": "bold cyan",
    "prepare": "cyan",
    "heal": "yellow",
    "heal_again": "yellow",
    "fell_behind": "yellow",
    "heal_failed": "yellow",
    "progress": "yellow",
    "loaded": "yellow",
    "caught_up": "yellow",
    "contributes": "bold green",
    "hold": "magenta",
    "finished": "bold green",
}
"""Colours of kinds of events; others are plain."""


LONGEST_TEXT = 100
"""Errors of collectives run over several lines; the logs have them whole."""


def from_first(number: int, first_number: int) -> int:
    """The number of a generation or an incarnation for people: a run's first is 1, however large its number is."""
    return number - first_number + 1 if number >= first_number > 0 else number


class Story:
    """Tells a run on a terminal, one line for each thing that happens, beginning now."""

    def __init__(self, console: Console, began_s: float) -> None:
        self._console = console
        self._began_s = began_s
        self._first_number = 0

    def tell(self, happened: Happened) -> None:
        """One line for it."""
        self._first_number = self._first_number or happened.number
        self._console.print(event_line(happened, self._began_s, self._first_number), soft_wrap=True)

    def say(self, time_s: float, kind: str, text: str, style: str) -> None:
        """One line of our own among them."""
        self._console.print(Text(f"{time_s - self._began_s:7.2f} s  {kind:<11}  {text}", style=style), soft_wrap=True)


def event_line(happened: Happened, began_s: float, first_number: int) -> Text:
    """One line: seconds since `began_s` (wall clock), kind, generation, step, group, and what else it says."""
    words = [f"{happened.time_s - began_s:7.2f} s  {happened.kind:<11}"]
    if happened.number:
        words.append(f"generation {from_first(happened.number, first_number)}")
    if happened.kind == "step":
        words.append(f"{happened.version.step:>4}")
    elif happened.version.step:
        words.append(f"at step {happened.version.step}")
    if happened.group:
        words.append(happened.group)
    if happened.text:
        words.append(_cut(happened.text))
    if happened.kind != "progress":  # its text has the figures
        words += [f"{name} {_short(value)}" for name, value in sorted(happened.fields.items()) if value]
    return Text("  ".join(words), style=STYLES.get(happened.kind, ""))


def _cut(text: str) -> str:
    """The first line of a text, and no more of it than a terminal has room for."""
    line = text.partition("\n")[0]
    return line if len(line) <= LONGEST_TEXT else line[: LONGEST_TEXT - 1] + "…"


def _short(value: str) -> str:
    """A number with four digits behind the point, if it has more; anything else as it is."""
    try:
        return f"{float(value):.4f}" if "." in value and len(value.partition(".")[2]) > 4 else value
    except ValueError:
        return value


def status_table(status: RunStatus) -> Table:
    """The quorum and how each group stands: its incarnation, and the version that it has (step, generation)."""
    at = from_first(status.number, status.first_number)
    title = f"run {status.run_id}: step {status.version.step}, generation {at}"
    if status.finished:
        title += ", finished"
    if status.loss:
        title += f", loss {status.loss:.3f}, {status.step_s:.2f} s a step"
        if status.protocol_s:
            title += f" ({1e3 * status.protocol_s:.1f} ms of it the protocol)"
    table = Table(title=title, caption=status.hold and f"hold: {status.hold}", title_justify="left")
    columns = ["group", "incarnation", "state", "step", "generation", "heard", "host"]
    detailed = any(group.detail for group in status.groups)
    for column in [*columns, "detail"] if detailed else columns:
        right = column in ("incarnation", "step", "generation", "heard")
        table.add_column(column, justify="right" if right else "left", no_wrap=column != "detail")
    for group in status.groups:
        table.add_row(
            group.name,
            str(from_first(group.incarnation, status.first_number)),
            group.state,
            str(group.version.step),
            str(from_first(group.version.generation, status.first_number)) if group.version.step else "-",
            f"{group.last_heard_s:.1f} s ago",
            group.host,
            *([group.detail] if detailed else []),
        )
    return table


def deadline_table(knobs: Knobs) -> Table:
    """All deadlines of a run with these knobs: value, what it follows from, what for, and what happens then."""
    table = Table(title="Deadlines: a user sets three, all others follow from them", title_justify="left")
    for column in ("deadline", "value", "derived from", "how long is waited for", "when it has run out"):
        table.add_column(
            column, no_wrap=column in ("deadline", "value"), justify="right" if column == "value" else "left"
        )
    for row in explain(knobs):
        table.add_row(*row)
    return table


def report_table(title: str, rows: Sequence[tuple[str, str, bool | None]]) -> Table:
    """Rows of (what, value, whether it held; None where nothing was to hold)."""
    table = Table(title=title, title_justify="left", show_header=False)
    for what, value, held in rows:
        mark = Text("") if held is None else Text("yes", style="green") if held else Text("NO", style="bold red")
        table.add_row(what, value, mark)
    return table
