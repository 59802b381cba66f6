"""loader: pinned memory is copied while other work runs, and DataLoader's workers fill it correctly."""

import os

import pytest

from smoke_tests.rows import Rows

SIZE = 16 << 20  # numbers of four bytes: 64 MiB, a few milliseconds over PCIe
WORK = 1_000_000_000  # clock cycles of a GPU: half a second, much longer than a copy of 64 MiB
ROWS, WIDTH, BATCH, WORKERS = 512, 64, 64, 2

VALUES = {
    "loader": {
        "pinned": {"equals": True},
        "returned_before_the_copy": {"equals": True},
        "copy_wrong": {"equals": 0},
        "ended_during_a_kernel": {"equals": True},
        "overlapped_wrong": {"equals": 0},
        "pageable_returned_before_the_copy": {"type": "boolean"},
        "workers": {"equals": 2},
        "batches_pinned": {"equals": 8},
        "batches_wrong": {"equals": 0},
    },
}


@pytest.mark.tier(1)
@pytest.mark.limit(300)
def test_loader(measure):
    """The call of a copy returns before the copy ends, a copy ends during a kernel, workers send pinned
    batches."""
    import torch

    host = torch.arange(SIZE, dtype=torch.int32).pin_memory()
    there = torch.empty(SIZE, dtype=torch.int32, device="cuda")
    measure("pinned", host.is_pinned())
    measure("returned_before_the_copy", _returned_first(torch, there, host))
    measure("copy_wrong", _wrong(there, host))
    measure("ended_during_a_kernel", _overlapped(torch, there, host))
    measure("overlapped_wrong", _wrong(there, host))
    # The driver may copy pageable memory with or without waiting.
    pageable = torch.arange(SIZE, dtype=torch.int32)
    measure("pageable_returned_before_the_copy", _returned_first(torch, there, pageable))

    rows = torch.arange(ROWS * WIDTH, dtype=torch.int32).reshape(ROWS, WIDTH)
    batches, workers = _loaded(torch, rows)
    measure("workers", len(workers - {os.getpid()}))
    measure("batches_pinned", sum(batch.is_pinned() for batch in batches))
    on_gpu = [batch.to("cuda", non_blocking=True) for batch in batches]
    measure("batches_wrong", _wrong(torch.cat(on_gpu), rows))


def _returned_first(torch, there, host):
    """Whether the call returned before the copy: a long kernel precedes it in the stream."""
    there.zero_()
    torch.cuda.synchronize()
    torch.cuda._sleep(WORK)
    there.copy_(host, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()
    first = not copied.query()
    torch.cuda.synchronize()
    return first


def _overlapped(torch, there, host):
    """Whether a copy on a second stream ended while a kernel on the first one was running."""
    second = torch.cuda.Stream()
    with torch.cuda.stream(second):  # initialize the stream now, while nothing runs
        there.copy_(host, non_blocking=True)
    there.zero_()
    torch.cuda.synchronize()
    torch.cuda._sleep(WORK)
    worked = torch.cuda.Event()
    worked.record()
    with torch.cuda.stream(second):
        there.copy_(host, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
    copied.synchronize()
    during = not worked.query()
    torch.cuda.synchronize()
    return during


def _wrong(there, host):
    """The number of elements on the GPU that differ from the host's."""
    return int((there != host.to("cuda")).sum())


def _loaded(torch, rows):
    """All batches in order, and the ids of the processes that read the rows."""
    # fork on every Python, because the workers use no GPU and need not import this file.
    loader = torch.utils.data.DataLoader(
        Rows(rows), batch_size=BATCH, num_workers=WORKERS, pin_memory=True, multiprocessing_context="fork"
    )
    batches, workers = [], set()
    for batch, pids in loader:
        batches.append(batch)
        workers |= set(pids.tolist())
    return batches, workers
