"""Wheels that are not as they must be: refused by name and reason, or taken as real pip takes them."""

import io
import json
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile import KINDS, REFUSED, SPEC, TAKEN, Kind, making, table
from tests.layers import add, layer_of, sha256
from tests.realpip import RealPip, agree, pip_folder
from tests.unpublished import locked_wheel
from tests.wheels import File, write_wheel
from torchkiln.build import worker
from torchkiln.build.worker import Task, WheelInput, make_layer
from torchkiln.errors import BadWheel
from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedWheel
from torchkiln.oci.layer import LayerWriter
from torchkiln.util.places import ROOT
from torchkiln.wheel.source import WheelFile


@pytest.fixture
def honest(tmp_path: Path) -> Path:
    return write_wheel(SPEC, tmp_path / "honest")


def made(kind: str, honest: Path) -> Path:
    return KINDS[kind].write(honest, honest.parent.parent / "bad")


def test_the_honest_wheel_is_taken(honest: Path) -> None:
    """What they are all made from."""
    assert layer_of([honest])[1].unpacked > 0


def same(lines: list[str]) -> list[str]:
    return lines


TWINS = {
    "with_file": making.with_file(File(path="bad/more", data=b"x")),
    "with_spec": making.with_spec(name="bad"),
    "named": making.named("bad/plain.txt").make,
    "raw_named": making.raw_named(b"bad/plain.txt").make,
    "field": making.field(flags=0x800),
    "told": making.told(disk=0),
    "local": making.local(version=20),
    "mode": making.mode(0o100755).make,
    "whole": making.whole(),
    "whole, zip64": making.whole(end64={}),
    "entries": making.entries(lambda raws: raws),
    "info": making.info("LICENSE", b"x"),
    "metadata": making.metadata("METADATA", b"Name: bad", b"Name: bad"),
    "record": making.record(same),
    "record_line": making.record_line(str),
    "points": making.points("run = bad:main").make,
    "cut": making.cut(len).make,
    "stream": making.stream(bytes),
    "another file name": KINDS["file name: Windows"].make,
}


@pytest.mark.parametrize("way", TWINS)
def test_each_way_of_making_is_harmless_by_itself(way: str, honest: Path) -> None:
    """Told to change nothing, or something legal, it makes a wheel that is taken: the defect is refused."""
    layer_of([Kind(TWINS[way]).write(honest, honest.parent.parent / "twin")])


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind: str, honest: Path) -> None:
    """Each by the wheel's name and a reason of its own."""
    bad = made(kind, honest)
    with pytest.raises(BadWheel) as caught:
        layer_of([bad])

    assert caught.value.wheel == bad.name
    assert caught.value.exit_code == 6
    assert caught.value.message.startswith(f"{bad.name}: ")
    caught.match(KINDS[kind].reason)


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_with_its_tail_told_beforehand(kind: str, honest: Path) -> None:
    """Read as it arrives: the same answer."""
    bad = made(kind, honest)
    with pytest.raises(BadWheel, match=KINDS[kind].reason):
        layer_of([bad], tail=max(1, min(900, bad.stat().st_size)))


@pytest.mark.parametrize("kind", TAKEN)
def test_taken(kind: str, honest: Path) -> None:
    """Odd, but of one meaning. That pip installs the same is seen in test_hostile_wheels_against_pip."""
    assert layer_of([made(kind, honest)])[1].unpacked > 0


# The store's own business: who is at work, and byte-code by the wheel's hash, which is that of its sources.
KEPT = ("cache/locks/", "cache/bytecode/")


def tree(root: Path) -> dict[str, bytes]:
    """Every file below *root* but those that may be KEPT."""
    found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not name.startswith(KEPT)}


