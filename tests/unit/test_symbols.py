"""Which libraries of a project's packages do not fit the parent image, and why. All are compiled here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.needs import needs_gcc
from tests.shared_libraries import Lib
from tests.symbol_scene import (
    C10,
    CHECK,
    CUDART,
    CUDNN,
    LIBC,
    LIBSTDCPP,
    NCCL,
    NVJITLINK,
    STRING,
    TORCH_CPU,
    TORCH_PYTHON,
    Scene,
    compiled,
    of_cuda,
    scene,
    with_python,
)
from torchkiln.errors import BadWheel
from torchkiln.projects.symbols.fit import Fit

pytestmark = needs_gcc


@pytest.fixture(scope="module")
def below(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    return scene(tmp_path_factory.mktemp("below"))


def module(*uses: str, needs: tuple[Lib, ...] = (), **options: tuple[str, ...]) -> Lib:
    """A library that is an extension module `_C`."""
    return Lib(name="_C.so", defines=("PyInit__C",), uses=uses, needs=needs, **options)


OLD_CUDA = of_cuda("libcudart.so.11.0", "cudaMalloc")
EMPTY = "_ZN2at4_ops5empty4callEN3c108ArrayRefIlEE"
NEW_C10 = Lib(name="libc10.so", defines=("_ZN3c1011newer_thingEv",))
OLD_TORCH = Lib(name="libtorch_cuda_cu.so", defines=("_ZN2at3oldEv",))
NEW_LIBC = replace(LIBC, defines=("arc4random", "newer"), versions={"GLIBC_2.39": ("newer",)})
NEW_STDCPP = replace(LIBSTDCPP, defines=("_ZSt4new2",), versions={"GLIBCXX_3.4.32": ("_ZSt4new2",)})

# For each kind of mismatch: a package that has it, the message, and the same package without the mismatch.
PAIRS: Mapping[str, tuple[Lib, str, Lib]] = {
    "another CUDA major": (
        module("cudaMalloc", needs=(OLD_CUDA,)),
        "needs libcudart.so.11.0, the image has libcudart.so.12: built for CUDA 11",
        module("cudaMalloc", needs=(CUDART,)),
    ),
    "another cuDNN": (
        module("cudnnCreate", needs=(Lib(name="libcudnn.so.8", defines=("cudnnCreate",)),)),
        "needs libcudnn.so.8, the image has libcudnn.so.9",
        module("cudnnCreate", needs=(CUDNN,)),
    ),
    "the pre-C++11 ABI": (
        module(f"{CHECK}Ss", needs=(C10,)),
        f"needs c10::detail::torchCheckFail ({CHECK}Ss), which torch 2.7.1 does not have: built with the"
        " pre-C++11 ABI, torch has the C++11 ABI",
        module(f"{CHECK}{STRING}", needs=(C10,)),
    ),
    "a newer torch": (
        module("_ZN3c1011newer_thingEv", EMPTY, needs=(NEW_C10, TORCH_CPU)),
        "needs c10::newer_thing (_ZN3c1011newer_thingEv), which torch 2.7.1 does not have",
        module("_ZTIN3c105ErrorE", EMPTY, needs=(C10, TORCH_CPU)),
    ),
    "other parameters": (
        module("_ZN2at4_ops5empty4callEN3c108ArrayRefIlEEb", needs=(TORCH_CPU,)),
        "needs at::_ops::empty::call (_ZN2at4_ops5empty4callEN3c108ArrayRefIlEEb), which torch 2.7.1 does not"
        " have: it has this function with other parameters, so this was built for another torch",
        module(EMPTY, needs=(TORCH_CPU,)),
    ),
    "an older torch": (
        module(needs=(OLD_TORCH,)),
        "needs libtorch_cuda_cu.so, which torch 2.7.1 does not have: built for another torch",
        module(needs=(TORCH_CPU,)),
    ),
    "type information of another torch": (
        module("_ZTIN5torch3jit5GraphE"),
        "needs typeinfo for torch::jit::Graph (_ZTIN5torch3jit5GraphE), which torch 2.7.1 does not have",
        module("_ZTIN3c105ErrorE"),
    ),
    "a C function of another torch": (
        module("THPGenerator_Wrap", needs=(TORCH_PYTHON,)),
        "needs THPGenerator_Wrap, which torch 2.7.1 does not have",
        module("THPVariable_Wrap", needs=(TORCH_PYTHON,)),
    ),
    "a newer libnvJitLink": (
        module("__nvJitLinkCreate_12_8", needs=(of_cuda("libnvJitLink.so.12", "__nvJitLinkCreate_12_8"),)),
        "needs __nvJitLinkCreate_12_8 of libnvJitLink.so.12, which nvidia-nvjitlink-cu12 12.6.85 does not"
        " have",
        module("__nvJitLinkCreate_12_6", needs=(NVJITLINK,)),
    ),
    "a newer NCCL": (
        module(
            "ncclCommWindowRegister", needs=(NCCL, Lib(name="libx.so", defines=("ncclCommWindowRegister",)))
        ),
        "needs ncclCommWindowRegister of libnccl.so.2, which nvidia-nccl-cu12 2.26.2 does not have",
        module("ncclAllReduce", needs=(NCCL,)),
    ),
    "a newer glibc": (
        module("newer", needs=(NEW_LIBC,)),
        "needs GLIBC_2.39 of libc.so.6, which the image does not have; its newest is GLIBC_2.36",
        module("malloc", "arc4random", needs=(LIBC,)),
    ),
    "a newer libstdc++": (
        module("_ZSt4new2", needs=(NEW_STDCPP,)),
        "needs GLIBCXX_3.4.32 of libstdc++.so.6, which the image does not have; its newest is GLIBCXX_3.4.30",
        module("_ZSt4new1", needs=(LIBSTDCPP,)),
    ),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_each_kind_of_mismatch_is_refused_and_the_same_without_it_is_not(kind: str, below: Scene) -> None:
    bad, sentence, sound = PAIRS[kind]

    assert below.sentences(below.wheel("bad", {"bad/_C.so": bad})) == [f"bad/_C.so {sentence}"]
    assert below.sentences(below.wheel("sound", {"sound/_C.so": sound})) == []


def test_the_cxx11_abi_on_an_older_torch(tmp_path: Path) -> None:
    """Wheels of torch before 2.7 have the pre-C++11 ABI."""
    older = scene(tmp_path)
    torch = older.wheel("torch", {"torch/lib/libc10.so": Lib(name="libc10.so", defines=(f"{CHECK}Ss",))})
    older.fixed = (torch, *older.fixed[1:])

    [found] = older.sentences(older.wheel("bad", {"bad/_C.so": module(f"{CHECK}{STRING}")}))
    assert found.endswith("torch 1.0 does not have: built with the C++11 ABI, torch has the pre-C++11 ABI")
    assert older.sentences(older.wheel("sound", {"sound/_C.so": module(f"{CHECK}Ss")})) == []


def test_the_abi_of_a_function_that_returns_a_string(below: Scene) -> None:
    """Only its name differs between the ABIs: in the C++11 ABI it has a tag."""
    old = below.wheel("bad", {"bad/_C.so": module("_ZN3c104nameEv")})
    [found] = below.sentences(old)
    assert found.endswith(
        "c10::name (_ZN3c104nameEv), which torch 2.7.1 does not have: built with the pre-C++11 ABI, torch has"
        " the C++11 ABI"
    )
    assert below.sentences(below.wheel("sound", {"sound/_C.so": module("_ZN3c104nameB5cxx11Ev")})) == []


def test_only_modules_for_the_images_python_are_checked(below: Scene) -> None:
    """A standalone Python replaces that of the base."""
    base, own = "x/_C.cpython-311-x86_64-linux-gnu.so", "x/_C.cpython-312-x86_64-linux-gnu.so"
    bad, image = PAIRS["a newer torch"][0], with_python(below)

    for scene_, checked, other in ((below, base, own), (image, own, base)):
        assert scene_.sentences(below.wheel("x", {other: bad})) == []
        assert len(scene_.sentences(below.wheel("x", {checked: bad}))) == 1


# Libraries that must not be refused, because they are not loaded, or because they find all that they need.
UNKNOWN = "_ZN2at7unknownEv"
SOUND: Mapping[str, Mapping[str, Lib]] = {
    "weak symbols": {"x/_C.so": module(weak=(UNKNOWN, "cudaNewer"), needs=(CUDART,))},
    "symbols of another Python, which the check import of smoke reports": {
        "x/_C.so": module("_PyUnicode_Ready")
    },
    "a module for another Python alone": {"x/_C.cpython-310-x86_64-linux-gnu.so": module(UNKNOWN)},
    "one variant for each CUDA": {
        "x/libx_cuda118.so": Lib(name="libx_cuda118.so", uses=(EMPTY,), needs=(OLD_CUDA,)),
        "x/libx_cuda126.so": Lib(name="libx_cuda126.so", uses=(EMPTY,), needs=(CUDART,)),
    },
    "libraries that are opened by path": {
        "x/libproviders_cuda.so": Lib(name="libproviders_cuda.so", needs=(OLD_CUDA, NEW_LIBC))
    },
    "one variant for each torch": {
        "x/libx_torch2.6.so": Lib(name="libx_torch26.so", uses=(UNKNOWN,)),
        "x/libx_torch2.7.so": Lib(name="libx_torch27.so", uses=(EMPTY,)),
    },
    "another accelerator": {
        "x/_C.so": module(UNKNOWN, needs=(Lib(name="libtorch_hip.so"), Lib(name="libc10_hip.so")))
    },
    "a library that the image would not have in any case": {
        "x/_C.so": module(needs=(Lib(name="libtbb.so.12"),))
    },
    "its own CUDA": {
        "x/_C.so": module("cudaMalloc", needs=(OLD_CUDA,)),
        "x.libs/libcudart.so.11.0": OLD_CUDA,
    },
    "its own libstdc++": {
        "x/_C.so": module("_ZSt4new2", needs=(NEW_STDCPP,)),
        "x.libs/libstdc++.so.6": NEW_STDCPP,
    },
    "a symbol of torch that the package also has": {
        "x/_C.so": module(UNKNOWN),
        "x/libx.so": Lib(name="libx.so", defines=(UNKNOWN,)),
    },
    "additional modules for other Pythons": {
        "x/old/_C.cpython-310-x86_64-linux-gnu.so": module(UNKNOWN),
        "x/_C.cpython-311-x86_64-linux-gnu.so": module(EMPTY),
    },
    "a plugin of another program": {"x/plugin.so": Lib(name="plugin.so", uses=("_PyUnicode_Ready", "gdb_x"))},
    "a library of operators, which is no module": {
        "x/libops.so": Lib(name="libops.so", uses=(EMPTY, "_PyNew_Thing"))
    },
    "operators for torch in a package that works without it": {
        "x/_C.cpython-311-x86_64-linux-gnu.so": module("PyModule_Create2", needs=(CUDART,)),
        "x/x_torch_ops.so": Lib(name="x_torch_ops.so", uses=(UNKNOWN,)),
    },
    "a symbol in another library of cuDNN": {
        "x/_C.so": module("cudnnAddTensor", needs=(CUDNN, Lib(name="libx.so", defines=("cudnnAddTensor",)))),
        "x/libx.so": Lib(name="libx.so"),
    },
    "the driver": {"x/_C.so": module("cuInit", needs=(Lib(name="libcuda.so.1", defines=("cuInit",)),))},
    "musl": {"x/_C.so": module(UNKNOWN, needs=(Lib(name="libc.musl-x86_64.so.1"),))},
}


@pytest.mark.parametrize("kind", SOUND)
def test_what_may_be_missing_is_not_refused(kind: str, below: Scene) -> None:
    assert below.sentences(below.wheel("x", SOUND[kind])) == []


def test_operators_for_torch_are_checked_in_packages_that_need_it(below: Scene) -> None:
    """`torch.ops` loads them: the package has no extension modules, or has modules that use torch."""
    ops, lack = Lib(name="libops.so", uses=(UNKNOWN,)), "needs at::unknown (_ZN2at7unknownEv)"
    uses = Lib(name="libuses.so", uses=(EMPTY,))
    below_a_module = {"x/_C.so": module(needs=(uses,)), "x/libuses.so": uses}
    for others in ({}, {"x/_C.so": module(EMPTY)}, below_a_module):
        [found] = below.sentences(below.wheel("x", {"x/libops.so": ops, **others}))
        assert found.startswith(f"x/libops.so {lack}")


def test_a_library_may_be_in_another_package(below: Scene) -> None:
    """For example, a package for CUDA 11 may require NVIDIA's wheels of CUDA 11."""
    user = below.wheel("user", {"user/_C.so": module("cudaMalloc", needs=(OLD_CUDA,))})
    provider = below.wheel("provider", {"nvidia/lib/libcudart.so.11.0": OLD_CUDA})

    assert below.sentences(user, provider) == []
    assert len(below.sentences(user)) == 1


