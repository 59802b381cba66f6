"""Progress of `verify`, `diff` and base builds: bars on a terminal, a few lines elsewhere."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from tests import forked
from tests.oci_samples import build, files, tar_of
from tests.terminals import on_terminal
from torchkiln.base import mmdebstrap
from torchkiln.cli import bundle_run
from torchkiln.cli.build import _SHORT, _timed
from torchkiln.cli.diff import diff
from torchkiln.cli.run import _RunOutput
from torchkiln.cli.shared import console
from torchkiln.cli.shared.console import LogLines
from torchkiln.compare import images
from torchkiln.engine.image import BuildResult
from torchkiln.model.progress import Reporting, Work
from torchkiln.oci.layout import open_layout
from torchkiln.oci.validate import validate as module
from torchkiln.runtimes.image_root import unpacked
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

# What mmdebstrap --verbose prints: apt announces the essential packages first.
OUTPUT = "\n".join(
    [
        "I: installing essential packages...",
        "0 upgraded, 20 newly installed, 0 to remove and 0 not upgraded.",
        *(f"Setting up essential{number} (1.0) ..." for number in range(20)),
        "0 upgraded, 30 newly installed, 0 to remove and 0 not upgraded.",
        *(f"Setting up package{number}:amd64 (1.0) ..." for number in range(30)),
        "Processing triggers for libc-bin (2.36) ...",
    ]
)


class Recorded:
    def __init__(self) -> None:
        self.totals: dict[Work, int] = {}
        self.done: dict[Work, int] = {}
        self.ended = 0

    def begin(self, work: Work, name: str, total: int) -> None:
        self.totals[work] = self.totals.get(work, 0) + total

    def advance(self, work: Work, name: str, count: int) -> None:
        self.done[work] = self.done.get(work, 0) + count

    def end(self, work: Work, name: str) -> None:
        self.ended += 1


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two images without a common layer; tests only read them."""
    folder = tmp_path_factory.mktemp("two")
    for tag in "ab":
        data = random.Random(tag).randbytes(10_000_000)
        build(folder, tar_of(files(**{f"{tag}__data": data})), tag=tag)
    return folder / "layout"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(arguments, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize("processes", [1, 2])
def test_every_byte_that_verify_reads_is_reported(
    layout: Path, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that another process reads are reported, too."""
    monkeypatch.setattr(module, "_WORTH_PROCESSES", 0)
    seen = Recorded()
    module.validate(layout, workers=processes, observer=seen)

    assert seen.totals["verify"] > 0
    assert seen.done == seen.totals
    assert seen.ended > 0


def test_verify_prints_lines_in_a_log(layout: Path) -> None:
    ran = run("verify", str(layout))
    lines = [line for line in ran.stderr.splitlines() if line.startswith("torchkiln: verified ")]

    assert 1 <= len(lines) <= 10
    total = lines[-1].rpartition(" of ")[2]
    assert lines[-1] == f"torchkiln: verified {total} of {total}"
    assert run("verify", "--quiet", str(layout)).stderr.count("torchkiln: verified") == 0


def test_verify_draws_a_bar_on_a_terminal(layout: Path) -> None:
    screen = on_terminal("verify", str(layout), width=60)
    assert "verify" in screen.raw
    assert "torchkiln: verified" not in screen.raw
    assert screen.escapes


@pytest.mark.parametrize("setting", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_verify_prints_lines_on_a_terminal_without_escape_sequences(
    layout: Path, setting: Mapping[str, str]
) -> None:
    screen = on_terminal("verify", str(layout), width=60, env=setting)
    assert screen.escapes == []
    assert "torchkiln: verified" in screen.raw


def test_what_diff_reads_is_reported(layout: Path) -> None:
    """A shared layer is read once."""
    found, seen = open_layout(layout), Recorded()
    images.layered_images(images.InLayout(found.image("a")), images.InLayout(found.image("b")), seen)
    assert seen.totals["read"] > 0
    assert seen.done == seen.totals


def test_diff_prints_lines_in_a_log_and_a_bar_on_a_terminal(layout: Path) -> None:
    ran = run("diff", "a", "b", "--output", str(layout))
    assert 1 <= sum(line.startswith("torchkiln: read ") for line in ran.stderr.splitlines()) <= 20

    screen = on_terminal("diff", "a", "b", "--output", str(layout), width=60)
    assert "the images differ" in screen.raw
    assert "torchkiln: read " not in screen.raw


def test_equal_digests_are_not_read(layout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here an image is compared with itself."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a layer is read")

    monkeypatch.setattr(images, "verified_layer", never)
    arguments = ["a", "a", "--output", str(layout), "--exit-code"]
    done = CliRunner().invoke(diff, [*arguments, "--json"], catch_exceptions=False)
    text = CliRunner().invoke(diff, arguments, catch_exceptions=False)

    value: Any = json.loads(done.stdout)
    assert (done.exit_code, text.exit_code, value["same"]) == (0, 0, True)
    assert "the images are the same" in text.output
    other = CliRunner().invoke(diff, ["a", "b", "--output", str(layout)])
    assert isinstance(other.exception, AssertionError)


def test_an_image_is_unpacked_with_lines_in_a_log_and_a_bar_on_a_terminal(
    layout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`run` prints them when it unpacks an image; a second start prints nothing."""
    image, store = open_layout(layout).image("a"), Store(tmp_path / "cache")
    unpacked(image, store, _RunOutput())
    assert re.fullmatch(r"run: unpacking a\ntorchkiln: unpacked (10\.0 MB) of \1\n", capsys.readouterr().err)
    unpacked(image, store, _RunOutput())
    assert capsys.readouterr().err == ""

    program = "import sys; from tests.unit.test_progress import unpack_again; unpack_again(sys.argv[1])"
    screen = on_terminal(program, str(layout), width=60, module=False)
    assert (screen.code, "unpacked" in screen.raw) == (0, False)
    assert "10.0/10.0 MB" in screen.raw


def unpack_again(layout: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        unpacked(open_layout(Path(layout)).image("a"), Store(Path(folder)), _RunOutput())


def test_a_terminal_without_rich_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle has no rich."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "rich", None)
    with console.progress(quiet=False) as observer:
        assert isinstance(observer, LogLines)


def test_packages_of_a_base_are_counted() -> None:
    """The progress is the number of configured packages, out of all packages that apt has announced."""
    seen = Recorded()
    mmdebstrap._listen(OUTPUT.splitlines(), deque(maxlen=9), Reporting(observer=seen))

    assert (seen.totals, seen.done) == ({"packages": 50}, {"packages": 50})


def test_a_base_build_prints_a_few_lines() -> None:
    lines: list[str] = []
    report = Reporting(say=lines.append, observer=LogLines(lines.append))
    mmdebstrap._listen(OUTPUT.splitlines(), deque(maxlen=9), report)

    assert lines[0] == "installing essential packages..."
    assert lines[-1] == "packages configured: 50 of 50"
    assert "packages configured: 20 of 20" in lines
    assert len(lines) <= 2 * 10 + 1


def test_a_base_build_draws_a_bar_on_a_terminal() -> None:
    """No number is cut off at 60 columns, even if a second bar shows bytes."""
    program = """
import sys, time
from collections import deque
from torchkiln.base import mmdebstrap
from torchkiln.cli.shared.console import progress
from torchkiln.model.progress import Reporting
with progress(quiet=False) as seen:
    seen.begin("download", "nvidia_cublas_cu12-12.6.4.1-py3-none-manylinux2014_x86_64.whl", 393_100_000)
    seen.advance("download", "nvidia_cublas_cu12-12.6.4.1-py3-none-manylinux2014_x86_64.whl", 123_456_789)
    mmdebstrap._listen(sys.argv[1].splitlines(), deque(maxlen=9), Reporting(observer=seen))
"""
    screen = on_terminal(program, OUTPUT, width=60, module=False)
    assert screen.code == 0
    assert "50/50" in screen.raw
    assert "123.5/393.1 MB" in screen.raw


def test_a_large_bundle_is_verified_with_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A large bundle prints progress lines before the bundle's Python starts; a small bundle prints none."""
    (tmp_path / "file").write_bytes(b"x" * 3_000_000)
    monkeypatch.setattr(bundle_run, "HERE", str(tmp_path))
    progress = bundle_run.Progress(["file", "missing"])
    assert bundle_run.sha256("file", progress.advance) is not None
    assert capsys.readouterr().err == ""

    monkeypatch.setattr(bundle_run, "LARGE", 0)
    progress = bundle_run.Progress(["file"])
    bundle_run.sha256("file", progress.advance)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "smoke: verified 0.0 of 0.0 GB of the bundle"
    assert 1 <= len(lines) <= 10


def test_the_total_of_a_build_includes_later_steps() -> None:
    """They are pushing, loading and archiving. A step that takes no time is not listed."""
    built: Any = BuildResult(
        image=cast(Any, None), plan=cast(Any, None), seconds=(("write", 1.0), ("total", 2.0)), reused=()
    )
    longer, result = _timed("load", built, lambda: time.sleep(2 * _SHORT) or "loaded")
    stages = dict(longer.seconds)
    assert (result, list(stages)) == ("loaded", ["write", "load", "total"])
    assert stages["total"] == 2.0 + stages["load"]
    assert list(dict(_timed("load", built, lambda: None)[0].seconds)) == ["write", "total"]
