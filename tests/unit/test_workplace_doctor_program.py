"""The doctor as a program: text, JSON, exit codes."""

from __future__ import annotations

import json
import re
import stat

import pytest

from tests.examined import Place, place
from tests.fake_driver import fake_driver
from tests.needs import needs_gcc
from workplace import doctor

__all__ = ["place"]

ORDER = (
    *("image", "driver", "GPUs", "/dev/shm", "memory", "NCCL", "cuDNN", "torch", "compiler"),
    *("files", "user", "services", "time"),
)
_SHOWN = re.compile(r"(ok|warning|problem) +(\S+(?: \S+)*?) +(.*)")


@pytest.fixture
def fake(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that works."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver()))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@needs_gcc
@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("answers", "broken", "last"),
    [
        ({}, 0, "no problems"),
        ({"FAKE_DRIVER": "470.57.02"}, 1, "1 problem"),
        ({"FAKE_DRIVER": "470.57.02", "FAKE_CAPABILITY": "70"}, 2, "2 problems"),
        ({"FAKE_INIT": "999"}, 1, "1 problem"),
    ],
)
def test_problems_are_the_exit_code(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    answers: dict[str, str],
    broken: int,
    last: str,
) -> None:
    """Warnings are none: this machine's /dev/shm may be small. Text and JSON tell the same."""
    for name, value in answers.items():
        monkeypatch.setenv(name, value)
    codes = (doctor.main([]), doctor.main(["--json"]))
    said = capsys.readouterr()
    text, _, rest = said.out.partition("{")
    told = json.loads("{" + rest)

    assert codes == (int(bool(broken)),) * 2
    assert said.err == ""
    assert text.splitlines()[-1] == last
    assert told["image"] == "2.7.1-cuda12.1-cudnn9-runtime"
    assert told["problems"] == broken == [one["state"] for one in told["lines"]].count("problem")
    same_moment = [one for one in shown(text) if one["about"] != "time"]
    assert same_moment == [one for one in told["lines"] if one["about"] != "time"]
    assert tuple(one["about"] for one in told["lines"]) == ORDER


def shown(text: str) -> list[dict[str, str]]:
    """What the doctor's text tells, a matter each."""
    found: list[dict[str, str]] = []
    for row in text.partition("\n\n")[0].splitlines():
        if line := _SHOWN.fullmatch(row):
            found.append({"about": line[2], "state": line[1], "found": line[3], "remedy": ""})
        else:
            found[-1]["remedy"] = row.strip()
    return found


@pytest.mark.usefixtures("fake")
def test_a_wrong_option_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        doctor.main(["--jsn"])

    assert ended.value.code == 2
    assert "--jsn" in capsys.readouterr().err


@needs_gcc
@pytest.mark.usefixtures("fake")
def test_nothing_is_left_behind(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """By who was to look only."""
    before = {path: stat.S_IMODE(path.stat().st_mode) for path in place.folder.rglob("*")}
    doctor.main([])

    assert {path: stat.S_IMODE(path.stat().st_mode) for path in place.folder.rglob("*")} == before