def test_without_a_wheel_nothing_is_refused_and_it_is_named(below: Scene) -> None:
    """The missing wheel could contain the libraries that another package needs."""
    bad = below.wheel("bad", {"bad/_C.so": PAIRS["a newer torch"][0]})
    gone = replace(bad, name="gone", sha256="0" * 64)

    assert below.check(bad, gone) == Fit(unread=("gone 1.0",))


def test_without_the_base_or_torch_the_rest_is_checked(below: Scene) -> None:
    bad = below.wheel(
        "bad",
        {
            "bad/_C.so": PAIRS["another CUDA major"][0],
            "bad/_D.so": replace(module("malloc", needs=(LIBC,)), defines=("PyInit__D",)),
        },
    )
    other = replace(below, base=replace(below.base, digest="sha256:" + "0" * 64))
    found = other.check(bad)
    assert [fault.library for fault in found.faults] == ["libcudart.so.11.0"]
    assert found.unread == ("the base of debian12",)

    torch = replace(below.fixed[0], sha256="1" * 64)
    assert replace(below, fixed=(torch, *below.fixed[1:])).check(bad).unread == ("torch 2.7.1",)


def test_a_newer_glibc_is_refused_without_the_base(below: Scene) -> None:
    other = replace(below, base=replace(below.base, digest="sha256:" + "0" * 64))
    libm = Lib(
        name="libm.so.6", defines=("exp", "pow"), versions={"GLIBC_2.29": ("exp",), "GLIBC_2.38": ("pow",)}
    )
    new = other.check(
        other.wheel("new", {"new/_C.so": module("newer", needs=(NEW_LIBC,)), "new/libx.so": module()}),
        other.wheel("newm", {"newm/_C.so": module("exp", "pow", needs=(libm,))}),
    )
    assert [(fault.library, fault.sentence) for fault in new.faults] == [
        (library, f"needs {version} of {library}, which the image does not have; its newest is GLIBC_2.36")
        for library, version in (("libc.so.6", "GLIBC_2.39"), ("libm.so.6", "GLIBC_2.38"))
    ]
    assert other.check(other.wheel("old", {"old/_C.so": module("malloc", needs=(LIBC,))})).faults == ()


