"""Run the checks, and print one JSON object per line: the host, then the start and the end of each check.

Start it as `python -I -B runner.py`. Without facts it checks the environment that it runs in, and skips
checks that need a lock. In an image it is also started with -S, so that checks run without the image's
start-up code (see isolation.py). Every check has a separate process group, so that a check that crashes,
hangs or leaves children behind does not affect others.

The checks of tier 0 run side by side. The others run one at a time, because they measure the GPU's memory
and time; meanwhile the next check's process starts, imports torch, and waits.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GRACE = 3.0  # seconds between asking for a traceback (SIGABRT) and SIGKILL
SIDE_BY_SIDE = 4  # checks of tier 0; each needs up to 1 GB of memory
# Cores that a host needs so that the import of torch does not disturb a check that measures times.
CORES_TO_SPARE = 4
_LINES = threading.Lock()


def main() -> int:
    """Run the selected checks; return 0 whatever their outcome, or 2 if there is nothing to run."""
    options = _options()
    _load_suite()
    from smoke_tests.applicable import not_applicable
    from smoke_tests.catalogue import catalogue, digest, missing
    from smoke_tests.environment import NoTorchError, environment_facts
    from smoke_tests.gpus import capability
    from smoke_tests.host import fault, host_facts, host_texts
    from smoke_tests.isolation import remove_unexpected

    if sentence := missing(HERE):
        return refuse(sentence)
    of_image = bool(options.facts)
    if of_image:
        facts = json.loads(Path(options.facts).read_bytes())
        remove_unexpected(os.environ, facts.get("env", {}))
    else:
        remove_unexpected(os.environ, None)
        if not (options.wheels or importlib.util.find_spec("pytest")):
            return refuse(f"{sys.executable} has no pytest: install it, or name its folder by --wheels")
        try:
            facts = environment_facts()
        except NoTorchError as error:
            return refuse(str(error))
    host = host_facts()
    options.facts = write_temporary(facts | {"host": host})
    emit("host", suite=digest(HERE), **host, **host_texts())
    ends = time.monotonic() + options.limit
    checks = []
    for check in catalogue(HERE):
        if check.tier > options.tier or (options.only and check.id not in options.only):
            continue
        if check.of_image and not of_image:
            continue
        if fact := not_applicable(check.id, facts, capability(host)):
            emit_unstarted(check, "not-applicable", fact)
        elif lacks := fault(check.id, check.tier, host, facts):
            emit_unstarted(check, "skipped", lacks)
        else:
            checks.append(check)
    with ThreadPoolExecutor(min(host["cores"], SIDE_BY_SIDE)) as pool:
        list(pool.map(lambda check: run(check, options, ends), [each for each in checks if each.tier == 0]))
    checks = [check for check in checks if check.tier > 0]
    following: Process | None = None
    for at, check in enumerate(checks):
        process, following = following, None
        if checks[at + 1 :] and host["cores"] >= CORES_TO_SPARE:
            following = Process(checks[at + 1], options, waits=True)
        run(check, options, ends, process)
    emit("end")
    return 0


def run(check: Any, options: argparse.Namespace, ends: float, process: Process | None = None) -> None:
    """Run *check*; print its start and its end.

    :param process: its process, which waits; None, or if it has died: a new one is started.
    """
    emit("start", id=check.id)
    began = time.monotonic()
    limit = min(check.limit, ends - began)
    with process or contextlib.nullcontext():
        if limit <= 0:
            found = finding("failed", f"not started: the suite's limit of {options.limit:g} s was reached")
        elif process and process.released():
            found = process.finding(limit)
        else:
            with Process(check, options) as new:
                found = new.finding(limit)
    emit("finding", id=check.id, tier=check.tier, seconds=round(time.monotonic() - began, 3), **found)


def emit_unstarted(check: Any, outcome: str, reason: str) -> None:
    """Print the start and the end of a check that is not started."""
    emit("start", id=check.id)
    emit("finding", id=check.id, tier=check.tier, seconds=0.0, **finding(outcome, reason))


class Process:
    """The process of one check. At the end of the context, it ends with all that the check left behind."""

    def __init__(self, check: Any, options: argparse.Namespace, *, waits: bool = False) -> None:
        """Start it; with *waits*, it imports what the check needs and then waits for `released`."""
        from smoke_tests.isolation import flags

        self._scratch = Path(tempfile.mkdtemp(prefix="kiln-check-"))
        self._result, self._output = self._scratch / "result.json", self._scratch / "output"
        command = [sys.executable, *flags(), str(HERE / "one.py"), str(HERE), options.wheels]
        command += [f"{check.file}::{check.function}", options.facts, str(self._result)]
        turn, self._turn = os.pipe()
        self._killed = False
        # Output goes to a file, because children that a check leaves behind would keep a pipe open.
        with self._output.open("wb") as sink:
            self._process = subprocess.Popen(
                [*command, *([str(turn)] if waits else [])],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=environment(self._scratch),
                start_new_session=True,
                pass_fds=[turn] if waits else [],
            )
        os.close(turn)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        os.close(self._turn)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def released(self) -> bool:
        """Whether the process was still waiting; then its check starts."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._turn, b"\n")
            return self._process.poll() is None
        return False

    def finding(self, limit: float) -> dict[str, Any]:
        """The result of the check, which has *limit* seconds. A check without a result failed; the message
        says how the process ended."""
        code: int | None = None
        try:
            code = self._process.wait(limit)
        except subprocess.TimeoutExpired:
            _signal_group(self._process.pid, signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE)
        self._kill()
        return judge(code, self._result, self._output.read_text("utf-8", "replace"), limit)

    def _kill(self) -> None:
        if not self._killed:  # later, another process can have this number
            _signal_group(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._killed = True


def judge(code: int | None, result: Path, output: str, limit: float) -> dict[str, Any]:
    """The finding for a process's exit status and result file; only a complete run can pass."""
    from smoke_tests.probe import ending, tail, where

    try:
        left = json.loads(result.read_bytes())
    except (OSError, ValueError):
        left = {"outcome": "failed", "message": "", "measured": {}, "threshold": {}, "ran": False}
    values = {"measured": left["measured"], "threshold": left["threshold"]}
    if code is None:
        return finding("failed", f"timed out after {limit:g} s and was killed\n{where(output)}", **values)
    if code < 0:
        return finding("failed", f"the process {ending(code)}\n{where(output)}", **values)
    if left["outcome"] != "passed" and left["message"]:
        return finding("failed", left["message"], **values)
    if code != 0 or not left["ran"]:
        return finding("failed", f"no result: the process {ending(code)}\n{tail(output)}", **values)
    return finding(left["outcome"], left["message"], **values)


def environment(scratch: Path) -> dict[str, str]:
    """The variables of this process; caches and temporary files go to *scratch*, away from the image."""
    own = {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the image's anyio installs a plugin of pytest
        "TMPDIR": str(scratch),
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
    }
    return dict(os.environ) | own


def write_temporary(facts: dict[str, Any]) -> str:
    """The path of a file with *facts*, deleted when this process ends."""
    import atexit

    descriptor, path = tempfile.mkstemp(prefix="kiln-facts-", suffix=".json")
    atexit.register(os.unlink, path)
    with os.fdopen(descriptor, "w") as file:
        json.dump(facts, file)
    return path


def finding(outcome: str, message: str, **values: Any) -> dict[str, Any]:
    """A finding as a JSON object."""
    return {"outcome": outcome, "message": message, "measured": {}, "threshold": {}} | values


def emit(event: str, **values: Any) -> None:
    """Print a line and flush it, so that it is not lost in a crash."""
    with _LINES:
        print(json.dumps({"event": event, **values}), flush=True)


def refuse(sentence: str) -> int:
    """Print why there is nothing to run; return the exit code."""
    print(f"runner.py: {sentence}", file=sys.stderr)
    return 2


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def _load_suite() -> None:
    """Load smoke_tests as a package by path (see one.py, which cannot be imported before this)."""
    import runpy

    runpy.run_path(str(HERE / "one.py"), run_name="one")["load_suite"](HERE)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="runner.py")
    parser.add_argument("--facts", default="", help="JSON file: what the outside says of the image")
    parser.add_argument(
        "--wheels", default="", help="folder of pytest and what it needs, where it is not here"
    )
    parser.add_argument("--tier", type=int, default=0, help="run this tier and those below")
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="run only this check")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds for the whole suite")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
