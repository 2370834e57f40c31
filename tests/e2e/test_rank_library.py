"""The rank library in real processes over real gloo, told what to do by scripted agents over real gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from e2e.rank_program import SAMPLES, build, loss_of
from e2e.scripted_agents import Fleet, Group

from lighthouse.values import Version
from replica.data_plan import DataPlan
from replica.seeding import seed_slot
from replica.values import Mark, MarkKind, Raised, RankFailed, RankOpened

SLOTS, STEPS = 5, 4


@pytest.fixture
def fleets(tmp_path: Path) -> Iterator[Any]:
    made: list[Fleet] = []

    def make(kind: str = "plain", shards: int = 1, steps: int = STEPS, slots: int = SLOTS) -> Fleet:
        fleet = Fleet(tmp_path, kind=kind, shards=shards, slots=slots, steps=steps)
        made.append(fleet)
        return fleet

    yield make
    for fleet in made:
        fleet.close()


def undisturbed(shards: int, steps: int, slots: int = SLOTS) -> list[np.ndarray]:
    """Final parameters of a plain loop in this process that knows nothing of groups: the same slots, added up."""
    torch.set_num_threads(1)
    model, optimizer, scheduler = build("plain")
    plan = DataPlan(seed=5, length=SAMPLES, slot_size=4, shards=shards)
    for step in range(steps):
        for slot in range(slots):
            for shard in range(shards):
                number = step * slots + slot
                seed_slot(5, step, slot, shard)
                loss_of(model, number, plan.share(number, shard))[0].backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        tokens = slots * 4
        norm = torch.stack([g.square().sum() for g in grads]).sum().sqrt().item() / tokens
        for grad in grads:
            grad *= min(1.0, 0.5 / norm) / tokens
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return [p.detach().numpy() for p in model.parameters()]


def agree(fleet: Fleet, *groups: Group) -> None:
    """All groups ended with the very same bits, and with the numbers of a run that nothing happened to."""
    wanted = undisturbed(fleet.shards, fleet.steps)
    end = None
    for group in groups:
        for shard in range(fleet.shards):
            did = fleet.did(group, shard)
            assert did["error"] == ""
            assert did["never"] == 24.0, "a parameter without gradients must not decay"
            with np.load(fleet.folder / f"{group.name}-{shard}.npz") as found:
                for i, values in enumerate(wanted):
                    np.testing.assert_allclose(found[f"arr_{i}"], values, rtol=1e-9, atol=1e-11)
        hashes = [fleet.did(group, shard)["hashes"] for shard in range(fleet.shards)]
        last = max(hashes[0], key=lambda version: int(version[1:].split(",")[0]))
        end = end or [h[last] for h in hashes]
        assert [h[last] for h in hashes] == end
    for version in {v for g in groups for v in fleet.did(g)["hashes"]}:
        seen = {fleet.did(g)["hashes"][version] for g in groups if version in fleet.did(g)["hashes"]}
        assert len(seen) == 1, f"{version} has different bits in different groups"


def consumed(fleet: Fleet) -> None:
    """Every sample of the run's slots was consumed once, by what the committed roll calls say."""
    for group in fleet.groups.values():
        for merged in group.merged:
            if merged.slots:
                assert merged.tokens == SLOTS * 4


@pytest.mark.parametrize(
    ("groups", "shards", "kind"),
    [
        (2, 1, "plain"),
        (3, 1, "plain"),
        (2, 2, "fsdp"),
        (2, 2, "plain"),
        (2, 2, "mixed"),
        (1, 1, "plain"),
        (2, 1, "fsdp"),
    ],
)
def test_groups_train_as_one(fleets: Any, groups: int, shards: int, kind: str) -> None:
    fleet = fleets(kind, shards)
    members = [fleet.spawn(f"g{i}") for i in range(groups)]
    fleet.attach_all()
    assert len({str(g.attached[s].setup) for g in members for s in range(shards)}) == 1
    fleet.form(members)
    fleet.finish()
    agree(fleet, *members)
    consumed(fleet)
    for phase, served in fleet.did(members[0])["joiners"]:
        assert served == (phase == "slot"), f"joiners are served in {phase}: {served}"


