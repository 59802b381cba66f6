"""The recipes with two processes on a CPU over gloo: DDP and FSDP have the losses of one process."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.needs import nightly
from tests.programs import run_program
from tests.recipes.test_amp_mistakes import CODE, _global
from tests.recipes.torch_python import ENVIRON, PYTHON, needs_torch, result_of
from torchkiln.util.places import ROOT

pytestmark = needs_torch
START = """
import json, os, socket, tempfile, traceback
import torch.distributed as dist
from recipes import data, parallel, train
from recipes.settings import Settings, Unavailable, parse
from torch import nn
cpu = torch.device("cpu")

def ranks(work, count=2):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    folder = tempfile.mkdtemp()
    pids = []
    for rank in range(count):
        pid = os.fork()
        if pid:
            pids.append(pid)
            continue
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        try:
            answer = {"value": work(rank)}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        with open(f"{folder}/{rank}", "w") as file:
            json.dump(answer, file)
        os._exit(0)
    for pid in pids:
        os.waitpid(pid, 0)
    answers = [json.load(open(f"{folder}/{rank}")) for rank in range(count)]
    assert not any("error" in answer for answer in answers), "\\n".join(a.get("error", "") for a in answers)
    return [answer["value"] for answer in answers]

def losses(*words):
    return train.run(parse(["--device", "cpu", "--optimizer", "sgd", "--steps", "4", *words]))["losses"]
"""
ONE = ("--batch", "8")
TWO = ("--batch", "4")


def scene(code: str) -> Any:
    return result_of(START + code)


def compared(parallel: str, *words: str, before: str = "") -> tuple[list[list[float]], list[float]]:
    """The losses of two processes with half the batch each, and of one process with the whole batch."""
    half, whole = ["--parallel", parallel, *TWO, *words], [*ONE, *words]
    two, one = scene(f"{before}\nresult = [ranks(lambda rank: losses(*{half!r})), losses(*{whole!r})]")
    return two, one


@pytest.mark.parametrize(
    "words",
    [(), *(pytest.param(words, marks=nightly) for words in (("--accumulate", "2"), ("--precision", "fp16")))],
    ids=" ".join,
)
def test_ddp_learns_what_one_process_does_with_the_double_batch(words: tuple[str, ...]) -> None:
    two, one = compared("ddp", *words)
    assert two[0] == two[1]
    assert two[0] == pytest.approx(one, rel=1e-4 if words[-1:] == ("fp16",) else 1e-5)
    assert one[0] != pytest.approx(one[-1], rel=1e-3)  # the loss has changed


def test_fsdp_learns_what_one_process_does() -> None:
    """FSDP2 on two processes has the losses of one process. FSDP1 refuses a CPU."""
    two, one = compared("fsdp2", "--clip", "0.1")
    assert two[0] == pytest.approx(one, rel=1e-5)


def test_two_processes_without_a_sampler_learn_what_one_does() -> None:
    """A mutant of the tests above: without a sampler, each process gets the samples of the first process."""
    mutant = """
real = data.DistributedSampler
data.DistributedSampler = lambda *a, **k: real(*a, **k | {"num_replicas": 1, "rank": 0})
"""
    found = scene(
        f"{mutant}\nwords = {[*TWO]!r}\n"
        "result = [ranks(lambda rank: losses('--parallel', 'ddp', *words))[0], losses(*words)]"
    )
    assert found[0] == pytest.approx(found[1], rel=1e-6)


COUNTED = """
def reductions(rank, always):
    settings = Settings(batch=8, accumulate=4, parallel="ddp", always_sync=always)
    training = train.Training(settings, cpu, parallel.join(settings, cpu))
    seen = []
    def hook(state, bucket):
        seen.append(1)
        sent = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return sent.then(lambda done: done.value()[0] / 2)
    training.called.register_comm_hook(None, hook)
    training.backward(*next(data.batches(settings, training.world, cpu, 0)))
    found = [len(seen), [float(parameter.grad.norm()) for parameter in training.model.parameters()]]
    parallel.leave(training.world)
    return found
result = [ranks(lambda rank: reductions(rank, always))[0] for always in (False, True)]
"""


def test_no_sync_reduces_once_for_each_step() -> None:
    """The gradient is the same; without no_sync, each of the four parts is reduced."""
    (once, gradient), (four, same) = scene(COUNTED)
    assert four == 4 * once
    assert gradient == pytest.approx(same, rel=1e-4)


@pytest.mark.parametrize("kind", ["ddp", pytest.param("fsdp2", marks=nightly)])
def test_a_resumed_run_of_two_processes_has_the_same_curve(kind: str, tmp_path: Path) -> None:
    file = str(tmp_path / "run.pt")
    words = ["--parallel", kind, "--batch", "4", "--optimizer", "adamw"]
    code = f"""
result = [
    ranks(lambda rank: losses(*{words!r}))[0],
    ranks(lambda rank: losses(*{words!r}, "--steps", "2", "--save", {file!r}))[0],
    ranks(lambda rank: losses(*{words!r}, "--resume", {file!r}))[0],
]
"""
    whole, first, rest = scene(code)
    assert first + rest == whole


def test_all_reduce_adds() -> None:
    """Section 2 of the page of AMP mistakes, in two processes: all_reduce adds, the right code averages."""
    code = f"""
def work(rank):
    global model, optimizer, loss
    dist.init_process_group("gloo")
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loss = (rank + 1) * model(torch.ones(1, 1)).sum()
    added = torch.tensor(float(rank + 1))
    dist.all_reduce(added)
    lines()
    return [float(added), float(model.weight)]
def lines():
{_global(CODE["right", "all-reduce"])}
result = ranks(work)
"""
    assert scene(code) == [[3.0, -1.5]] * 2


def test_torchrun_starts_it_and_one_process_reports(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ["--parallel", "ddp", "--device", "cpu", "--steps", "3", "--report", str(report)]
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    command = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    done = run_program(
        [*command, "--master-port", port, "-m", "recipes.train", *words],
        env=os.environ | ENVIRON,
        cwd=ROOT / "rootfs/opt/torchkiln/examples",
    )
    assert done.returncode == 0, done.stderr
    values = json.loads(report.read_text())
    assert values["outcome"] == "measured"
    assert len(values["losses"]) == 3
