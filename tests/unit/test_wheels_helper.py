"""The generator of wheels: what it says is in them is in them, and pip takes them."""

import csv
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.wheel_strategies import wheel_specs
from tests.wheels import WheelSpec, make_wheel, write_wheel

FILES = {
    "package/__init__.py": b"x = 1\n",
    'package/é, "q".py': b"",
    f"package/{'n' * 150}/{'m' * 150}.py": b"a" * 999,
}


def pip_install(wheel: Path, prefix: Path) -> subprocess.CompletedProcess[str]:
    """Plain pip, from this file alone."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--isolated",
        "--no-index",
        "--no-deps",
        "--no-compile",
    ]
    options = [
        "--disable-pip-version-check",
        "--root-user-action=ignore",
        "--ignore-installed",
        "--prefix",
        str(prefix),
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    return subprocess.run(
        [*command, *options, str(wheel)], capture_output=True, text=True, env=environment, check=False
    )


def test_options_shape_the_zip(tmp_path: Path) -> None:
    """Descriptors, zip64, folders and order are there when asked, and only then."""
    plain = make_wheel(tmp_path / "a", "Some.Name", "1.2", FILES)
    rare = make_wheel(
        tmp_path / "b", "Some.Name", "1.2", FILES, streamed=True, zip64=True, folders=True, shuffle=1
    )
    names = [zipfile.ZipFile(path).namelist() for path in (plain, rare)]

    assert plain.name == "Some_Name-1.2-py3-none-any.whl"
    assert [mark in plain.read_bytes() for mark in (b"PK\6\6", b"PK\7\x08")] == [False, False]
    assert [mark in rare.read_bytes() for mark in (b"PK\6\6", b"PK\7\x08")] == [True, True]
    assert names[0][-1] == "Some_Name-1.2.dist-info/RECORD"
    assert {name for name in names[1] if not name.endswith("/")} == set(names[0])
    assert "package/" in names[1]
    assert [name for name in names[1] if not name.endswith("/")] != names[0]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(spec=wheel_specs())
def test_any_spec_gives_a_sound_wheel(tmp_path_factory: pytest.TempPathFactory, spec: WheelSpec) -> None:
    """Every CRC holds, RECORD lists each file once, modes are marked, and twice gives the same bytes."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = write_wheel(spec, folder)

    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        rows = list(csv.reader(io.StringIO(archive.read(f"{spec.stem}.dist-info/RECORD").decode())))
        entries = {info.filename: info for info in archive.infolist() if not info.is_dir()}
    assert sorted(row[0] for row in rows) == sorted(entries)
    assert all(row[2] in ("", str(entries[row[0]].file_size)) for row in rows)
    modes = sorted(file.mode for file in spec.files)
    stem = f"{spec.stem}.dist-info/"
    assert (
        sorted(e.external_attr >> 16 & 0o777 for n, e in entries.items() if not n.startswith(stem)) == modes
    )
    before = wheel.read_bytes()
    assert write_wheel(spec, folder).read_bytes() == before


@settings(deadline=None, max_examples=4, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(spec=wheel_specs())
def test_pip_takes_any_spec(tmp_path_factory: pytest.TempPathFactory, spec: WheelSpec) -> None:
    """pip installs it without a word, and as many files as it has at least."""
    folder = tmp_path_factory.mktemp("wheel")

    done = pip_install(write_wheel(spec, folder), folder / "prefix")

    assert (done.returncode, done.stderr) == (0, "")
    assert sum(path.is_file() for path in (folder / "prefix").rglob("*")) >= len(spec.files) + 3
