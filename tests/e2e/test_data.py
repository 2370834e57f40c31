"""What a run consumes is a function of its seed and cursor, whatever happened; batches may grow with the groups."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy
import pytest
import torch
from e2e.cluster import Cluster
from e2e.job import SAMPLES, build, counted, draw, loss, optimizers

from replica.data_plan import DataPlan
from trainer.evidence import commits

DELAY = ("--delay-s", "0.05")
PLAN = DataPlan(seed=3, length=SAMPLES, slot_size=4, shards=1)


def history(run: Cluster) -> list[tuple[int, int, dict[str, Sequence[int]]]]:
    """(cursor, size, slots by group) of each step that led to the newest version, in order."""
    ledgers = {path.stem: run.ledger(path.stem) for path in run.folder.glob("*.ledger")}
    lines = [line for some in ledgers.values() for line in some if line["event"] in ("commit", "apply")]
    made = {(line["step"], line["generation"]): line for line in lines}
    summed = commits(ledgers)
    steps, version = [], max(made)
    while version[0] > 0:
        line = made[version]
        steps.append((line["cursor"], line["step_slots"], summed.get(version, {})))
        version = (line["from_step"], line["from_generation"])
    return steps[::-1]


def check_samples(run: Cluster, samples_of: Callable[[int], Sequence[int]]) -> list[int]:
    """Asserts that every slot in a committed sum was computed, once, from the samples that it stands for; all sizes.

    samples_of: of a slot, by its number in the run.
    """
    read: dict[tuple[str, int], list[list[int]]] = {}
    for path in run.out.glob("*.0.samples"):
        for number, samples in map(json.loads, path.read_text().splitlines()):
            read.setdefault((path.name.split(".")[0], number), []).append(samples)
    through = 0
    for cursor, size, summed in history(run):
        assert cursor == through, "each step takes the slots that follow those of the step before"
        assert sorted(slot for own in summed.values() for slot in own) == list(range(size))
        for name, own in summed.items():
            for slot in own:
                seen = read[name, cursor + slot]
                assert all(samples == list(samples_of(cursor + slot)) for samples in seen), (name, cursor, slot)
        through = cursor + size
    return [size for _, size, _ in history(run)]


def trained(sizes: Sequence[int], samples_of: Callable[[int], Sequence[int]], uneven: bool = False) -> numpy.ndarray:
    """Weights after a plain loop over steps of these sizes: the mean over whatever samples counted in them."""
    model = build(32)
    optimizer, scheduler = optimizers(model)
    cursor = 0
    for size in sizes:
        samples = [sample for slot in range(cursor, cursor + size) for sample in samples_of(slot)]
        if uneven:
            samples = [samples[place] for place in counted(samples)]
        (loss(model, draw(samples)) / len(samples)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        cursor += size
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()


def check_weights(run: Cluster, names: Sequence[str], wanted: numpy.ndarray) -> None:
    """Asserts that these groups ended well, with equal weights, and with those of the undisturbed loop."""
    for name in names:
        assert run.wait_exit(name) == 0, run.logs()
    weights = [numpy.load(run.out / f"{name}.0.npy", allow_pickle=False) for name in names]
    assert all(numpy.array_equal(weights[0], other) for other in weights), "equal to the last bit"
    numpy.testing.assert_allclose(weights[0], wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("allowed", "alone"), [("", 4), ("1,3", 2)])
def test_an_elastic_batch_follows_its_groups(cluster: Callable[..., Cluster], allowed: str, alone: int) -> None:
    """Two slots a group. A lost group's slots of the step are taken over; only then is the step smaller."""
    run = cluster("--groups-wanted", "3", "--allowed-groups", allowed)
    run.lighthouse()
    for name in ("g0", "g1", "g2"):
        run.group(name, *DELAY, "--slots-per-group", "2", "--uneven", "--die", "backward@4", "--die-group", "g0")
    run.until(lambda: "signal 9" in run.log("g0"), "g0 has died")
    run.until_contributing("g0", 2)
    (run.out / "enough").touch()
    for name in ("g0", "g1", "g2"):
        assert run.wait_exit(name) == 0, run.logs()
    sizes = check_samples(run, PLAN.samples)
    assert sizes[:5] == [6] * 5, "the step in which g0 dies keeps its size"
    assert sizes[5] == alone and sizes[-1] == 6 and sorted(set(sizes)) == [alone, 6]
    assert not run.recomputed("g1") and not run.recomputed("g2")
    check_weights(run, ["g0", "g1", "g2"], trained(sizes, PLAN.samples, uneven=True))


