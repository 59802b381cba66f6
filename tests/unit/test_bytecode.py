"""Sources are compiled to a pack of .pyc files, byte for byte as `compileall` does."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchkiln.engine.cache_keys import layer_key
from torchkiln.errors import BuildFailed
from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedWheel
from torchkiln.model.recipe import ImagePython
from torchkiln.wheel.bytecode import Code, Compiler, cached_name, read_pack, write_pack

SOURCES = {
    "/a/__init__.py": b"import sys\n__all__ = ['main', 'x']\nx = 'x'\n",
    "/a/main.py": b"def main(a, b='x', *, c=(1, 2, 'x')):\n"
    b"    return [a in {'p', 'q', 'r', b}, b in {'p', 'q', 'r'}, c, {'x', 'y'}, 1e300, -0.0, 2**99]\n",
    "/a/cls.py": b"class A:\n    '''Doc.'''\n    x: int = 1\n    async def f(self):\n        return self.x\n",
    "/a/latin.py": b"# -*- coding: latin-1 -*-\nname = '\xe9'\n",
    "/a/bom.py": b"\xef\xbb\xbfname = 1\n",
    "/a/crlf.py": b"x = 1\r\ny = 2\r\n",
    "/a/empty.py": b"",
    "/a/escape.py": b"x = '\\d'\n",
    "/a/future.py": b"from __future__ import annotations\ndef f(x: no_such_name) -> 3: ...\n",
    "/a/module/same.py": b"def same(): return 'same'\n",
    "/a/module/same2.py": b"def same(): return 'same'\n",
    "/a/ü.py": "ü = 'ü'\n".encode(),
}
BROKEN = {
    "/b/syntax.py": b"def f(:\n",
    "/b/nul.py": b"x = 1\0\n",
    "/b/coding.py": b"# -*- coding: no-such -*-\n",
    "/b/bytes.py": b"x = '\xff'\n",
    "/b/deep.py": b"x = " + b"(" * 5000 + b")" * 5000 + b"\n",
    "/b/digits.py": b"x = " + b"1" * 5000 + b"\n",
}


def pack_of(sources: dict[str, bytes], place: Path, python: str = sys.executable) -> list[tuple[str, bytes]]:
    """The content of the pack that the worker writes for *sources*."""
    compiler = Compiler([python], place)
    for path, source in sources.items():
        compiler.add(path, source)
    compiler.finish()
    pack = place.with_suffix(".kept")
    write_pack(place, pack, compiler.requested)
    with pack.open("rb") as file:
        return [(code.source, code.content()) for code in read_pack(file)]


def test_sources_are_compiled_in_order(tmp_path: Path) -> None:
    """Sources that do not compile are omitted, and those after them are not lost."""
    mixed = {**dict(list(SOURCES.items())[:3]), **BROKEN, **dict(list(SOURCES.items())[3:])}
    assert [path for path, _ in pack_of(mixed, tmp_path / "pack")] == list(SOURCES)


def test_a_pack_of_no_sources(tmp_path: Path) -> None:
    assert pack_of({}, tmp_path / "pack") == []


def compileall(sources: dict[str, bytes], root: Path) -> dict[str, bytes]:
    """Compile the whole folder at once, as the Dockerfile does."""
    for path, source in sources.items():
        place = root / path[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(source)
    argv = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*argv, str(root)], capture_output=True, check=False)
    return {
        path: made.read_bytes()
        for path in sources
        if (made := root / cached_name(path[1:], f"{sys.version_info[0]}.{sys.version_info[1]}")).exists()
    }


def test_the_same_bytes_as_compileall(tmp_path: Path) -> None:
    """The docker engine compiles the whole environment at once, the embedded engine wheel by wheel."""
    root = tmp_path / "root"
    theirs = compileall({**SOURCES, **BROKEN}, root)
    by_path = {f"{root}{path}": source for path, source in {**BROKEN, **SOURCES}.items()}
    ours = {path.removeprefix(str(root)): code for path, code in pack_of(by_path, tmp_path / "pack")}

    assert sorted(ours) == sorted(theirs) == sorted(SOURCES)
    assert [path for path in ours if ours[path] != theirs[path]] == []


def test_the_same_bytes_as_compileall_for_the_standard_library(tmp_path: Path) -> None:
    """The sources are dozens of real modules, in a different order than compileall's."""
    library = Path(json.__file__).parent.parent
    names = ("json", "email", "xml", "http")
    files = [file for name in names for file in (library / name).rglob("*.py")]
    sources = {
        f"/{file.relative_to(library)}": file.read_bytes() for file in (*files, *library.glob("[a-b]*.py"))
    }
    root = tmp_path / "root"
    theirs = compileall(sources, root)
    by_path = {f"{root}{path}": source for path, source in sorted(sources.items(), reverse=True)}
    ours = {path.removeprefix(str(root)): code for path, code in pack_of(by_path, tmp_path / "pack")}

    assert len(ours) > 50
    assert sorted(ours) == sorted(theirs)
    assert [path for path in ours if ours[path] != theirs[path]] == []


