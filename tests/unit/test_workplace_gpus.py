"""A thin image is not started if no GPU of the host can run its device code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fake_driver import fake_driver
from tests.inside import PACKAGE, Place, driver, image, machine, place
from tests.needs import needs_gcc
from tests.programs import run_program
from workplace import checks, command, gpus, report
from workplace.driver import Driver, Gpu
from workplace.image import Image

__all__ = ["place"]

THIN = "2.7.1-cuda12.1-cudnn9-runtime-sm80-sm90-ownuse-ubuntu22.04"
FULL = "2.7.1-cuda12.1-cudnn9-runtime-ubuntu22.04"


def thin(*kept: str) -> Image:
    """An image with code for the capabilities *kept*; the full image of its torch has code for 7.0 to 9.0."""
    archs = ("sm_70", "sm_80", "sm_86", "sm_90")
    return image(tag=THIN, gpus=kept or ("8.0", "9.0"), archs=("sm_80", "sm_90"), wheel_archs=archs)


def of(*capabilities: str) -> Driver:
    """A working driver that has one GPU for each of *capabilities*."""
    found = []
    for text in capabilities:
        major, _, minor = text.partition(".")
        found.append(Gpu(name=f"GPU {text}", capability=(int(major), int(minor)), memory=1 << 34))
    return driver(gpus=tuple(found))


@pytest.mark.parametrize(
    ("kept", "here", "refused"),
    [
        ("9.0", "9.0", False),
        ("8.0", "9.0", True),
        ("8.0", "8.6", False),  # code for 8.0 runs on every later 8.x
        ("8.6", "8.0", True),
        ("8.0,9.0", "8.9", False),
        ("8.0,9.0", "12.0", True),
        ("9.0", "7.0,9.0", False),  # one of the GPUs can run it
        ("9.0", "7.0,8.0", True),
        ("9.0", "", False),  # without a GPU, torch runs on the CPU
    ],
)
def test_binary_compatibility_decides(kept: str, here: str, refused: bool) -> None:
    found = of(*filter(None, here.split(",")))

    assert bool(gpus.refusal(thin(*kept.split(",")), found)) is refused


def test_an_image_with_all_device_code_starts_everywhere() -> None:
    """As before, it prints a warning, and torch reports the error."""
    assert gpus.refusal(image(), of("3.5")) == ()
    assert list(report.unsupported(image(), of("3.5")))


def test_the_refusal_says_what_to_use() -> None:
    """It has the image's capabilities, each GPU model once, and the full image's tag if that has code."""
    first, second = gpus.refusal(thin(), of("7.0", "7.0", "7.5"))
    unknown = gpus.refusal(thin(), of("12.0"))[1]

    assert "8.0, 9.0 only" in first
    assert first.endswith("GPU 7.0 (7.0), GPU 7.5 (7.5)")
    assert f"all GPUs: {FULL};" in second
    assert "TORCHKILN_ANY_GPU=yes" in second
    assert FULL not in unknown
    assert "torchkiln pick" in unknown


def test_gpus_that_cannot_be_used_are_named() -> None:
    """The start and the doctor name them, even if another GPU can be used."""
    found = of("9.0", "7.0")
    (warning,) = report.unsupported(thin(), found)

    assert "GPU 7.0 (compute capability 7.0) cannot be used" in warning
    assert FULL in warning


def test_the_doctor_reports_unsupported_gpus(place: Place) -> None:
    lines = {line.about: line for line in checks.run_all(thin(), of("9.0", "7.0"), machine())}

    assert lines["GPUs"].state == "problem"
    assert lines["GPUs"].found.startswith(
        "GPU 7.0 (7.0): this image has device code for compute capability 8.0"
    )
    assert FULL in lines["GPUs"].remedy
    assert "8.0, 9.0 only" in lines["image"].found


@needs_gcc
@pytest.mark.parametrize(
    ("environ", "code", "words"),
    [
        ({"FAKE_CAPABILITY": "90"}, 0, ""),
        ({"FAKE_CAPABILITY": "70"}, 3, "no GPU here can run it: Fake H100 (7.0)"),
        ({"FAKE_CAPABILITY": "70", "TORCHKILN_ANY_GPU": "yes"}, 0, "warning: Fake H100"),
        ({"FAKE_CAPABILITY": "70", "TORCHKILN_ANY_GPU": "perhaps"}, 3, "must be yes or no"),
        ({"FAKE_CAPABILITY": "90,70", "FAKE_GPUS": "2"}, 0, "warning: Fake H200 (compute capability 7.0)"),
        ({"FAKE_CAPABILITY": "75,70", "FAKE_GPUS": "2"}, 3, "Fake H100 (7.5), Fake H200 (7.0)"),
        ({"FAKE_CAPABILITY": "70", "FAKE_GPUS": "0"}, 0, ""),
        ({"FAKE_CAPABILITY": "70", "FAKE_INIT": "crash"}, 0, ""),
    ],
)
def test_before_a_command(
    environ: dict[str, str],
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver()))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    assert gpus.main(thin("9.0"), environ) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert (words in captured.err) is True
    assert bool(captured.err) is bool(words)


@needs_gcc
@pytest.mark.parametrize(("allowed", "code"), [("no", 3), ("yes", 1)])
def test_before_the_services(
    allowed: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 means that the check passed: services cannot create their folder below /proc/none."""
    monkeypatch.setattr(command.image, "load", lambda: thin("9.0"))
    monkeypatch.setattr("workplace.services.runtime_folder", lambda: Path("/proc/none"))
    for name, value in {"FAKE_CAPABILITY": "70", "TORCHKILN_ANY_GPU": allowed}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver()))

    assert command.main(["services"]) == code
    assert ("no GPU here can run it" in capsys.readouterr().err) is (code == 3)


