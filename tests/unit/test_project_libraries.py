"""`project lock` refuses a package whose libraries need something that the image lacks, by default."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import needs_gcc
from tests.servers.index_server import IndexServer
from tests.shared_libraries import Lib
from tests.symbol_scene import CP311, CUDART, TORCH_CPU, compiled, of_cuda
from tests.unit.test_project_lock import OLD, TAG, Workspace
from torchkiln.locks.lock import load_locked
from torchkiln.projects.file import FILE, load_project
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
