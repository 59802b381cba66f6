"""The engine `slurm[:PARTITION]`: submitit submits the jobs; sbatch reads the variables SBATCH_*."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import submitit

from torchkiln.errors import ToolMissing
from torchkiln.jobs.run import Engine

_QUEUED = 64  # jobs at a time: Slurm's scheduler slows down with thousands of single jobs
_FOLDER, _MINUTES = "torchkiln-jobs", 120


class SlurmEngine(ThreadPoolExecutor):
    """Waits for each job in a thread."""

    def __init__(self, slurm: submitit.SlurmExecutor) -> None:
        super().__init__(_QUEUED)
        self._slurm = slurm

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:  # type: ignore[override]
        return super().submit(lambda: self._slurm.submit(function, *arguments).result())


def slurm(partition: str) -> AbstractContextManager[Engine]:
    """The cluster of this machine. The current folder must be the same on all nodes.

    :raises ToolMissing: Slurm is not installed.
    """
    if submitit.SlurmExecutor.affinity() < 0:
        raise ToolMissing("--on slurm: srun was not found", hint="run it on a login node of the cluster")
    found = submitit.SlurmExecutor(folder=_FOLDER, max_num_timeout=3)
    found.update_parameters(job_name="torchkiln", partition=partition or None, use_srun=False, time=_MINUTES)
    return SlurmEngine(found)
