"""What the OS packages of a project must not change in its image."""

from __future__ import annotations

import io
import posixpath
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.needs import needs_gcc, needs_ldconfig
from tests.roots import entry, tar_of
from tests.shared_libraries import Lib, compiled
from torchkiln.errors import BuildFailed
from torchkiln.projects.apt.protected import Contents, contents_of, demand_apart, demand_harmless, parse_cache


def loader(*pairs: tuple[str, str]) -> bytes:
    """A file ld.so.cache, which has a path for each library name."""
    texts, entries, start = b"", b"", 48 + 24 * len(pairs)
    for name, path in pairs:
        at = [start + len(texts), start + len(texts) + len(name) + 1]
        entries += struct.pack("<iIIIQ", 0x303, *at, 0, 0)
        texts += f"{name}\0{path}\0".encode()
    return struct.pack("<20sII20x", b"glibc-ld.so.cache1.1", len(pairs), len(texts)) + entries + texts


STDCXX = ("libstdc++.so.6", "/lib/x86_64-linux-gnu/libstdc++.so.6")
PASSWD = "root:x:0:0:::/bin/bash\nmail:x:8:8:::/usr/sbin/nologin\n"
PYC = "usr/lib/python3.11/__pycache__/os.cpython-311.pyc"
LOWER = [
    entry("lib", kind=b"2", to="usr/lib"),
    entry("etc/ld.so.cache", loader(STDCXX)),
    entry("usr/lib/x86_64-linux-gnu/libstdc++.so.6", b"1"),
    *(entry(path, b"1") for path in ("etc/shells", "root/.bashrc", "etc/alternatives/cc", "usr/bin/cc")),
    entry("etc/passwd", PASSWD.encode()),
    entry("etc/group", b"root:x:0:\nsudo:x:27:\n"),
    entry("usr/lib/python3.11/os.py", b"1"),
    entry(PYC, b"1"),
    entry("var/lib/dpkg/info/libstdc++6:amd64.list", b"/.\n/lib\n/lib/x86_64-linux-gnu/libstdc++.so.6\n"),
]


def contents(*entries: object) -> Contents:
    return contents_of([io.BytesIO(tar_of(entries))])  # type: ignore[arg-type]


def faults(*entries: object) -> list[str]:
    with pytest.raises(BuildFailed) as caught:
        demand_harmless(contents(*LOWER), contents(*entries), what="w")
    first, *found = caught.value.message.splitlines()
    assert first == "w: packages of the archive would change the image:"
    return found


def test_files_of_the_base_stay() -> None:
    changed = entry("usr/lib/x86_64-linux-gnu/libstdc++.so.6", b"2")
    assert faults(changed) == ["usr/lib/x86_64-linux-gnu/libstdc++.so.6 of libstdc++6 was changed"]


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("opt/venv/bin/python", "is in a folder of the image"),
        ("opt/torchkiln/entrypoint", "is in a folder of the image"),
        ("opt/python/bin/python3.12", "is in a folder of the image"),
        ("etc/torchkiln/image.json", "is in a folder of the image"),
        ("usr/local/cuda-12.1/lib64/x", "is in a folder of the image"),
        ("usr/local/nvidia/lib/libc.so.6", "is in a folder of the image"),
        ("etc/ld.so.preload", "is in a folder of the image"),
        ("usr/lib/x86_64-linux-gnu/libcuda.so.1", "is a library of the driver, which the host provides"),
        ("usr/lib/x86_64-linux-gnu/libnvidia-ml.so", "is a library of the driver, which the host provides"),
        ("usr/lib/python3/dist-packages/sitecustomize.py", "runs at each start of Python"),
        ("usr/lib/python3.11/usercustomize/__init__.py", "runs at each start of Python"),
        ("usr/local/lib/python3.11/dist-packages/sitecustomize.py", "runs at each start of Python"),
        ("usr/local/bin/gcc", "is in /usr/local, which is not for packages"),
        ("etc/sudoers.d/evil", "gives rights, or belongs to a user"),
        ("root/.ssh/authorized_keys", "gives rights, or belongs to a user"),
        ("etc/ssl/private/snakeoil.key", "is a private key, which each machine must generate"),
    ],
)
def test_paths_that_no_package_may_have(path: str, fault: str) -> None:
    owner = entry("var/lib/dpkg/info/evil.list", f"/{path}\n".encode())
    assert faults(entry(path, b"x"), owner) == [f"{path} of evil {fault}"]
    assert faults(entry(path, b"x")) == [f"{path} {fault}"]


@pytest.mark.parametrize("path", ["root/.bashrc", "etc/alternatives/cc", "usr/bin/cc", PYC])
def test_generated_files_of_the_base_stay(path: str) -> None:
    """They belong to no package; only those change in which dpkg and its helpers keep their state."""
    assert faults(entry(path, b"2")) == [f"{path} was changed"]


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        ("etc/passwd", PASSWD.replace("nologin", "sh"), "mail:x:8:8:::/usr/sbin/nologin"),
        ("etc/passwd", f"{PASSWD}evil:x:0:0:::/bin/bash\n", "evil:x:0:0:::/bin/bash"),
        ("etc/passwd", f"{PASSWD}evil::9:9:::/bin/bash\n", "evil::9:9:::/bin/bash"),
        ("etc/group", "root:x:0:\nsudo:x:28:evil\n", "sudo:x:27:"),
        ("etc/shadow", "evil::1::::::\n", "evil::1::::::"),
        ("etc/gitconfig", "[core]\n", "[core]"),
    ],
)
def test_accounts_and_settings_are_only_added(path: str, text: str, line: str) -> None:
    assert f"{path}: {line!r} was changed, or may not be added" in faults(entry(path, text.encode()))


