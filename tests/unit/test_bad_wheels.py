"""Wheels that are not as they must be are refused, by name and reason; nothing is kept of them."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bad_wheels import KINDS, SPEC
from tests.layers import add, layer_of, sha256
from tests.wheels import write_wheel
from torchkiln.errors import BadWheel
from torchkiln.oci.layer import LayerWriter
from torchkiln.places import ROOT
from torchkiln.wheel import directory
from torchkiln.wheel.source import WheelFile


@pytest.fixture
def honest(tmp_path: Path) -> Path:
    return write_wheel(SPEC, tmp_path / "honest")


def made(kind: str, honest: Path) -> Path:
    place = honest.parent.parent / "bad" / honest.name
    place.parent.mkdir()
    place.write_bytes(KINDS[kind].make(honest))
    return place


def test_the_honest_wheel_is_taken(honest: Path) -> None:
    """What they are all made from."""
    assert layer_of([honest])[1].unpacked > 0


@pytest.mark.parametrize("kind", KINDS)
def test_refused(kind: str, honest: Path) -> None:
    """Each by the wheel's name and a reason of its own."""
    with pytest.raises(BadWheel) as caught:
        layer_of([made(kind, honest)])

    assert caught.value.wheel == honest.name
    assert caught.value.message.startswith(f"{honest.name}: ")
    caught.match(KINDS[kind].reason)


@pytest.mark.parametrize("kind", KINDS)
def test_refused_with_its_tail_told_beforehand(kind: str, honest: Path) -> None:
    """Read as it arrives: the same answer."""
    bad = made(kind, honest)
    with pytest.raises(BadWheel, match=KINDS[kind].reason):
        layer_of([bad], tail=max(1, min(900, bad.stat().st_size)))


def test_another_wheel_than_the_locked_one(honest: Path) -> None:
    """Sound in itself, but not what was locked: both hashes are told."""
    layer = LayerWriter(io.BytesIO(), mtime=0)
    with pytest.raises(BadWheel, match=rf"^{honest.name}: sha256 is {sha256(honest)}, locked was 0{{64}}$"):
        add(honest, layer, locked="0" * 64)


def test_a_tail_that_is_not_this_file_s(honest: Path) -> None:
    """A server that answers two requests from two files is found out, even if the directories agree."""
    data = honest.read_bytes()
    with WheelFile(honest, len(data), tail=data[-500:-1] + b"x") as file:
        assert file.sha256() == ""
    with WheelFile(honest, len(data), tail=data[-500:]) as file:
        assert file.sha256() == sha256(honest)


def test_too_many_entries(honest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number is bounded, for each costs memory."""
    monkeypatch.setattr(directory, "MOST_ENTRIES", 5)
    with pytest.raises(BadWheel, match=r"6 entries in \d+ bytes; 5 at most"):
        layer_of([honest])


MEASURE = """
import sys
from pathlib import Path
from tests.layers import add, sha256
from torchkiln.errors import BadWheel
from torchkiln.oci.layer import LayerWriter
try:
    with open("/dev/null", "wb") as out:
        add(Path(sys.argv[1]), LayerWriter(out, mtime=0))
except BadWheel as error:
    print(error.reason)
(peak,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(peak)
"""


@pytest.mark.parametrize("kind", ["bomb", "huge metadata"])
def test_refused_in_little_memory(kind: str, honest: Path) -> None:
    """64 MiB that come out of 64 kB are never there at once."""
    peaks = []
    for wheel in (honest, made(kind, honest)):
        argv = [sys.executable, "-c", MEASURE, str(wheel)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=ROOT)
        peaks.append(int(done.stdout.split()[-1]))
    assert peaks[1] - peaks[0] < 16 * 1024, f"KiB: {peaks}"