# The entrypoint runs with stubs of /usr/bin/python3, /etc/torchkiln and /opt/torchkiln.
@pytest.mark.parametrize(
    ("image_json", "status", "expected"),
    [
        ('{\n  "gpus": ["9.0"],\n}\n', 0, (7, "asked gpus\ncommand\n")),
        ('{\n  "gpus": ["9.0"],\n}\n', 3, (3, "asked gpus\n")),
        ('{\n  "gpus": ["9.0"],\n}\n', 1, (7, "asked gpus\ncommand\n")),
        ('{\n  "gpus": ["9.0"],\n}\n', 127, (7, "asked gpus\ncommand\n")),
        ('{\n  "tag": "\\"gpus\\": ["\n}\n', 3, (7, "command\n")),
        (None, 3, (7, "command\n")),
    ],
    ids=["served", "refused", "Python fails", "no Python", "all GPUs", "no image.json"],
)
def test_the_entrypoint_stops_only_for_a_refusal(
    image_json: Any, status: int, expected: tuple[int, str], tmp_path: Path
) -> None:
    python, facts = tmp_path / "python3", tmp_path / "image.json"
    python.write_text(f'#!/bin/sh\necho asked "$3"\nexit {status}\n')
    python.chmod(0o755)
    if image_json is not None:
        facts.write_text(image_json)
    (tmp_path / "account").write_text("")
    script = (PACKAGE.parent / "entrypoint").read_text()
    for old, new in (
        ("/usr/bin/python3", str(python)),
        ("/etc/torchkiln/image.json", str(facts)),
        ("/opt/torchkiln/account", str(tmp_path / "account")),
    ):
        assert old in script
        script = script.replace(old, new)
    argv = ["sh", "-c", script, "entrypoint", "sh", "-c", "echo command; exit 7"]
    done = run_program(argv)

    assert (done.returncode, done.stdout) == expected
    assert done.stderr == ""


def test_what_comes_before_the_check(tmp_path: Path) -> None:
    """`doctor` and `help` run on every machine, even if its GPUs cannot run the image."""
    script = (PACKAGE.parent / "entrypoint").read_text()

    assert script.index("doctor | help)") < script.index("workplace gpus") < script.index('*) exec "$@"')
    assert f"[ $? != {gpus.REFUSED} ] || exit {gpus.REFUSED}" in script
