"""Run code in forks of a Python process that has imported torch and the recipes, one per test process."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

from tests.smoke_mutants.mutant import PYTHON, needs_torch
from torchkiln.util.places import ROOT

__all__ = ["ENVIRON", "EXAMPLES", "PYTHON", "needs_torch", "result_of"]

EXAMPLES = ROOT / "rootfs/opt/torchkiln/examples"
# One thread: several threads are slow on a busy machine, and add numbers in varying order.
ENVIRON = {
    "PYTHONPATH": str(EXAMPLES),
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
_SERVER = r"""
import json, os, sys, tempfile, traceback, warnings
import torch, torch.distributed, torch.nn.functional, torch.utils.checkpoint
import recipes.train

def child(code, where):
    result = {"result": None, "error": None}
    space = {"__name__": "scene", "torch": torch}
    try:
        exec(compile(code, "scene", "exec"), space)
        result["result"] = space.get("result")
    except BaseException as error:
        result["error"] = traceback.format_exc()
    with open(where, "w") as file:
        json.dump(result, file)

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    handle, where = tempfile.mkstemp()
    os.close(handle)
    pid = os.fork()
    if not pid:
        child(json.loads(line), where)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    with open(where) as file:
        text = file.read()
    os.remove(where)
    answers.write((text or json.dumps({"result": None, "error": f"ended with status {status}"})) + "\n")
    answers.flush()
"""


@cache
def _server() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [PYTHON, "-B", "-c", _SERVER],
        env=os.environ | ENVIRON,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=sys.__stderr__,
        text=True,
    )

    def stop() -> None:
        process.stdin.close()
        process.wait()
        process.stdout.close()

    atexit.register(stop)
    return process


def result_of(code: str) -> Any:
    """The value that *code* assigned to `result`, converted to JSON and back.

    :raises AssertionError: *code* raised an exception; the message has the traceback.
    """
    server = _server()
    server.stdin.write(json.dumps(code) + "\n")
    server.stdin.flush()
    answer = json.loads(server.stdout.readline())
    assert answer["error"] is None, answer["error"]
    return answer["result"]
