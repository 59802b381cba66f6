"""The probe for missing libraries in a project: DT_RPATH of a library also applies to its dependencies."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.needs import needs_gcc
from torchkiln.projects.smoke import linkage_probe

pytestmark = needs_gcc
OLD, NEW = "-Wl,--disable-new-dtags", "-Wl,--enable-new-dtags"  # DT_RPATH, DT_RUNPATH


def library(folder: Path, name: str, *needs: str, flags: tuple[str, ...] = ()) -> None:
    """Build a library with gcc; it is linked against the libraries *needs* of *folder*."""
    folder.mkdir(exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / name), "-Wl,--no-as-needed"]
    command += [f"-Wl,-soname,{name}", f"-L{folder}", *(f"-l:{need}" for need in needs), *flags]
    subprocess.run(command, input=b"int x;", check=True)


def missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], prefix: Path) -> list[str]:
    """The names of the files that the probe reports because they need a missing library."""
    monkeypatch.setattr(linkage_probe, "PREFIX", prefix)
    monkeypatch.setattr(linkage_probe, "probe", lambda _: [])
    linkage_probe.main()
    return [file for file, _ in json.loads(capsys.readouterr().out)["missing"]]


@pytest.mark.parametrize(
    ("flags", "expected"), [((OLD,), []), ((NEW,), ["x.libs/libb.so"])], ids=["rpath", "runpath"]
)
def test_the_rpath_of_a_library_counts_for_the_libraries_that_it_needs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    expected: list[str],
) -> None:
    """DT_RPATH counts, and DT_RUNPATH does not. libb.so has neither, like libgfortran in scipy's wheel."""
    folder = tmp_path / "x.libs"
    library(folder, "libc1.so")
    library(folder, "libb.so", "libc1.so")
    library(folder, "module.so", "libb.so", flags=("-Wl,-rpath,$ORIGIN", *flags))

    assert missing(monkeypatch, capsys, tmp_path) == expected


def test_it_must_count_for_each_library_that_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "x.libs"
    library(folder, "libc1.so")
    library(folder, "libb.so", "libc1.so")
    library(folder, "one.so", "libb.so", flags=("-Wl,-rpath,$ORIGIN", OLD))
    library(folder, "two.so", "libb.so", flags=("-Wl,-rpath,$ORIGIN", NEW))

    assert missing(monkeypatch, capsys, tmp_path) == ["x.libs/libb.so"]


def test_a_library_that_no_other_needs_must_find_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library(tmp_path, "libc1.so")
    library(tmp_path, "module.so", "libc1.so")

    assert missing(monkeypatch, capsys, tmp_path) == ["module.so"]