@given(cut=st.integers(0, 10_000))
def test_a_cut_pack_is_refused(complete_pack: bytes, cut: int) -> None:
    with pytest.raises(ValueError):
        list(read_pack(io.BytesIO(complete_pack[: cut % len(complete_pack)])))


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_changed_pack_is_refused(complete_pack: bytes, at: int, bit: int) -> None:
    """Any single changed bit is detected."""
    changed = bytearray(complete_pack)
    changed[at % len(changed)] ^= 1 << bit
    with pytest.raises(ValueError):
        list(read_pack(io.BytesIO(changed)))


def test_a_pack_with_more_behind_it_is_refused(complete_pack: bytes) -> None:
    """Two packs, one after the other, are not a pack."""
    with pytest.raises(ValueError):
        list(read_pack(io.BytesIO(complete_pack + b"x")))


def test_the_workers_output_file_is_not_a_pack(tmp_path: Path) -> None:
    """A pack is compressed. The worker's output is not, and packs of older releases were not."""
    pack_of(SOURCES, tmp_path / "pack")
    with pytest.raises(ValueError, match="not a pack"):
        list(read_pack(io.BytesIO((tmp_path / "pack").read_bytes())))


def test_a_truncated_file_of_the_worker_is_not_stored(tmp_path: Path) -> None:
    """The worker's output is checked while it is compressed into a pack."""
    pack_of(SOURCES, tmp_path / "pack")
    made = tmp_path / "pack"
    made.write_bytes(made.read_bytes()[:-40])
    with pytest.raises(ValueError):
        write_pack(made, tmp_path / "kept", [(path, len(source)) for path, source in SOURCES.items()])


def test_code_that_inflates_to_other_bytes() -> None:
    """Bytecode is checked by its CRC when it is decompressed for a layer's tar."""
    code = replace(Code.of("/a.py", b"x" * 100), crc=1)
    with pytest.raises(ValueError, match=r"/a\.py is damaged"):
        code.content()


@pytest.fixture(scope="module")
def complete_pack(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    place = tmp_path_factory.mktemp("pack") / "pack"
    pack_of(dict(list(SOURCES.items())[:2]), place)
    return place.with_suffix(".kept").read_bytes()


def test_a_worker_that_dies_is_an_error_with_its_last_output(tmp_path: Path) -> None:
    """Even if it dies before it has received all sources."""
    compiler = Compiler([sys.executable, "-c", "import sys; sys.exit('no such library')"], tmp_path / "pack")

    def work() -> None:
        for number in range(1000):
            compiler.add(f"/{number}.py", b"x = 1\n" * 1000)
        compiler.finish()

    with pytest.raises(BuildFailed, match="no such library"):
        work()
    compiler.kill()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_is_reported_with_a_hint() -> None:
    """The message has one line, without the worker's traceback."""
    compiler = Compiler([sys.executable], Path("/dev/full"))
    compiler.add("/a.py", b"x = 1\n")
    with pytest.raises(BuildFailed) as error:
        compiler.finish()
    assert "No space left on device" in error.value.message
    assert "\n" not in error.value.message
    assert "free disk space" in error.value.hint


def test_a_worker_can_be_stopped(tmp_path: Path) -> None:
    """It is stopped while it works. Stopping it twice is no error."""
    compiler = Compiler([sys.executable], tmp_path / "pack")
    compiler.add("/a.py", b"x = 1\n")
    compiler.kill()
    compiler.kill()
    assert compiler._process.returncode


def test_the_key_of_a_layer_contains_all_its_inputs() -> None:
    """The inputs are the wheels' hashes in their order and the exact Python; names and sizes are not."""

    def wheel(sha256: str, name: str = "a") -> LockedWheel:
        return LockedWheel(
            name=name, version="1", filename=f"{name}.whl", sha256=sha256, size=1, index=Source.DEFAULT
        )

    one, two = wheel("1" * 64), wheel("2" * 64)
    keys = {
        layer_key([one], ImagePython.of_base("3.11.2")),
        layer_key([one], ImagePython.of_base("3.11.7")),
        layer_key([two], ImagePython.of_base("3.11.2")),
        layer_key([one, two], ImagePython.of_base("3.11.2")),
        layer_key([two, one], ImagePython.of_base("3.11.2")),
        layer_key([one], ImagePython(version="3.11.2", folder="3.10")),
    }
    assert len(keys) == 6
    assert layer_key([wheel("1" * 64, "b")], ImagePython.of_base("3.11.2")) == layer_key(
        [one], ImagePython.of_base("3.11.2")
    )