NEW_CUDNN = Lib(name="libcudnn.so.10")
# Libraries that are opened by path: those of another CUDA that are reported, and by whom.
OPENED: Mapping[str, tuple[Mapping[str, Lib], set[str]]] = {
    "another CUDA": (
        {"x/libp.so": Lib(name="libp.so", needs=(OLD_CUDA, NEW_CUDNN, NEW_LIBC))},
        {"libcudart.so.11.0", "libcudnn.so.10"},
    ),
    "the image's CUDA": ({"x/libp.so": Lib(name="libp.so", needs=(CUDART, CUDNN))}, set()),
    "a library that the image has in no version": (
        {"x/libp.so": Lib(name="libp.so", needs=(Lib(name="libcufft.so.10"),))},
        set(),
    ),
    "one variant fits": (
        {
            "x/libp12.so": Lib(name="libp12.so", needs=(CUDART,)),
            "x/libp11.so": Lib(name="libp11.so", needs=(OLD_CUDA,)),
        },
        set(),
    ),
    "its own CUDA": (
        {"x/libp.so": Lib(name="libp.so", needs=(OLD_CUDA,)), "x/libcudart.so.11.0": OLD_CUDA},
        set(),
    ),
}


@pytest.mark.parametrize("kind", OPENED)
def test_a_library_for_another_cuda_that_is_opened_by_path(kind: str, below: Scene) -> None:
    """It is reported, not refused, and known by the lock alone: the wheels of the image may not be there."""
    libraries, expected = OPENED[kind]
    wheel = below.wheel("x", {"x/_C.so": module(), **libraries})
    names = ("x/lib/libcudart.so.12", "x/lib/libcudnn.so.9")
    unread = tuple(replace(one, sha256=f"{n}" * 64, libraries=names) for n, one in enumerate(below.fixed))
    for scene_ in (below, replace(below, fixed=unread)):
        found = scene_.check(wheel)
        assert ({one.library for one in found.doubts}, found.faults) == (expected, ())
        assert scene_.check(wheel) == found  # from the cache


