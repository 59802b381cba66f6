"""Run one rank in this process: `python -I -B rank.py SUITE MODULE:FUNCTION RANK WORLD FOLDER ARGUMENTS`.

It uses GPU number RANK, finds the other ranks through FOLDER, and writes the result of FUNCTION, of a module
in workers/, to FOLDER.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import runpy
import signal
import sys
from datetime import timedelta
from pathlib import Path

JOIN_TIMEOUT = 120.0  # seconds for all ranks to join, and for any collective
_PARENT_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


def main(suite: str, worker: str, rank: str, world: str, folder: str, arguments: str) -> None:
    """Join the process group, run the function, write its result, leave the group."""
    # End with the parent process, which may be killed before it can end this process.
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    faulthandler.enable()  # SIGABRT, which ends a rank that hangs, then prints a traceback
    runpy.run_path(f"{suite}/one.py")["load_suite"](Path(suite))
    from smoke_tests.isolation import add_packages

    add_packages()
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(rank))
    dist.init_process_group(
        "nccl",
        init_method=f"file://{folder}/rendezvous",
        rank=int(rank),
        world_size=int(world),
        timeout=timedelta(seconds=JOIN_TIMEOUT),
    )
    module, function = worker.split(":")
    work = getattr(importlib.import_module(f"smoke_tests.workers.{module}"), function)
    values = work(int(rank), int(world), **json.loads(arguments))
    result = Path(folder) / f"rank-{rank}.json"
    result.with_suffix(".part").write_text(json.dumps(values))
    result.with_suffix(".part").rename(result)  # atomic, even if the rank is killed
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
