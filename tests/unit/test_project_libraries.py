"""`project lock` refuses a package whose libraries need something that the image lacks, by default."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.needs import needs_gcc
from tests.servers.index_server import IndexServer
from tests.shared_libraries import Lib
from tests.symbol_scene import CP311, CUDART, TORCH_CPU, compiled, of_cuda
from tests.unit.test_project_lock import OLD, TAG, Workspace
from torchkiln.locks.lock import load_locked
from torchkiln.projects import same_files
from torchkiln.projects.file import FILE, load_project
from torchkiln.projects.symbols.fit import Library
from torchkiln.projects.symbols.os_libraries import lacking, release_for
from torchkiln.store.store import Store

pytestmark = needs_gcc

EMPTY = "_ZN2at4_ops5empty4callEN3c108ArrayRefIlEE"
SOUND = Lib(name="_C.so", defines=("PyInit__C",), uses=(EMPTY,), needs=(TORCH_CPU,))
NEWER = Lib(name="_C.so", defines=("PyInit__C",), uses=(f"{EMPTY}b",), needs=(TORCH_CPU,))
CUDA11 = Lib(name="_C.so", defines=("PyInit__C",), needs=(of_cuda("libcudart.so.11.0", "cudaMalloc"),))
LACKS = (
    f"ext 1.0 is not built for {TAG}:\n"
    f"  ext/_C.so needs at::_ops::empty::call ({EMPTY}b), which torch 2.7.1 does not have: it has this"
    " function with other parameters, so this was built for another torch\n"
)


class Libraries(Workspace):
    """A workspace where the wheels of torch and the CUDA runtime contain libraries, and are in the cache."""

    def __init__(self, server: IndexServer, root: Path) -> None:
        super().__init__(server, root)
        for name, version, path, lib in (
            ("torch", "2.7.1", "torch/lib/libtorch_cpu.so", TORCH_CPU),
            ("nvidia-cuda-runtime-cu12", "12.6.77", "nvidia/cuda_runtime/lib/libcudart.so.12", CUDART),
        ):
            requires = ("nvidia-cuda-runtime-cu12==12.6.77",) if name == "torch" else ()
            self.wheel(name, version, {path: lib}, *requires, date=OLD)
        for name, version in (("torchvision", "0.22.1"), ("torchaudio", "2.7.1"), ("numpy", "2.0")):
            server.add("default", name, version, date=OLD)
        server.add("default", "notebook", "1.0", date=OLD)
        assert self.run("lock")[:2] == (0, f"{TAG}\n")
        self.store = Store(root / "cache")
        self.remember("torch", "nvidia-cuda-runtime-cu12")

    def wheel(self, name: str, version: str, libs: dict[str, Lib], *requires: str, date: str = OLD) -> None:
        more = {path: compiled(lib) for path, lib in libs.items()}
        self.server.add("default", name, version, date=date, tag=CP311, files=more, requires=requires)

    def remember(self, *names: str) -> None:
        """Put these wheels of the image into the cache, as a build does."""
        for wheel in load_locked(self.images, TAG).wheels:
            if wheel.name in names:
                self.store.wheel(wheel).parent.mkdir(parents=True)
                self.store.wheel(wheel).write_bytes(self.server.files["default", wheel.name, wheel.filename])

    def ext(self, lib: Lib, version: str = "1.0") -> None:
        """Add a package `ext` with one library to the index, and require it in the project."""
        self.wheel("ext", version, {"ext/_C.so": lib})
        (self.folder / "requirements.txt").write_text("ext\n")


@pytest.fixture
def libraries(tmp_path: Path) -> Iterator[Libraries]:
    with IndexServer() as server:
        yield Libraries(server, tmp_path)


def test_a_package_for_another_torch_is_refused(libraries: Libraries) -> None:
    libraries.ext(NEWER)
    code, out, messages = libraries.lock()

    assert (code, out) == (4, "")
    assert messages.endswith(
        f"{LACKS}use another release of ext; if the package works without these libraries: project lock DIR"
        " --allow-missing ext"
    )
    assert not (libraries.folder / FILE).exists()


def test_a_package_for_this_torch_is_locked_and_its_wheel_downloaded_once(libraries: Libraries) -> None:
    libraries.ext(SOUND)
    code, _, messages = libraries.lock("--json")
    assert code == 0, messages
    assert "downloads 1 wheel (" in messages
    lock = load_project(libraries.folder)
    assert lock is not None
    assert [libraries.store.has_wheel(wheel) for wheel in lock.wheels] == [True]

    [path] = {sent.path for sent in libraries.server.sent if "/ext-" in sent.path}
    before = len(libraries.server.sent)
    assert libraries.lock()[0] == 0
    # To learn the size, one byte of the file is requested.
    again = [sent.count for sent in libraries.server.sent[before:] if sent.path == path]
    assert all(count <= 1 for count in again)


def test_what_is_allowed_is_recorded_until_it_is_replaced(libraries: Libraries) -> None:
    name = "libcudart.so.11.0"
    libraries.ext(CUDA11)
    assert libraries.lock()[0] == 4
    code, out, messages = libraries.lock("--allow-missing", name, "--json")
    assert code == 0, messages
    assert json.loads(out)["may_lack"] == [name]
    lock = load_project(libraries.folder)
    assert lock is not None
    assert lock.may_lack == (name,)
    assert libraries.lock()[0] == 0  # the lock has recorded --allow-missing
    assert load_project(libraries.folder) == lock

    code, _, messages = libraries.lock("--allow-missing", "")
    assert code == 4
    assert "needs libcudart.so.11.0, the image has libcudart.so.12: built for CUDA 11" in messages


def test_a_package_that_left_the_project_is_no_longer_allowed(libraries: Libraries) -> None:
    """Here, --allow-missing had named the package, and not its library."""
    libraries.ext(CUDA11)
    assert libraries.lock("--allow-missing", "ext")[0] == 0
    libraries.server.add("default", "plain", "1.0", date=OLD)
    (libraries.folder / "requirements.txt").write_text("plain\n")
    assert libraries.lock()[0] == 0
    lock = load_project(libraries.folder)
    assert lock is not None
    assert lock.may_lack == ()


def test_an_unknown_name_is_refused(libraries: Libraries) -> None:
    libraries.ext(SOUND)
    code, _, messages = libraries.lock("--allow-missing", "other")

    assert code == 2
    assert "--allow-missing other: neither a library nor a package that the project adds" in messages


def test_what_cannot_be_read_yet_is_left_to_the_build(libraries: Libraries) -> None:
    """torch's wheel is not in the cache, or the package's wheel cannot be downloaded now."""
    libraries.ext(NEWER)
    torch = next(wheel for wheel in load_locked(libraries.images, TAG).wheels if wheel.name == "torch")
    libraries.store.wheel(torch).unlink()
    code, _, messages = libraries.lock("--json")
    assert code == 0, messages
    assert "the build will check whether the libraries of these packages fit" in messages
    assert "not in the cache now: torch 2.7.1" in " ".join(messages.split())


XCB, TBB = Lib(name="libxcb.so.1"), Lib(name="libtbb.so.12")
QT = Lib(name="libqt.so", needs=(XCB,))
MODULE = Lib(name="_C.so", defines=("PyInit__C",))
ON_QT = replace(MODULE, needs=(QT,))
PLUGIN = Lib(name="libplugin.so", needs=(Lib(name="libSM.so.6"),))


def test_a_package_whose_modules_lack_a_library_of_the_os_is_refused(libraries: Libraries) -> None:
    """The line to add has the OS packages of everything in the package."""
    paths = {"cv2/_C.so": ON_QT, "x.libs/libqt.so": QT, "cv2/plugins/libplugin.so": PLUGIN}
    libraries.wheel("opencv-python", "1.0", paths)
    code, messages = libraries.refused("opencv-python\n")
    assert code == 4
    assert (
        "opencv-python 1.0: cv2/_C.so needs libxcb.so.1 (libxcb1), which the image does not have; set"
        ' in torchkiln.toml: apt = ["libsm6", "libxcb1"] or require opencv-python-headless instead of'
        " opencv-python"
    ) in messages
    for name in ("libxcb.so.1", "opencv-python"):
        assert libraries.lock("--allow-missing", name)[0] == 0
    assert libraries.lock("--allow-missing", "libSM.so.6")[0] == 4


def test_a_library_of_the_os_that_only_a_part_needs_is_reported(libraries: Libraries) -> None:
    libraries.wheel("part", "1.0", {"part/a/_C.so": MODULE, "part/tbb/_C.so": replace(MODULE, needs=(TBB,))})
    libraries.locked("part\n")
    assert (
        "warning: part 1.0: part/tbb/_C.so needs libtbb.so.12 (libtbb12), which the image does not have; this"
        ' affects 1 of its 2 modules; set in torchkiln.toml: apt = ["libtbb12"]\n'
    ) in libraries.messages
    libraries.locked("part\n", "--allow-missing", "libtbb.so.12")
    assert "libtbb" not in libraries.messages


def library_of(path: str, *needs: str, **more: tuple[str, ...]) -> Library:
    name = path.rpartition("/")[2]
    sets = {key: frozenset(value) for key, value in more.items()}
    return Library(
        package="x",
        path=path,
        soname=name,
        needed=needs,
        versions={},
        undefined=frozenset(),
        **({"defined": frozenset()} | sets),
    )


def test_what_an_image_lacks_is_known_by_its_os_packages() -> None:
    xcb = library_of("x/_C.so", "libxcb.so.1", defined=("PyInit__C",))
    ffmpeg = [library_of(f"x/libx{n}.so", f"libavutil.so.{n}") for n in (56, 57)]
    cases: list[tuple[list[Library], str, tuple[str, ...], tuple[str, ...]]] = [
        ([xcb], "debian12", (), ("libxcb.so.1",)),
        ([xcb], "debian12", ("libxcb1",), ()),
        ([xcb, library_of("x.libs/libxcb.so.1")], "debian12", (), ()),
        ([library_of("x/libx.so", "libunknown.so.7", "libcuda.so.1", "libc.so.6")], "debian12", (), ()),
        ([library_of("x/libx.so"), library_of("x/plugin.so", "libmpi.so.40")], "debian12", (), ()),
        (ffmpeg, "debian12", ("libavutil57",), ()),
        (ffmpeg, "debian13", ("libavutil59",), ("libavutil.so.56", "libavutil.so.57")),
        ([library_of("x/libx.so", "libgio-2.0.so.0")], "ubuntu24.04", ("libglib2.0-0t64",), ()),
        ([library_of("x/libx.so", "libgio-2.0.so.0")], "ubuntu22.04", ("libglib2.0-0",), ()),
    ]
    for found, os, packages, expected in cases:
        lacks = [one.libraries for one in lacking(found, os, packages, "3.11")]
        assert lacks == ([expected] if expected else []), (os, packages)


def test_a_build_for_another_cuda_is_reported_with_a_release_that_fits(libraries: Libraries) -> None:
    provider = Lib(name="libp.so", needs=(of_cuda("libcudart.so.13", "cudaMalloc"),))
    libraries.wheel(
        "onnxruntime-gpu", "1.31.1", {"onnxruntime/_C.so": MODULE, "onnxruntime/libp.so": provider}
    )
    libraries.locked("onnxruntime-gpu\n")
    assert (
        "warning: onnxruntime-gpu 1.31.1: onnxruntime/libp.so needs libcudart.so.13, the image has"
        " libcudart.so.12: built for CUDA 13; without it the package may run on the CPU only; require"
        " onnxruntime-gpu>=1.19,<1.27, which is built for CUDA 12; if it is not needed: project lock DIR"
        " --allow-missing onnxruntime-gpu\n"
    ) in libraries.messages
    libraries.locked("onnxruntime-gpu\n", "--allow-missing", "libcudart.so.13")
    assert "CUDA 13" not in libraries.messages
    assert [release_for(f"{name}13{x}", "12") for name, x in (("cupy-cuda", "x"), ("cuml-cu", ""))] == [
        "cupy-cuda12x",
        "cuml-cu12",
    ]
    assert release_for("plain", "12") == ""


# Files of two packages, and what the lock does: refuse, warn or nothing.
SHARED: dict[str, tuple[dict[str, bytes], dict[str, bytes], str]] = {
    "modules": ({"same/__init__.py": b"a"}, {"same/__init__.py": b"b", "same/b.py": b""}, "refuse"),
    "libraries": ({"same/x.so": b"a"}, {"same/x.so": b"b"}, "refuse"),
    "equal files": ({"same/__init__.py": b"a"}, {"same/__init__.py": b"a"}, ""),
    "texts": ({"LICENSE": b"a"}, {"LICENSE": b"b"}, "warn"),
    "tests": ({"tests/__init__.py": b"a"}, {"tests/__init__.py": b"b"}, "warn"),
    "other files": ({"same/a.py": b"a"}, {"same/b.py": b"b"}, ""),
}


@pytest.mark.parametrize("big", [True, False])
@pytest.mark.parametrize("kind", SHARED)
def test_two_packages_with_the_same_files(
    kind: str, big: bool, libraries: Libraries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small wheels share a layer, which has one file at each path."""
    one, other, expected = SHARED[kind]
    if big:
        monkeypatch.setattr(same_files, "BIG_WHEEL", 1)
    elif expected:
        expected = "refuse"
    for name, files in (("first", one), ("second", other)):
        libraries.server.add("default", name, "1.0", date=OLD, files=files)
    (libraries.folder / "requirements.txt").write_text("first\nsecond\n")
    code, _, messages = libraries.lock()
    path = next(iter(one))
    both = "first 1.0 (requirements.txt:1) and second 1.0 (requirements.txt:2)"
    shared = f"{both} have different files at the same paths: {path}\n"
    assert (code, shared in messages) == (4 if expected == "refuse" else 0, expected != "")
    assert (f"warning: {shared}" in messages) == (expected == "warn")
    libraries.locked("first\n")