def test_a_result_is_remembered_for_the_same_wheels(below: Scene) -> None:
    wheel = below.wheel("kept", {"kept/_C.so": PAIRS["a newer torch"][0]})
    first = below.check(wheel)
    below.store.wheel(wheel).unlink()

    assert below.check(wheel) == first
    assert [fault.package for fault in first.faults] == ["kept"]


def test_files_that_are_no_libraries_are_left_out(below: Scene) -> None:
    """A script with a library's name, an empty file, a truncated library, one of another machine."""
    whole = compiled(PAIRS["a newer torch"][0])
    arm = bytearray(whole)
    arm[18] = 183
    files = {"x/a.so": b"/* GNU ld script */", "x/b.so": b"", "x/c.so": whole[:-1], "x/d.so": bytes(arm)}

    assert below.sentences(below.wheel("odd", files)) == []


def test_a_damaged_wheel_is_refused(below: Scene) -> None:
    wheel = below.wheel("damaged", {"x/_C.so": module()})
    path = below.store.wheel(wheel)
    data = bytearray(path.read_bytes())
    data[60:64] = b"\xff\xff\xff\xff"
    path.chmod(0o644)
    path.write_bytes(data)

    with pytest.raises(BadWheel, match=r"damaged-1\.0-cp311"):
        below.check(wheel)