@pytest.mark.parametrize("kind", REFUSED)
def test_nothing_is_written_but_the_layer_begun(
    kind: str, honest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker writes to the place it was told, and nowhere else: whoever told it deletes that."""
    monkeypatch.setattr(worker, "_cancelled", multiprocessing.Event(), raising=False)
    monkeypatch.setattr(worker, "_progress", [0], raising=False)
    bad, root = made(kind, honest), honest.parent.parent
    (root / "cache" / "tmp").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "etc" / "passwd").write_bytes(b"sentinel")
    before = tree(root)
    fields = {"name": "bad", "version": "1.0", "filename": bad.name, "index": Source.DEFAULT}
    wheel = LockedWheel(sha256=sha256(bad), size=bad.stat().st_size, **fields)  # type: ignore[arg-type]
    out = root / "out"
    job = Task(
        slot=0,
        inputs=(WheelInput(wheel=wheel, path=bad),),
        cache=root / "cache",
        python="3.11.2",
        interpreter=(sys.executable,),
        out=out,
    )
    with pytest.raises(BadWheel):
        make_layer(job)
    out.unlink(missing_ok=True)
    assert tree(root) == before


def test_another_wheel_than_the_locked_one(honest: Path) -> None:
    """Sound in itself, but not what was locked: both hashes are told."""
    layer = LayerWriter(io.BytesIO(), mtime=0)
    with pytest.raises(
        BadWheel,
        match=rf"^{honest.name}: hash mismatch: the lock has sha256:0{{64}},"
        rf" the downloaded file has sha256:{sha256(honest)}$",
    ):
        add(honest, layer, locked="0" * 64)
    assert locked_wheel(honest).sha256 == sha256(honest)


def test_a_tail_that_is_not_this_file_s(honest: Path) -> None:
    """A server that answers two requests from two files is found out, even if the directories agree."""
    data = honest.read_bytes()
    with WheelFile(honest, len(data), tail=data[-500:-1] + b"x") as file:
        assert file.sha256() == ""
    with WheelFile(honest, len(data), tail=data[-500:]) as file:
        assert file.sha256() == sha256(honest)


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
for told in sys.stdin:
    path, locked = json.loads(told)
    reason = ""
    try:
        with open("/dev/null", "wb") as out:
            add(Path(path), LayerWriter(out, mtime=0), locked=locked)
    except BadWheel as error:
        reason = error.reason
    print(json.dumps((reason, peak())))
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    if soft == resource.RLIM_INFINITY:  # after the honest one: what follows may have 128 MiB more
        resource.setrlimit(resource.RLIMIT_AS, (size() + (128 << 20),) * 2)
"""


def test_all_of_them_in_little_memory(honest: Path, tmp_path: Path) -> None:
    """One process, one after the other, 128 MiB of addresses: none kills it; its peak hardly grows."""
    wheels = [honest]
    for number, kind in enumerate(KINDS):
        bad = KINDS[kind].write(honest, tmp_path / str(number))
        wheels.append(bad)
    told = "".join(json.dumps((str(wheel), sha256(wheel))) + "\n" for wheel in wheels)
    argv = [sys.executable, "-c", MEASURE]
    done = subprocess.run(argv, input=told, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, f"after {len(done.stdout.splitlines())} wheels: {done.stderr[-500:]}"
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    peaks = dict(zip(["honest", *KINDS], (peak for _, peak in answers), strict=True))
    assert [bool(reason) for reason, _ in answers[1:]] == [bool(kind.reason) for kind in KINDS.values()]
    grown = {kind: peak - peaks["honest"] for kind, peak in peaks.items()}
    assert max(grown.values()) < 64 * 1024, f"KiB: {grown}"


@pytest.fixture(scope="module")
def pip(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPip]:
    running = RealPip(pip_folder(tmp_path_factory.mktemp("pip")))
    yield running
    running.close()


@pytest.mark.network
@pytest.mark.parametrize("kind", TAKEN)
def test_what_is_taken_is_what_pip_installs(kind: str, pip: RealPip, tmp_path: Path) -> None:
    """Every path, type, mode and byte."""
    honest = write_wheel(SPEC, tmp_path / "honest")
    agree(TAKEN[kind].write(honest, tmp_path / "wheels"), pip, tmp_path / "root")


def test_the_page_tells_what_is_told() -> None:
    """`make golden` writes it anew; there pip is asked again too."""
    text = table.PAGE.read_text()
    pips = {name: theirs for name, (_, theirs) in table.rows(text).items()}
    ours = table.messages()

    assert [name for name in KINDS if table._cell(name) not in pips] == []
    assert text == table.page(ours, {name: pips[table._cell(name)] for name in KINDS})
