"""loader, transfers: pinned memory is copied while other work runs, and DataLoader's workers fill it
correctly."""

import os

import pytest

from smoke_tests.rows import Rows

SIZE = 16 << 20  # numbers of four bytes: 64 MiB, a few milliseconds over PCIe
WORK = 1_000_000_000  # clock cycles of a GPU: half a second, much longer than a copy of 64 MiB
SHORT_WORK = WORK // 4
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
    "transfers": {
        # Calls that must return before the copy ends; false for a call that waited.
        "returned_before_the_copy": {
            "equals": {
                "tensor.to(cuda)": True,
                "tensor.cuda()": True,
                "copy_ to the GPU": True,
                "module.to(cuda)": True,
                "tensor.to(cpu)": True,
                "copy_ to the host": True,
            }
        },
        "wrong": {"equals": {}},  # elements that differ after the copy
        "blocking_returned_before_the_copy": {"equals": False},  # a copy to the host without non_blocking
        "devices": {"equals": ["cpu", "cuda"]},
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


@pytest.mark.tier(1)
def test_transfers(measure):
    """Every way to copy with non_blocking returns before the copy ends, in both directions; without it, a
    copy to the host waits."""
    import torch

    numbers = torch.arange(SIZE, dtype=torch.int32)
    host, there = numbers.pin_memory(), numbers.cuda()
    target, back = torch.empty_like(there), torch.empty_like(host).pin_memory()
    calls = {
        "tensor.to(cuda)": lambda: host.to("cuda", non_blocking=True),
        "tensor.cuda()": lambda: host.cuda(non_blocking=True),
        "copy_ to the GPU": lambda: target.copy_(host, non_blocking=True),
        "module.to(cuda)": lambda: _holding(torch, host).to("cuda", non_blocking=True).numbers,
        "tensor.to(cpu)": lambda: there.to("cpu", non_blocking=True),
        "copy_ to the host": lambda: back.copy_(there, non_blocking=True),
    }
    first, wrong, devices = {}, {}, set()
    for name, call in calls.items():
        call()  # memory is allocated now, because an allocation waits for the GPU
        first[name], found = _returned_before(torch, call)
        devices.add(found.device.type)
        if off := int((found.cpu() != numbers).sum()):
            wrong[name] = off
    measure("returned_before_the_copy", first)
    measure("wrong", wrong)
    measure("blocking_returned_before_the_copy", _returned_before(torch, lambda: there.to("cpu"))[0])
    measure("devices", sorted(devices))


def _holding(torch, numbers):
    """A module with *numbers* as a buffer."""
    module = torch.nn.Module()
    module.register_buffer("numbers", numbers)
    return module


def _returned_before(torch, call):
    """Whether *call* returned before a long kernel that precedes it in the stream ended, and its result."""
    torch.cuda.synchronize()
    torch.cuda._sleep(SHORT_WORK)
    worked = torch.cuda.Event()
    worked.record()
    found = call()
    first = not worked.query()
    torch.cuda.synchronize()
    return first, found


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
