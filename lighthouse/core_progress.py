"""How far a joiner is, for people: noted and told, and nothing else depends on it but that it moves."""

from __future__ import annotations

from lighthouse.core_state import Group, RunState, change_group, tell
from lighthouse.values import Progress


def lag(state: RunState, progress: Progress) -> int:
    """Steps that a joiner is behind what was reported last; -1 while it loads."""
    return max(0, state.newest.step - progress.version.step) if progress.version.step >= 0 else -1


def progress_text(state: RunState, progress: Progress) -> str:
    """How far a joiner is, in words."""
    if progress.version.step >= 0:
        return f"loaded {progress.bytes / 1e6:.1f} MB, {lag(state, progress)} steps behind"
    moved = f"{progress.bytes / 1e6:.1f} of {progress.total / 1e6:.1f} MB at {progress.rate / 1e6:.1f} MB/s"
    return f"loads {moved} from {' '.join(progress.donors)}"


def note(state: RunState, group: Group, progress: Progress) -> RunState:
    """Notes and tells how far a joiner is; once it has loaded, that first."""
    if group.heal != progress.heal:
        return state
    before = group.progress
    state = change_group(state, group, progress=progress)
    loaded = progress.version.step >= 0
    rate = f"{progress.rate / 1e6:.1f}"
    if loaded and (before is None or before.heal != progress.heal or before.version.step < 0):
        words = {"bytes": progress.bytes, "seconds": f"{progress.seconds:.3f}", "mb_per_s": rate}
        state = tell(state, "loaded", "", group.name, **words, step=progress.version.step)
    words = {"bytes": progress.bytes, "total": progress.total, "mb_per_s": rate, "donors": " ".join(progress.donors)}
    return tell(state, "progress", progress_text(state, progress), group.name, **words, lag=lag(state, progress))