LINK = "usr/lib/x86_64-linux-gnu/libz9.so"
LEADING = {
    "/opt/a.so": entry("etc/ld.so.conf.d/x.conf", b"/opt\n"),
    "/opt/b.so": entry(LINK, kind=b"2", to="/opt/b.so"),
}


@needs_gcc
@pytest.mark.parametrize("path", ["libstdc++.so.6.1", "libz.so", "glibc-hwcaps/x86-64-v3/x.so", *LEADING])
def test_no_library_has_the_soname_of_one_of_the_base(path: str) -> None:
    """An engine runs ldconfig, which goes by SONAME, when it mounts the driver."""
    place = posixpath.join("/usr/lib/x86_64-linux-gnu", path)[1:]
    library = entry(place, compiled(Lib(name="libstdc++.so.6")))
    found = faults(library, *([LEADING[path]] if path in LEADING else []))
    named = LINK if "b.so" in path else place
    assert found == [f"{named} has the SONAME of a library of the image: libstdc++.so.6"]


HIDING = {
    "in place of a module": "os.cpython-311-x86_64-linux-gnu.so os/x.py __pycache__/os.cpython-311.opt-1.pyc",
    "before modules": "torch.py torch/__init__.py lib-dynload/torch.so ../python311.zip",
}


@pytest.mark.parametrize(("why", "names"), HIDING.items())
def test_modules_of_the_image_are_imported(why: str, names: str) -> None:
    for path in (posixpath.normpath(f"usr/lib/python3.11/{name}") for name in names.split()):
        assert faults(entry(path, b"2")) == [f"{path} would be imported {why} of the image"]


@pytest.mark.parametrize(
    "paths",
    [
        [STDCXX[1], "/usr/lib/other/libstdc++.so.6"],
        ["/usr/lib/other/libstdc++.so.6", STDCXX[1]],
        ["/usr/lib/other/libstdc++.so.6"],
    ],
)
def test_the_loader_finds_the_libraries_of_the_base(paths: list[str]) -> None:
    cache = entry("etc/ld.so.cache", loader(*((STDCXX[0], path) for path in paths)))
    assert faults(cache) == [
        "libstdc++.so.6 would be loaded from usr/lib/other/libstdc++.so.6, not from"
        " lib/x86_64-linux-gnu/libstdc++.so.6"
    ]


def test_a_library_that_the_loader_no_longer_finds() -> None:
    assert faults(entry("etc/ld.so.cache", loader(("liba.so.1", "/lib/liba.so.1")))) == [
        "libstdc++.so.6 would no longer be found"
    ]


def test_an_equal_name_for_the_loader() -> None:
    """The loader compares digits in library names as numbers: `.so.06` equals `.so.6`."""
    other = ("libstdc++.so.06", "/usr/lib/other/libstdc++.so.06")
    large = ("libstdc++.so.4294967302", "/usr/lib/other/libstdc++.so.06")
    for pairs in ((other, STDCXX), (STDCXX, other), (large, STDCXX)):
        assert faults(entry("etc/ld.so.cache", loader(*pairs))) == [
            "libstdc++.so.6 would be loaded from usr/lib/other/libstdc++.so.06, not from"
            " lib/x86_64-linux-gnu/libstdc++.so.6"
        ]


def test_harmless_packages_and_warnings() -> None:
    layer = contents(
        entry("etc/ld.so.cache", loader(("libcudart.so.12", "/usr/lib/libcudart.so.12"), STDCXX)),
        entry("etc/shells", b"2"),
        entry("etc/passwd", f"{PASSWD}redis:x:101:101:::/bin/false\n".encode()),
        entry("etc/group", b"root:x:0:\nsudo:x:27:\nredis:x:101:\n"),
        entry("usr/lib/python3.11/tkinter/__init__.py", b"1"),
        entry("usr/lib/python3/dist-packages/numpy/__init__.py", b"1"),
        entry("opt/", kind=b"5"),
        entry("usr/lib/libcudart.so.12", b"1"),
        entry("usr/lib/python3/dist-packages/x.pth", b"1"),
    )
    assert demand_harmless(contents(*LOWER), layer, what="w") == (
        "usr/lib/libcudart.so.12 has the name of a library in the wheels of torch or NVIDIA",
        "Python runs at each start: x.pth",
    )
    assert demand_harmless(contents(*LOWER), contents(entry("usr/bin/x", b"1")), what="w") == ()


@needs_ldconfig
def test_the_cache_of_this_hosts_loader() -> None:
    printed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    expected: dict[str, tuple[str, ...]] = {}
    for line in printed.splitlines():
        name, arrow, path = line.strip().partition(" => ")
        if arrow:
            expected[name.partition(" (")[0]] = (*expected.get(name.partition(" (")[0], ()), path)
    assert parse_cache(Path("/etc/ld.so.cache").read_bytes()) == expected


@pytest.mark.parametrize("data", [b"", loader(STDCXX)[:60], loader(STDCXX)[:-1], b"ld.so-1.7.0"])
def test_a_truncated_cache_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"ld\.so\.cache"):
        parse_cache(data)


@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda data: loader(STDCXX)[: len(data)] + data))
def test_any_cache_is_read_or_refused(data: bytes) -> None:
    try:
        assert isinstance(parse_cache(data), dict)
    except ValueError as refusal:
        error = refusal
    else:
        return
    assert "ld.so.cache" in str(error)


def test_files_of_the_image_itself() -> None:
    demand_apart(["etc/a"], frozenset({"etc/b"}), what="w")
    with pytest.raises(BuildFailed, match=r"etc/b is a file of the image\nand 1 more$"):
        demand_apart(["etc/b"] + 8 * ["etc/b"], frozenset({"etc/b"}), what="w")
