"""One agent with two ranks played by their books, and what must hold of everything that the agent does.

The ranks' books (replica/work.py) refuse a verdict out of order; here the verdicts of both ranks are compared, and the
version, as it follows from the verdicts alone, with what the agent thinks and reports.
"""

from __future__ import annotations

from typing import Any

from agent_script import Script

from lighthouse.values import ROOT, Down, EntryName, Hello, Report, Version
from replica.agent_core import decide, new_agent, record
from replica.agent_state import UNUSABLE, LifePhase
from replica.agent_values import Effect, Event, Exit, LighthouseSaid, RankSaid, StartRanks
from replica.values import Apply, Commit, Fetch, Go, Load, Loaded, Open, Quit, RankUp
from replica.work import Book, heard

VERDICTS = (Go, Commit, Apply, Quit)


class Rank:
    """One rank: its book, its inbox, and what it could say next."""

    def __init__(self, shard_rank: int) -> None:
        self.shard_rank = shard_rank
        self.book = Book()
        self.read = 0
        self.voted: tuple[int, Version] | None = None
        self.fetch: Fetch | None = None
        self.load: Load | None = None
        self.opens: list[int] = []
        self.held: EntryName | None = None
        self.attached = False
        self.gone = False

    @property
    def speaks(self) -> bool:
        """Whether it is there and was not told to leave."""
        return self.attached and not self.gone and not self.book.leaving

    def act(self, queue: list[Any]) -> bool:
        """Acts on the next message of its inbox, in order (a verdict only where it waits for one), if it can."""
        if not self.speaks or self.read == len(queue):
            return False
        message = queue[self.read]
        if isinstance(message, VERDICTS) and self.book.pending:
            return False
        self.read += 1
        self.book = heard(self.book, message)
        if isinstance(message, Fetch):
            self.fetch = message
        elif isinstance(message, Load):
            self.load = message
        elif isinstance(message, Open) and message.size:
            self.opens.append(message.number)
        elif isinstance(message, Go | Commit | Apply):
            self.held = None
        return True


class Checked:
    """An agent, its ranks, and what follows from the verdicts given so far."""

    def __init__(self) -> None:
        self.script = Script(restart_limit=50, restart_backoff_s=0.5)
        self.journal: list[tuple[float, Event]] = []
        self.ranks = [Rank(0), Rank(1)]
        self.version, self.usable = ROOT, True
        self.reported = 0
        self.votes: set[tuple[int, int, Version, int]] = set()
        self.loads: list[Loaded] = []
        self.counts: dict[str, int] = {}

    # ---- what the agent does is checked as it comes

    def does(self, event: Event) -> None:
        script = self.script
        self.journal.append((script.now, event))
        marks = [len(queue) for queue in script.down], len(script.up)
        for effect in script.does(event):
            self.check(effect)
        self.check_verdicts(marks[0])
        for message in script.up[marks[1] :]:
            if isinstance(message, Report):
                self.check_report(message)
            elif isinstance(message, Hello):
                self.check_report(message.report)

    def check(self, effect: Effect) -> None:
        if isinstance(effect, StartRanks):
            self.ranks = [Rank(0), Rank(1)]
            for rank in self.ranks:
                rank.read = len(self.script.down[rank.shard_rank])
            self.version, self.usable = ROOT, True
            self.loads = []
        elif isinstance(effect, Exit):
            assert self.script.state.life.phase is LifePhase.DOWN

    def check_verdicts(self, marks: list[int]) -> None:
        """All ranks are given the same verdicts in the same order, and only these change the version."""
        life = self.script.state.life.number
        both = [queue[mark:] for queue, mark in zip(self.script.down, marks, strict=True)]
        assert len(both[0]) == len(both[1])
        for ours, theirs in zip(*both, strict=True):
            name = type(ours).__name__
            self.counts[name] = self.counts.get(name, 0) + 1
            if isinstance(ours, Go):
                assert isinstance(theirs, Go) and theirs.work == ours.work
            elif not isinstance(ours, Open):
                assert theirs == ours
            if isinstance(ours, Commit) and not ours.merged.slots:
                assert ours.leave
            elif isinstance(ours, Commit):
                merged = ours.merged
                assert merged.start == self.version and self.usable
                assert merged.generation >= self.reported, "committed what was reported abandoned"
                for shard_rank in range(2):
                    assert (life, merged.generation, merged.start, shard_rank) in self.votes, "committed without a vote"
                self.version = merged.end
            elif isinstance(ours, Apply):
                assert self.usable and ours.name.start == self.version
                assert all(rank.held == ours.name for rank in self.ranks), "applied what not all ranks hold"
                self.version = ours.name.end
            elif isinstance(ours, Load):
                self.usable, self.loads = False, []
            elif isinstance(ours, Go):
                assert self.usable and ours.work.version == self.version
                assert ours.work.generation >= self.reported

    def check_report(self, report: Report) -> None:
        state = self.script.state
        assert report.version == (self.version if self.usable else UNUSABLE)
        assert report.abandoned >= self.reported, "took back what it had abandoned"
        assert report.cursor == state.stand.cursor
        assert self.usable or not (report.answers or report.entries)
        assert all(entry.end == report.version for entry in report.entries)
        self.reported = report.abandoned

    def says(self, message: Down) -> None:
        self.does(LighthouseSaid(session=self.script.state.session.number, message=message))

    def rank_says(self, rank: Rank, message: RankUp) -> None:
        self.does(RankSaid(life=self.script.state.life.number, shard_rank=rank.shard_rank, message=message))

    # ---- and at any time

    def check_state(self) -> None:
        """The version moves only by verdicts; ranks that have read everything agree; nothing grows without bound."""
        state = self.script.state
        stand, seat = state.stand, state.seat
        if state.life.phase is LifePhase.UP and state.life.cause is None:
            assert stand.usable == self.usable
            assert not stand.usable or stand.version == self.version
            for rank in self.ranks:
                read = rank.read == len(self.script.down[rank.shard_rank])
                if rank.speaks and read and self.usable and rank.book.usable:
                    assert rank.book.version == stand.version
                    assert rank.book.cursor == stand.cursor or rank.book.work is None
        assert len(state.plans) <= 5 and len(state.starts) <= 16 and len(state.stagings) <= 32
        assert len(stand.entries) <= 1 and state.notes == ()
        if seat.work is not None:
            assert seat.roster[seat.place].name == "a" and seat.work.size == len(seat.roster)
            assert len(seat.promoted) <= len(seat.roster)

    def check_replay(self) -> None:
        """The journal is a test of its own: replayed, it gives the very same effects."""
        state = new_agent(self.script.config)
        effects: list[Effect] = []
        for now, event in self.journal:
            state, more = decide(record(state, event, now), now)
            effects.extend(more)
        assert effects == self.script.effects
