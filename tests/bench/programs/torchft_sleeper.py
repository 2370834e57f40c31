"""A replica group of torchft whose compute is a sleep.

python torchft_sleeper.py FOLDER SLEEP_S MICROBATCHES GROUP LIGHTHOUSE TIMEOUT_S MB

One step is one forward and backward of MICROBATCHES sleeps: torchft has no notion of microbatches, and deals none.
"""

from __future__ import annotations

import sys

from bench.programs.sleeper import Diary, SmallModel, small_loss


def main() -> None:
    folder, sleep_s, count = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    group, lighthouse, timeout_s = sys.argv[4], sys.argv[5], float(sys.argv[6])
    diary = Diary(folder, group)
    import torch
    from bench.programs.torchft_parts import CorrectedDDP, make_manager  # after the first line of the diary
    from torchft.optim import OptimizerWrapper

    bare = SmallModel(int(sys.argv[7]))
    plain = torch.optim.AdamW(bare.layers.parameters(), lr=1e-2)
    manager = make_manager(bare, plain, group, lighthouse, timeout_s)
    model = CorrectedDDP(manager, bare)
    optimizer = OptimizerWrapper(manager, plain)
    diary.note("ready")
    while True:
        before = manager.current_step()
        optimizer.zero_grad()
        diary.note("begun", step=before, slot=0)
        loss_sum = small_loss(model, before, sleep_s * count)
        (loss_sum / 4).backward()
        optimizer.step()
        after = manager.current_step()
        if after > before and manager.is_participating():
            diary.note("committed", step=after, microbatches=count)
        else:
            diary.note("discarded", step=after, microbatches=count)


if __name__ == "__main__":
    main()