def test_libraries_that_a_module_needs_are_checked_like_the_module(below: Scene) -> None:
    """Other libraries are not checked. A checked library may have no symbols of Python or torch."""
    core = Lib(name="libcore.so", defines=("core",), uses=("cudaMalloc",), needs=(OLD_CUDA,))
    middle = Lib(name="libmiddle.so", defines=("middle",), uses=("core",), needs=(core,))
    found = below.sentences(
        below.wheel(
            "deep",
            {
                "deep/_C.so": module("middle", needs=(middle,)),
                "deep.libs/libmiddle.so": middle,
                "deep.libs/libcore.so": core,
                "deep/libother.so": replace(core, name="libother.so"),
            },
        )
    )

    assert found == [
        "deep.libs/libcore.so needs libcudart.so.11.0, the image has libcudart.so.12: built for CUDA 11"
    ]


def test_an_incomplete_check_is_not_remembered(tmp_path: Path) -> None:
    below = scene(tmp_path)
    wheel = below.wheel("bad", {"bad/_C.so": PAIRS["a newer torch"][0]})
    torch = below.store.wheel(below.fixed[0])
    torch.rename(tmp_path / "aside")
    assert below.check(wheel) == Fit(unread=("torch 2.7.1",))

    (tmp_path / "aside").rename(torch)
    assert len(below.sentences(wheel)) == 1
