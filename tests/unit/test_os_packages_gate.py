"""Which OS packages of a project are refused: by path, library name, account, file owner or SONAME."""

from __future__ import annotations

import hashlib
import io
import struct
import tarfile
from dataclasses import replace

import pytest
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

from tests.needs import needs_gcc
from tests.os_layers import library
from tests.shared_libraries import Lib
from tests.symbol_scene import CUDART, LIBC, compiled
from tests.unit.test_project_layers import below
from torchkiln.elf.sections import BadElf
from torchkiln.elf.soname import soname_of
from torchkiln.oci.tar_reader import TarReader
from torchkiln.projects.gate import read_layer
from torchkiln.projects.gate.entries import LayerEntry
from torchkiln.projects.gate.os_accounts import account_faults, ids_of
from torchkiln.projects.gate.os_names import SystemNames, library_fault, name_faults
from torchkiln.projects.gate.os_places import place_fault
from torchkiln.util.deb822 import paragraphs

LIB = "usr/lib/x86_64-linux-gnu"
IMAGE = replace(
    below(),
    libraries={"libtorch.so": "torch"},
    folders=("usr/local/bin", "usr/sbin", "usr/bin"),
    tree={
        path: LayerEntry(path=path, kind="folder" if "." not in path else "file")
        for path in (
            *("usr", "usr/bin", "usr/lib", LIB, f"{LIB}/libold.so.1", f"{LIB}/gconv", "etc", "etc/init.d"),
            *("usr/share", "usr/share/doc", "usr/share/perl", "etc/cron.d/x", "var/lib/apt/x.y"),
        )
    },
)
NAMES = SystemNames.of(IMAGE)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (f"{LIB}/libGL.so.1", "link"),
        (f"{LIB}/dri", "folder"),
        (f"{LIB}/dri/iris_dri.so", "hard link"),
        ("usr/bin/ffmpeg", "file"),
        ("usr/share/doc/ffmpeg/copyright", "file"),
        ("usr/share/tesseract-ocr/5/eng", "file"),
        ("usr/libexec/tool/helper", "file"),
        ("usr/local/share/fonts", "folder"),
        ("etc/X11/Xsession", "file"),
        ("etc/init.d/redis", "file"),
        ("etc/pulse/client.conf", "file"),
        ("etc/gitconfig", "file"),
        ("var/lib/redis", "folder"),
        ("var/cache/fontconfig/x", "file"),
        ("var/lib/dpkg/info/x.list", "file"),
    ],
)
def test_places_of_packages(path: str, kind: str) -> None:
    assert place_fault(path, kind, IMAGE.tree) == ""
    assert list(name_faults(path, kind, "", IMAGE, NAMES)) == []


@pytest.mark.parametrize(
    "path",
    [
        *("srv/x", "run/x", "home/user/x", "x", "usr/lib64/x", "usr/local/share/fonts/x.ttf", "usr/src/x"),
        *("usr/share/perl/x", f"{LIB}/gconv/x.so", f"{LIB}/tls/x86_64/libx.so", "usr/lib/python3.11/x.py"),
        *("usr/include/c++/12/vector", "usr/include/x86_64-linux-gnu/python3.11/x.h", "usr/bin/x/y"),
        *("etc/nsswitch.conf", "etc/environment", "etc/default/locale", "etc/xdg/pip/pip.conf", "etc/hosts"),
        *("etc/pam.d/x", "etc/sudoers.d/x", "etc/python3.11/sitecustomize.py", "etc/machine-id"),
        *("usr/share/jupyter/kernels/x", "usr/lib/nvidia/x", "var/lib/x", "var/lib/dpkg/arch", "var/tmp/x"),
        *("var/lib/dpkg/info/x/y", "usr/share/bash-completion/bash_completion", "opt/x", "opt/venv/x"),
    ],
)
def test_other_places(path: str) -> None:
    assert place_fault(path, "file", IMAGE.tree)


@pytest.mark.parametrize(
    "name",
    [
        *("libtorch.so", "libtorch_cuda.so", "libcublasLt.so.12", "libold.so.1", "libcuda.so.1", "libcuda.a"),
        *("libnvidia-ml.so.1", "libGLX_nvidia.so.0", "libnss_x.so.2", "libibverbs.so.1", "xlibcuda.so.1y"),
        *("libnccl-tuner.so", "libgdrapi.so.2", "libcufile_rdma.so.1", "libmlx5.so.1"),
    ],
)
def test_names_of_libraries_that_the_image_uses(name: str) -> None:
    assert library_fault(name, IMAGE, NAMES)
    assert list(name_faults(f"usr/lib/x/lib{name.removeprefix('lib')}", "file", "", IMAGE, NAMES))


def test_the_loader_does_not_search_folders_of_plugins() -> None:
    """Plugins of Perl or Python in several folders may therefore have the same name."""
    tree = {**IMAGE.tree, f"{LIB}/perl/auto/Util.so": LayerEntry(path="", kind="file")}
    image = replace(IMAGE, tree=tree)

    names = SystemNames.of(image)

    assert list(name_faults(f"{LIB}/magick/Util.so", "file", "", image, names)) == []
    assert list(name_faults(f"{LIB}/Util.so", "file", "", image, names)) != []