def test_a_batch_that_does_not_divide_stays_as_large(cluster: Callable[..., Cluster]) -> None:
    """Seven slots over three groups of two shards, then over two, then over three; each slot has tokens of its own."""
    run = cluster("--groups-wanted", "3")
    run.lighthouse()
    for name in ("g0", "g1", "g2"):
        die = ("--die", "backward@4", "--die-group", "g0", "--die-shard", "1")
        run.group(name, *DELAY, "--slots", "7", "--uneven", "--fsdp", *die, shards=2)
    run.until_contributing("g0", 2)
    (run.out / "enough").touch()
    for name in ("g0", "g1", "g2"):
        assert run.wait_exit(name) == 0, run.logs()
    plan = DataPlan(seed=3, length=SAMPLES, slot_size=4, shards=2)
    sizes = check_samples(run, lambda slot: plan.share(slot, 0))
    assert set(sizes) == {7}
    deals = [sorted(map(len, summed.values())) for _, _, summed in history(run)]
    assert deals[:4] == [[2, 2, 3]] * 4 and [3, 4] in deals and deals[-1] == [2, 2, 3]
    check_weights(run, ["g0", "g1", "g2"], trained(sizes, plan.samples, uneven=True))


def consumed(run: Cluster) -> dict[int, list[int]]:
    """What the run's committed steps consumed: the samples of each slot of the run, as its contributor read them."""
    read: dict[int, list[int]] = {}
    for path in run.out.glob("*.0.samples"):
        read |= dict(map(json.loads, path.read_text().splitlines()))
    return {cursor + slot: read[cursor + slot] for cursor, size, _ in history(run) for slot in range(size)}


@pytest.mark.parametrize("at", ["backward@5", "voted@5", "apply@5"])
def test_a_loss_in_the_last_step_changes_nothing_of_what_is_consumed(cluster: Callable[..., Cluster], at: str) -> None:
    """All agree on the last step though one is killed in it; the same data as in a run that nothing happened to."""
    samples = ("--data", "map", "--samples", str(4 * 6 * 6))
    alone = cluster()
    alone.lighthouse()
    alone.group("g0", *samples)
    assert alone.wait_exit("g0") == 0, alone.logs()
    run = cluster("--groups-wanted", "3")
    run.lighthouse()
    for name in ("g0", "g1", "g2"):
        run.group(name, *DELAY, *samples, "--die", at, "--die-group", "g1")
    assert run.wait_exit("g0") == run.wait_exit("g2") == 0, run.logs()
    assert "signal 9" in run.log("g1")
    assert len(history(alone)) == len(history(run)) == 6, "the data is through after six steps"
    check_samples(run, PLAN.samples)
    assert consumed(run) == consumed(alone) and len(consumed(run)) == 36
    check_weights(run, ["g0", "g2"], trained([6] * 6, PLAN.samples))


def stream(number: int) -> list[int]:
    """Samples of a slot of the job's iterable data set."""
    return [cursor * 7 % SAMPLES for cursor in range(number * 4, number * 4 + 4)]


@pytest.mark.parametrize(
    ("flags", "samples_of", "last"),
    [
        (("--data", "map", "--worker", "spawn", "--samples", str(4 * 245 + 3)), PLAN.samples, 6),
        (("--data", "map", "--worker", "fork", "--samples", str(4 * 245 + 3), "--keep-last"), PLAN.samples, 5),
        (("--data", "stream", "--samples", str(4 * 240)), stream, 6),
    ],
)
def test_a_run_ends_with_its_data(
    cluster: Callable[..., Cluster], flags: tuple[str, ...], samples_of: Callable[[int], list[int]], last: int
) -> None:
    """A group is killed on the way, and 240 slots (245 with the last batch, which is shorter) are consumed."""
    run = cluster("--groups-wanted", "3")
    run.lighthouse()
    for name in ("g0", "g1", "g2"):
        run.group(name, *DELAY, *flags, "--die", "backward@4", "--die-group", "g1")
    assert run.wait_exit("g0") == run.wait_exit("g2") == run.wait_exit("g1") == 0, run.logs()
    sizes = check_samples(run, samples_of)
    assert sizes == [6] * 40 + ([] if last == 6 else [last])
    check_weights(run, ["g0", "g2"], trained(sizes, samples_of))
    assert run.kin() == [], "no worker process has outlived its rank"


def test_a_stream_that_ends_ends_the_run(cluster: Callable[..., Cluster]) -> None:
    """Nobody knows its length: the first slot that it cannot fill ends the run with that step, for all groups."""
    run = cluster("--groups-wanted", "2")
    run.lighthouse()
    for name in ("g0", "g1"):
        run.group(name, "--data", "stream", "--stream-length", str(4 * 16 + 1))
    for name in ("g0", "g1"):
        assert run.wait_exit(name) == 0, run.logs()
    assert [size for _, size, _ in history(run)] == [6, 6, 6]
    commit = next(line for line in run.ledger("g0") if line["event"] == "commit" and line["step"] == 3)
    assert commit["tokens"] == 4 * 4, "of the last step's slots only four had data"
