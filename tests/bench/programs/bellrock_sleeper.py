"""A Bellrock group whose compute is a sleep: `bellrock group ... -- bellrock_sleeper.py FOLDER SLEEP_S SLOTS MB`."""

from __future__ import annotations

import os
import sys

from bench.programs.sleeper import Diary, SmallModel, small_loss

from replica import Replica


def main() -> None:
    folder, sleep_s, slots = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    diary = Diary(folder, os.environ["BELLROCK_GROUP"])
    import torch  # after the first line of the diary

    model = SmallModel(int(sys.argv[4]))
    replica = Replica(
        model=model,
        optimizer=torch.optim.AdamW(model.layers.parameters(), lr=1e-2),
        slots=slots,
        slot_size=4,
        seed=1,
        steps=1_000_000,
    )
    diary.note("ready")
    for step in replica.steps():
        number, own = step.number, 0
        for slot in step:
            diary.note("begun", step=number, slot=slot.index)
            loss_sum = small_loss(model, slot.number, sleep_s)
            step.backward(loss_sum, 4)
            own += 1
        step.apply()
        if step.result is not None:
            diary.note("committed", step=step.result.version.step, microbatches=own)


if __name__ == "__main__":
    main()