# --- accounts ---------------------------------------------------------------------------------------

PASSWD = "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n"


def added(path: str, before: str, line: str) -> list[str]:
    return list(account_faults(path, before, f"{before}{line}\n"))


def test_accounts_of_services() -> None:
    assert added("etc/passwd", PASSWD, "redis:x:101:102::/var/lib/redis:/usr/sbin/nologin") == []
    assert added("etc/shadow", "root:*:1:0:99999:7:::\n", "redis:!:20089::::::") == []
    assert added("etc/group", "root:x:0:\n", "redis:x:102:") == []
    assert added("etc/gshadow", "root:*::\n", "redis:!::") == []
    assert list(account_faults("etc/passwd", PASSWD, PASSWD)) == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("etc/passwd", "x:x:1001:1001::/:/usr/sbin/nologin"),
        ("etc/passwd", "x:x:0101:101::/:/usr/sbin/nologin"),
        ("etc/passwd", "root:x:101:101::/:/usr/sbin/nologin"),
        ("etc/passwd", "+::::::"),
        ("etc/passwd", "x:x:101:101::/:/usr/sbin/nologin\rroot2:x:0:0::/:/bin/sh"),
        ("etc/passwd", "x:x:101:101::/"),
        ("etc/shadow", "x::20089::::::"),
        ("etc/shadow", "x:$6$salt$hash:20089::::::"),
        ("etc/group", "x:x:101:user"),
        ("etc/group", "x:x:0:"),
        ("etc/gshadow", "x:!:user:"),
        ("etc/gshadow", "x:!::user"),
    ],
)
def test_other_accounts(path: str, line: str) -> None:
    assert added(path, PASSWD if path == "etc/passwd" else "", line)


def test_ids_of_files() -> None:
    """Files may belong to new users, to new groups, and to groups of the system, such as adm for logs."""
    group = "root:x:0:\nadm:x:4:\nuser:x:1000:\n"
    after = {"etc/passwd": f"{PASSWD}a:x:101:102::/:/bin/false\n", "etc/group": f"{group}a:x:102:\n"}

    ids = ids_of({"etc/passwd": PASSWD, "etc/group": group}, after)

    assert (ids.users, ids.groups) == ({101}, {0, 4, 102})


# --- SONAMEs ----------------------------------------------------------------------------------------


def test_the_soname_is_read_without_a_section_table() -> None:
    assert soname_of(memoryview(library("libx.so.1"))) == "libx.so.1"


@needs_gcc
@pytest.mark.parametrize("lib", [CUDART, LIBC, Lib(name="plain.so", defines=("f",))])
def test_the_soname_is_that_which_pyelftools_finds(lib: Lib) -> None:
    data = compiled(lib)
    segments = ELFFile(io.BytesIO(data)).iter_segments()
    [dynamic] = [segment for segment in segments if isinstance(segment, DynamicSegment)]

    expected = next((tag.soname for tag in dynamic.iter_tags("DT_SONAME")), "")

    assert soname_of(memoryview(data)) == expected


def test_a_second_soname_is_refused() -> None:
    """The loader and ldconfig could use different ones."""
    data = library("libx.so.1")
    twice = data.replace(struct.pack("<QQ", 5, 224), struct.pack("<QQ", 14, 1))
    assert twice != data

    with pytest.raises(BadElf, match="duplicate DT_SONAME"):
        soname_of(memoryview(twice))


@given(
    st.integers(0, len(library("libx.so.1")) - 1),
    st.binary(min_size=1, max_size=8),
    st.integers(0, 40),
)
def test_any_bytes_are_read_or_refused(at: int, data: bytes, cut: int) -> None:
    whole = library("libx.so.1")
    changed = (whole[:at] + data + whole[at + len(data) :])[: len(whole) - cut]
    try:
        found = soname_of(memoryview(changed))
    except BadElf as error:
        found = str(error)
    assert isinstance(found, str)


@pytest.mark.parametrize("system", [True, False])
def test_only_elf_files_of_os_packages_have_a_soname(system: bool) -> None:
    """A linker script has a library's file name, but no SONAME."""
    stream = io.BytesIO()
    files = {f"{LIB}/libx.so": b"INPUT(libx.so.1)", f"{LIB}/libx.so.1": library("libx.so.1")}
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    kept, reader = read_layer._Kept(system=system), TarReader([stream.getvalue()])
    assert [kept.read(entry, reader) for entry in reader] == [
        hashlib.sha256(data).hexdigest() for data in files.values()
    ]
    assert kept.sonames == ({f"{LIB}/libx.so.1": "libx.so.1"} if system else {})


def test_long_fields_are_read_in_linear_time() -> None:
    """If each line were joined to the text before it, terabytes would be copied."""
    [fields] = paragraphs(["Package: x", "Description: y", *(300_000 * [" z" * 20])])

    assert len(fields["description"]) == len("y") + 300_000 * 40
