"""Run the checks, and print one JSON object per line: the host, then the start and the end of each check.

Start it as `python -I -B runner.py`. Without facts it checks the environment that it runs in, and skips
checks that need a lock. In an image it is also started with -S, so that checks run without the image's
start-up code (see isolation.py). Every check has a separate process group, so that a check that crashes,
hangs or leaves children behind does not affect others.
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
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GRACE = 3.0  # seconds between asking for a traceback (SIGABRT) and SIGKILL


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
    for check in catalogue(HERE):
        if check.tier > options.tier or (options.only and check.id not in options.only):
            continue
        if check.of_image and not of_image:
            continue
        emit("start", id=check.id)
        began = time.monotonic()
        if fact := not_applicable(check.id, facts, capability(host)):
            found = finding("not-applicable", fact)
        elif lacks := fault(check.id, check.tier, host, facts):
            found = finding("skipped", lacks)
        elif began >= ends:
            found = finding("failed", f"not started: the suite's limit of {options.limit:g} s was reached")
        else:
            found = in_own_process(check, options, min(check.limit, ends - began))
        emit("finding", id=check.id, tier=check.tier, seconds=round(time.monotonic() - began, 3), **found)
    emit("end")
    return 0


def in_own_process(check: Any, options: argparse.Namespace, limit: float) -> dict[str, Any]:
    """Run one check and read its result. A check without a result failed; the message says how the process
    ended."""
    from smoke_tests.isolation import flags

    scratch = Path(tempfile.mkdtemp(prefix="kiln-check-"))
    try:
        result, output = scratch / "result.json", scratch / "output"
        command = [sys.executable, *flags(), str(HERE / "one.py"), str(HERE), options.wheels]
        command += [f"{check.file}::{check.function}", options.facts, str(result)]
        with output.open("wb") as sink:
            code = ended_by(command, environment(scratch), sink, limit)
        return judge(code, result, output.read_text("utf-8", "replace"), limit)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


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


def ended_by(command: list[str], env: dict[str, str], sink: Any, limit: float) -> int | None:
    """The exit status, negative for a signal; None when *limit* seconds were not enough.

    Output goes to a file, because children that a check leaves behind would keep a pipe open.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=env, start_new_session=True
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        _signal_group(process.pid, signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        return None
    finally:
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()


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