@pytest.mark.parametrize(("shards", "kind"), [(1, "plain"), (2, "fsdp"), (2, "mixed")])
@pytest.mark.parametrize("at", [MarkKind.SLOT_BEGUN, MarkKind.GRADIENTS, MarkKind.ROLL_CALL])
def test_slots_of_a_killed_group_are_taken_over(fleets: Any, shards: int, kind: str, at: MarkKind) -> None:
    fleet = fleets(kind, shards)
    hang_at = None if at is MarkKind.SLOT_BEGUN else [at.value, 1]
    members = [fleet.spawn(f"g{i}", hang_at=hang_at if i == 1 else None) for i in range(3)]
    fleet.attach_all()

    def kill(group: Group, shard: int, mark: Mark) -> None:
        if group is members[1] and mark.step == 1 and mark.kind is at:
            fleet.kill(group)

    fleet.at_mark = kill
    fleet.form(members)
    fleet.finish()
    assert members[1].dead
    agree(fleet, members[0], members[2])
    consumed(fleet)


def test_a_step_that_overflows_changes_nothing_but_the_schedule(fleets: Any) -> None:
    fleet = fleets()
    members = [fleet.spawn(f"g{i}", overflow_at=[1, 3]) for i in range(2)]
    fleet.attach_all()
    fleet.form(members)
    fleet.finish()
    did = [fleet.did(g) for g in members]
    assert [r[3] for r in did[0]["results"]] == [False, True, False, False]
    assert did[0]["hashes"] == did[1]["hashes"]
    assert did[0]["hashes"]["(1, 1)"] != did[0]["hashes"]["(2, 1)"], "the schedule moved"
    with np.load(fleet.folder / "g0-0.npz") as found:
        assert all(np.isfinite(found[name]).all() for name in found)


def test_two_groups_die_one_after_the_other_in_one_step(fleets: Any) -> None:
    fleet = fleets()
    members = [fleet.spawn(f"g{i}", hang_at=["gradients", 1] if i == 2 else None) for i in range(3)]
    fleet.attach_all()

    def kill(group: Group, shard: int, mark: Mark) -> None:
        first = group is members[2] and mark.kind is MarkKind.GRADIENTS
        second = group is members[0] and members[2].dead and mark.kind is MarkKind.SLOT_DONE
        if mark.step == 1 and (first or second):
            fleet.kill(group)

    fleet.at_mark = kill
    fleet.form(members)
    fleet.finish()
    agree(fleet, members[1])


def test_one_step_behind_applies_the_entry_that_another_committed(fleets: Any) -> None:
    fleet = fleets()
    members = [fleet.spawn(f"g{i}") for i in range(3)]
    fleet.attach_all()
    swallowed = []
    called = fleet._called

    def lose_the_commit(group: Group, shard: int, call: Any) -> None:
        """The agent of g1 does not commit step 1: its generation is abandoned first."""
        if group is members[1] and call.step == 1 and not swallowed:
            swallowed.append(call)
            return
        called(group, shard, call)

    fleet._called = lose_the_commit
    fleet.form(members)
    fleet.until(lambda: bool(swallowed) and members[0].version.step == 2 and members[2].version.step == 2)
    fleet.kill(members[2])
    fleet.finish()
    assert members[2].dead
    agree(fleet, members[0], members[1])
    assert "(2, 1)" in fleet.did(members[1])["hashes"], "it made the version that the others had made"


