"""A small parent image (torch, CUDA's libraries and a base, built with gcc), and wheels for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.planned import FACTS, locked
from tests.python_builds import standalone_lock
from tests.roots import entries_of, tar_of
from tests.shared_libraries import Lib, compiled
from tests.stored import put_tar
from tests.unpublished import locked_wheel
from tests.wheels import make_wheel
from torchkiln.model.lock import LockedBase, LockedStandalone, LockedWheel
from torchkiln.projects.symbols.fit import Fit
from torchkiln.projects.symbols.libraries import check_wheels
from torchkiln.store.store import Store

__all__ = ["compiled"]

PLATFORM = "manylinux_2_28_x86_64"
CP311 = f"cp311-cp311-{PLATFORM}"
STRING = "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
CHECK = "_ZN3c106detail14torchCheckFailEPKcS2_jRK"  # a function of libc10 that takes a std::string


def of_cuda(name: str, *symbols: str) -> Lib:
    """A library whose name is also the version of its symbols, as in NVIDIA's libraries."""
    return Lib(name=name, defines=symbols, versions={name: symbols})


LIBC = Lib(
    name="libc.so.6",
    defines=("malloc", "arc4random"),
    versions={"GLIBC_2.2.5": ("malloc",), "GLIBC_2.36": ("arc4random",)},
)
LIBSTDCPP = Lib(
    name="libstdc++.so.6",
    defines=("_ZSt4cout", "_ZSt4new1"),
    versions={"GLIBCXX_3.4": ("_ZSt4cout",), "GLIBCXX_3.4.30": ("_ZSt4new1",)},
)
CUDART = of_cuda("libcudart.so.12", "cudaMalloc", "cudaFree")
NVJITLINK = of_cuda("libnvJitLink.so.12", "__nvJitLinkCreate_12_6", "nvJitLinkVersion")
CUDNN = Lib(name="libcudnn.so.9", defines=("cudnnCreate",))
CUDNN_OPS = Lib(name="libcudnn_ops.so.9", defines=("cudnnAddTensor",))
NCCL = Lib(name="libnccl.so.2", defines=("ncclAllReduce",))
C10 = Lib(name="libc10.so", defines=(f"{CHECK}{STRING}", "_ZTIN3c105ErrorE", "_ZN3c104nameB5cxx11Ev"))
TORCH_CPU = Lib(
    name="libtorch_cpu.so",
    defines=("_ZN2at4_ops5empty4callEN3c108ArrayRefIlEE", "_ZN5torch8autograd4NodeD2Ev"),
    needs=(C10,),
)
TORCH_PYTHON = Lib(name="libtorch_python.so", defines=("THPVariable_Wrap",), needs=(TORCH_CPU,))
TORCH = Lib(name="libtorch.so")

BELOW: Mapping[tuple[str, str], Mapping[str, Lib]] = {
    ("torch", "2.7.1"): {f"torch/lib/{lib.name}": lib for lib in (C10, TORCH_CPU, TORCH_PYTHON, TORCH)},
    ("nvidia-cuda-runtime-cu12", "12.6.77"): {f"nvidia/cuda_runtime/lib/{CUDART.name}": CUDART},
    ("nvidia-nvjitlink-cu12", "12.6.85"): {f"nvidia/nvjitlink/lib/{NVJITLINK.name}": NVJITLINK},
    ("nvidia-cudnn-cu12", "9.5.1.17"): {f"nvidia/cudnn/lib/{lib.name}": lib for lib in (CUDNN, CUDNN_OPS)},
    ("nvidia-nccl-cu12", "2.26.2"): {f"nvidia/nccl/lib/{NCCL.name}": NCCL},
}


@dataclass(kw_only=True)
class Scene:
    """A cache with the wheels of the parent image and its base."""

    folder: Path
    store: Store
    fixed: tuple[LockedWheel, ...]
    base: LockedBase
    standalone: LockedStandalone | None = None

    def wheel(self, name: str, libraries: Mapping[str, Lib | bytes], tag: str = CP311) -> LockedWheel:
        """Put a wheel with *libraries*, by path, into the cache."""
        return stored(self.store, self.folder / name, name, "1.0", libraries, tag)

    def check(self, *wheels: LockedWheel) -> Fit:
        """The result of checking the symbols of *wheels*, which a project adds to the parent image."""
        cell = replace(locked(), wheels=self.fixed, base=self.base, standalone=self.standalone)
        return check_wheels(wheels, cell, self.store)

    def sentences(self, *wheels: LockedWheel) -> list[str]:
        """The faults that the check finds in *wheels*, as text; the check must be able to read all files."""
        found = self.check(*wheels)
        assert found.unread == ()
        return [f"{fault.path} {fault.sentence}" for fault in found.faults]


def stored(
    store: Store,
    folder: Path,
    name: str,
    version: str,
    libraries: Mapping[str, Lib | bytes],
    tag: str = CP311,
) -> LockedWheel:
    """Put a wheel with *libraries* into *store*."""
    files = {path: compiled(lib) if isinstance(lib, Lib) else lib for path, lib in libraries.items()}
    made = make_wheel(folder, name, version, files, tag=tag, purelib=False)
    wheel = locked_wheel(made)
    store.adopt(made, store.wheel(wheel))
    return wheel


def with_python(below: Scene) -> Scene:
    """*below* with a standalone Python 3.12.8, whose layer is not in the cache."""
    return replace(below, standalone=standalone_lock(FACTS).standalone)


def scene(folder: Path) -> Scene:
    """A parent image, in a new cache."""
    store = Store(folder / "cache")
    root = folder / "root"
    libraries = root / "usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    (libraries / "libc.so.6").write_bytes(compiled(LIBC))
    (libraries / "libstdc++.so.6.0.30").write_bytes(compiled(LIBSTDCPP))
    (libraries / "libm.so.6").write_text("no library")
    (libraries / "libstdc++.so.6").symlink_to("libstdc++.so.6.0.30")
    base = replace(locked().base, **asdict(put_tar(tar_of(entries_of(root)), store)))
    fixed = tuple(
        stored(store, folder / name, name, version, paths) for (name, version), paths in BELOW.items()
    )
    return Scene(folder=folder, store=store, fixed=fixed, base=base)
