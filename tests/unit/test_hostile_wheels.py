"""Malformed and malicious wheels: refused with name and reason, or installed like by pip."""

import io
import json
import multiprocessing
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.hostile import KINDS, REFUSED, SPEC, TAKEN, table
from tests.layers import add, layer_of, sha256
from tests.programs import run_program
from tests.realpip import RealPip, agree
from tests.unit.test_recorded import task_of
from tests.unit.test_wheel_against_pip import pip
from tests.unpublished import locked_wheel
from tests.wheels import write_wheel
from torchkiln.engine import worker
from torchkiln.engine.worker import make_layer
from torchkiln.errors import BadWheel
from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedWheel
from torchkiln.oci.layer import LayerWriter
from torchkiln.util.places import ROOT
from torchkiln.wheel.source import WheelFile


@dataclass(frozen=True)
class Read:
    """A test wheel, and the error that refuses it, or None if it is accepted."""

    wheel: Path
    refusal: BadWheel | None


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wheel(SPEC, tmp_path_factory.mktemp("valid"))


@pytest.fixture(scope="module")
def read_kind(valid: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Read]:
    """A function that makes and reads the wheel of a kind, once for each kind; tests only read the wheel."""

    @cache
    def read(name: str) -> Read:
        wheel = KINDS[name].write(valid, tmp_path_factory.mktemp("kind"))
        try:
            layer_of([wheel])
        except BadWheel as error:
            return Read(wheel, error)
        return Read(wheel, None)

    return read


def test_the_valid_wheel_is_accepted(valid: Path) -> None:
    """All other test wheels are made from this wheel."""
    assert layer_of([valid])[1].unpacked > 0


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(
    kind: str, read_kind: Callable[[str], Read], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the wheel's name and the reason, also during a download and in a worker process."""
    found = read_kind(kind)
    assert found.refusal
    assert re.search(KINDS[kind].reason, found.refusal.reason)
    assert (found.refusal.wheel, found.refusal.exit_code) == (found.wheel.name, 6)
    assert found.refusal.message.startswith(f"{found.wheel.name}: ")
    with pytest.raises(BadWheel, match=KINDS[kind].reason):
        layer_of([found.wheel], tail=max(1, min(900, found.wheel.stat().st_size)))
    demand_only_the_partial_layer_is_written(found.wheel, tmp_path, monkeypatch)


# Folders of the cache that a worker may write to: locks, and bytecode named by the wheel's hash.
INTERNAL = ("cache/locks/", "cache/bytecode/")


def tree(root: Path) -> dict[str, bytes]:
    """Every file below *root*, except for files in INTERNAL."""
    found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not name.startswith(INTERNAL)}


def demand_only_the_partial_layer_is_written(bad: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a worker that reads *bad* writes only the partial layer, which its caller deletes."""
    monkeypatch.setattr(worker, "_cancelled", multiprocessing.Event(), raising=False)
    monkeypatch.setattr(worker, "_progress", [0], raising=False)
    (root / "cache" / "tmp").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "etc" / "passwd").write_bytes(b"sentinel")
    before = tree(root)
    fields = {"name": "bad", "version": "1.0", "filename": bad.name, "index": Source.DEFAULT}
    wheel = LockedWheel(sha256=sha256(bad), size=bad.stat().st_size, **fields)  # type: ignore[arg-type]
    out = root / "out"
    with pytest.raises(BadWheel):
        make_layer(task_of(bad, root, wheel))
    out.unlink(missing_ok=True)
    assert tree(root) == before


def test_another_wheel_than_the_locked_one(valid: Path) -> None:
    """The wheel is valid, but its hash is not the locked hash; the message has both."""
    layer = LayerWriter(io.BytesIO(), mtime=0)
    with pytest.raises(
        BadWheel,
        match=rf"^{valid.name}: hash mismatch: the lock has sha256:0{{64}},"
        rf" the downloaded file has sha256:{sha256(valid)}$",
    ):
        add(valid, layer, locked="0" * 64)
    assert locked_wheel(valid).sha256 == sha256(valid)


def test_a_tail_of_another_file(valid: Path) -> None:
    """A server may answer two requests from two files; this is detected even if their directories agree."""
    data = valid.read_bytes()
    with WheelFile(valid, len(data), tail=data[-500:-1] + b"x") as file:
        assert file.sha256() == ""
    with WheelFile(valid, len(data), tail=data[-500:]) as file:
        assert file.sha256() == sha256(valid)


MEASURE = """
import json, resource, signal, sys
from pathlib import Path
from tests.layers import add
from torchkiln.errors import BadWheel
from torchkiln.oci.layer import LayerWriter
resource.setrlimit(resource.RLIMIT_CPU, (120, 120))  # no measure: what hangs must end
def peak():
    (found,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(found)
def size():
    (found,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmSize"))
    return int(found) << 10
for line in sys.stdin:
    path, locked = json.loads(line)
    reason = ""
    try:
        with open("/dev/null", "wb") as out:
            add(Path(path), LayerWriter(out, mtime=0), locked=locked)
    except BadWheel as error:
        reason = error.reason
    print(json.dumps((reason, peak())))
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    if soft == resource.RLIM_INFINITY:  # after the valid one: what follows may have 128 MiB more
        resource.setrlimit(resource.RLIMIT_AS, (size() + (128 << 20),) * 2)
"""

__all__ = ["pip"]


def test_all_hostile_wheels_need_little_memory(valid: Path, read_kind: Callable[[str], Read]) -> None:
    """One process with 128 MiB of address space reads all of them; its peak memory hardly grows."""
    wheels = [valid, *(read_kind(kind).wheel for kind in KINDS)]
    lines_in = "".join(json.dumps((str(wheel), sha256(wheel))) + "\n" for wheel in wheels)
    argv = [sys.executable, "-c", MEASURE]
    done = run_program(argv, input=lines_in, cwd=ROOT)
    assert done.returncode == 0, f"after {len(done.stdout.splitlines())} wheels: {done.stderr[-500:]}"
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    peaks = dict(zip(["valid", *KINDS], (peak for _, peak in answers), strict=True))
    assert [bool(reason) for reason, _ in answers[1:]] == [bool(kind.reason) for kind in KINDS.values()]
    grown = {kind: peak - peaks["valid"] for kind, peak in peaks.items()}
    assert max(grown.values()) < 64 * 1024, f"KiB: {grown}"


@pytest.mark.network
@pytest.mark.parametrize("kind", TAKEN)
def test_accepted_wheels_install_as_by_pip(
    kind: str, read_kind: Callable[[str], Read], pip: RealPip, tmp_path: Path
) -> None:
    """These wheels are unusual but unambiguous; each path, type, mode and byte is the same as with pip."""
    agree(read_kind(kind).wheel, pip, tmp_path / "root")


def test_the_page_has_the_current_messages(read_kind: Callable[[str], Read]) -> None:
    """`make golden` updates the page, and runs pip for it again."""
    text = table.PAGE.read_text()
    pips = {name: of_pip for name, (_, of_pip) in table.rows(text).items()}
    ours = {
        name: refusal.reason if (refusal := read_kind(name).refusal) else table.ACCEPTED for name in KINDS
    }

    assert [name for name in KINDS if table._cell(name) not in pips] == []
    assert text == table.page(ours, {name: pips[table._cell(name)] for name in KINDS})