@pytest.mark.parametrize(("shards", "kind"), [(1, "plain"), (2, "fsdp")])
def test_a_joiner_heals_replays_and_enters_as_a_spare(fleets: Any, shards: int, kind: str) -> None:
    fleet = fleets(kind, shards, steps=12)
    members = [fleet.spawn(f"g{i}") for i in range(2)]
    joiner = fleet.spawn("joiner", raise_at=0)  # rehearses at step 0 would raise
    joiner.dead = True
    fleet.kill(joiner)
    joiner = fleet.spawn("j")
    fleet.attach_all()
    fleet.form(members)
    fleet.heal(joiner, members)
    planned = fleet.plan([*members, joiner], members)
    switched = False
    while not switched:
        fleet.fetch(joiner, members[0])
        switched = fleet.level(joiner).switch == planned
    fleet.number, fleet.roster = planned, [*members, joiner]
    joiner.work = fleet.deal(joiner, planned, fleet.roster, members, farewell=joiner.version.step >= fleet.steps)
    fleet.go(joiner)
    fleet.finish()
    agree(fleet, *members, joiner)
    assert fleet.did(joiner)["hashes"].keys() <= fleet.did(members[0])["hashes"].keys()
    assert all(m.mismatched == () for m in members[0].merged)


def test_a_spare_takes_over_and_all_rehearse(fleets: Any) -> None:
    fleet = fleets()
    members = [fleet.spawn(f"g{i}") for i in range(3)]
    fleet.attach_all()

    def kill(group: Group, shard: int, mark: Mark) -> None:
        if group is members[0] and mark.step == 2 and mark.kind is MarkKind.SLOT_DONE:
            fleet.kill(group)

    fleet.at_mark = kill
    fleet.form(members, members[:2])
    fleet.finish()
    agree(fleet, members[1], members[2])
    spare = fleet.did(members[2])["slots"]
    assert [s[:2] for s in spare][0] == [0, 0], "the first slot is the rehearsal of step 0"
    assert {s[0] for s in spare[1:]} == {2}, "it took over in step 2, and is no contributor afterwards"


def test_a_prepared_generation_is_entered_between_two_steps(fleets: Any) -> None:
    fleet = fleets(steps=8)
    members = [fleet.spawn(f"g{i}") for i in range(3)]
    fleet.attach_all()
    fleet.form(members)
    planned = fleet.plan(members[:2], members[:2])
    fleet.until(lambda: all(m.all_said(RankOpened(number=planned)) for m in members[:2]))
    fleet.until(lambda: members[0].version.step == 8)
    assert all(m.switch == 0 for m in members[0].merged), "g2 has not opened it, so nobody switches"
    fleet.finish()
    agree(fleet, *members)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("apply in the loop", "comes after the loop"),
        ("no backward", "slot 0 was left out"),
        ("backward twice", "once for each slot"),
        ("detached", "requires a gradient"),
    ],
)
def test_misuse_is_told_in_words(fleets: Any, wrong: str, says: str) -> None:
    fleet = fleets()
    group = fleet.spawn("g0", misuse=wrong)
    fleet.attach_all()
    fleet.takes_over = False
    fleet.form([group])
    fleet.until(lambda: group.dead)
    raised = [m for _, m in group.said if isinstance(m, Raised)]
    assert len(raised) == 1 and says in raised[0].traceback.splitlines()[-1]


def test_what_a_program_does_wrong_reaches_the_agent(fleets: Any) -> None:
    fleet = fleets()
    fleet.takes_over = False
    good, bad = fleet.spawn("g0"), fleet.spawn("g1", raise_at=2)
    fleet.attach_all()
    fleet.form([good, bad])
    fleet.until(lambda: bad.dead and any(isinstance(m, RankFailed) for _, m in good.said))
    raised = [m for _, m in bad.said if isinstance(m, Raised)]
    assert len(raised) == 1 and "this is what the program does wrong" in raised[0].traceback
    fleet.quit(good, "the test is over")
    good.processes[0].join(30)
    assert fleet.did(good)["error"] == "the test is over"
    assert good.version == Version(2, 1)
