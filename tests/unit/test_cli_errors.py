"""What the system refuses is told in a sentence, with what to do; before torchkiln runs, too."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torchkiln import cli
from torchkiln.util.places import ROOT


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (OSError(errno.ENOSPC, "No space left"), "the cache or the output: No space left", "free space, or"),
        (
            OSError(errno.EACCES, "Permission denied", "a/b"),
            "a/b: Permission denied",
            "owner and permissions",
        ),
        (OSError(errno.EROFS, "Read-only", "a/b"), "a/b: Read-only", "choose another folder"),
        (OSError(errno.EMFILE, "Too many", "a/b"), "a/b: Too many", "ulimit -n"),
    ],
    ids=lambda value: errno.errorcode[value.errno] if isinstance(value, OSError) else "",
)
def test_what_the_system_refuses(
    error: OSError,
    message: str,
    hint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refused(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli.torchkiln, "main", refused)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)  # the test run keeps its own
    with pytest.raises(SystemExit) as left:
        cli.main([])
    first, second = capsys.readouterr().err.splitlines()

    assert (left.value.code, first) == (6, f"error: {message}")
    assert second.startswith("hint: ")
    assert hint in second


def test_an_environment_that_one_may_not_use_is_passed_over(tmp_path: Path) -> None:
    """Another user's .venv; the Python at hand has what is needed."""
    door = Path(shutil.copy(ROOT / "build.py", tmp_path))
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch(mode=0o644)  # not even root may run that
    ran = subprocess.run(
        [sys.executable, door, "--version"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("torchkiln")
