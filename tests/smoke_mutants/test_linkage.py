"""Mutants of linkage: libraries that gcc builds, each with a different fault."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from smoke_tests.allowed import LIST, allowed_unresolved, optional
from smoke_tests.elf import read_elf
from smoke_tests.linkage import read_linkage, sonames
from tests.needs import needs_gcc
from tests.smoke_mutants.mutant import broken, pytest_folder
from tests.smoke_suites import CLAIMS, SUITE, findings, run_suite, suite_with

pytestmark = needs_gcc


def library(folder: Path, name: str, *needs: str, rpath: str = "") -> Path:
    """Build lib<name>.so with the soname lib<name>.so.1, which needs other libraries of *folder*."""
    folder.mkdir(exist_ok=True)
    path = folder / f"lib{name}.so.1"
    calls = "".join(f"int {other}(void); int use_{other}(void) {{ return {other}(); }}\n" for other in needs)
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        "-x",
        "c",
        "-",
        "-x",
        "none",
        "-o",
        str(path),
        f"-Wl,-soname,{path.name}",
    ]
    command += [str(folder / f"lib{other}.so.1") for other in needs]
    command += [f"-Wl,-rpath,{rpath}"] if rpath else []
    code = f"{calls}int {name}(void) {{ return 1; }}\n"
    subprocess.run(command, input=code, text=True, check=True)
    return path


def test_a_library_in_the_same_folder_is_found_only_by_origin(tmp_path: Path) -> None:
    library(tmp_path, "a")
    library(tmp_path, "good", "a", rpath="$ORIGIN")
    library(tmp_path, "bad", "a")
    seen = read_linkage(tmp_path)
    assert seen.files == 3
    assert seen.unfound == (("libbad.so.1", "liba.so.1"),)


def test_a_removed_library_is_reported_for_every_file_that_needs_it(tmp_path: Path) -> None:
    gone = library(tmp_path, "a")
    library(tmp_path, "b", "a", rpath="$ORIGIN")
    library(tmp_path, "c", "a", "b", rpath="$ORIGIN")
    assert read_linkage(tmp_path).unfound == ()
    gone.unlink()
    assert read_linkage(tmp_path).unfound == (("libb.so.1", "liba.so.1"), ("libc.so.1", "liba.so.1"))


def test_a_missing_symbol_version_is_reported(tmp_path: Path) -> None:
    def versioned(version: str) -> None:
        script = tmp_path / "map"
        script.write_text(f"{version} {{ global: a; }};\n")
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(tmp_path / "liba.so.1")]
        command += ["-Wl,-soname,liba.so.1", f"-Wl,--version-script,{script}"]
        subprocess.run(command, input="int a(void) { return 1; }\n", text=True, check=True)

    versioned("KILN_1")
    library(tmp_path, "b", "a", rpath="$ORIGIN")
    assert read_linkage(tmp_path).unversioned == ()
    versioned("KILN_2")
    assert any("KILN_1" in line for line in read_linkage(tmp_path).unversioned)


def test_libraries_of_a_program_are_those_that_the_loader_finds(tmp_path: Path) -> None:
    gone = library(tmp_path, "a")
    source = "int a(void); int main(void) { return a(); }\n"
    command = ["gcc", "-x", "c", "-", "-x", "none", str(gone), "-o", str(tmp_path / "tool")]
    subprocess.run(command, input=source, text=True, check=True)
    gone.unlink()
    seen = read_linkage(tmp_path)
    assert (seen.unfound, seen.unfound_programs) == ((), (("tool", "liba.so.1"),))


def test_the_elf_reader_agrees_with_pyelftools(tmp_path: Path) -> None:
    elffile = pytest.importorskip("elftools.elf.elffile", reason="the other reader: pip install pyelftools")
    library(tmp_path, "a")
    path = library(tmp_path, "b", "a", rpath="$ORIGIN")
    with path.open("rb") as file:
        tags = list(elffile.ELFFile(file).get_section_by_name(".dynamic").iter_tags())
    ours = read_elf(path)
    assert ours is not None
    assert ours.needed == tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED")
    assert ours.soname == "libb.so.1"
    assert sonames([str(path), "/no/such/file"]) == {"libb.so.1"}


def test_other_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x" * 100)
    (tmp_path / "short").write_bytes(b"\x7fELF\x02\x01")
    (tmp_path / "object.o").write_bytes(b"\x7fELF\x02\x01" + bytes(10) + b"\x01\x00\x3e\x00" + bytes(60))
    assert read_linkage(tmp_path).files == 0


def test_the_list_of_exceptions_is_only_for_the_installed_version() -> None:
    audio = {"name": "torchaudio", "version": "2.7.1+cu118"}
    pairs = allowed_unresolved([audio], "lib/python3.10/site-packages", LIST)
    assert ["lib/python3.10/site-packages/torchaudio/lib/libtorchaudio_sox.so", "libsox.so"] in pairs
    assert len(pairs) == len({tuple(pair) for pair in pairs})
    assert not any("cufile" in file for file, _ in pairs)
    assert allowed_unresolved([audio | {"version": "9.9"}], "lib/python3.10/site-packages", LIST) == []


@pytest.mark.parametrize(
    ("file", "soname", "expected"),
    [
        ("nvidia/nvshmem/lib/nvshmem_transport_ucx.so.6", "libucp.so.0", True),
        ("nvidia/nvshmem/lib/nvshmem_transport_ucx.so.6", "libcudart.so.13", False),
        ("nvidia/nvshmem/lib/libnvshmem_host.so.3", "libucp.so.0", False),
        ("nvidia/nvshmem/lib/nvshmem_transport_ucx.so.6/x.so.1", "libucp.so.0", False),
        ("nvidia/cu13/lib/libcufile_rdma.so.1", "libmlx5.so.1", False),  # its distribution is not installed
        ("triton/plugins/libTritonPluginsTestLib.so", "libtriton.so", True),
        ("triton/_C/libproton.so", "libtriton.so", False),
    ],
)
def test_plugins_may_be_unresolved_in_any_version(file: str, soname: str, expected: bool) -> None:
    """The list of plug-ins matches any version, so a new release of a library needs no new list."""
    wheels = [{"name": "nvidia-nvshmem-cu13", "version": "9.9"}, {"name": "triton", "version": "4.0"}]
    site = "lib/python3.11/site-packages"
    pair = [f"{site}/{file}", soname]

    assert (optional([pair], wheels, site) == [pair]) is expected
    assert allowed_unresolved(wheels, site) == []


# --- if the image's Python is not the base's, lib/python3.12 is a link to lib/python3.11 ----------

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
BASE = "3.11" if OWN != "3.11" else "3.12"  # the base's Python, whose folder has the packages
LIBRARIES = f"lib/python{BASE}/site-packages/torchaudio/lib"
LIST_OF_ONE = {
    "entries": [
        {
            "distribution": "torchaudio",
            "versions": ["2.7.1"],
            "files": {"torchaudio/lib/libgood.so.1": ["liba.so.1"]},
        }
    ],
    "optional": [],
}


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """/opt/venv of such an image, with two libraries of torchaudio, one of which needs the other."""
    prefix = tmp_path / "venv"
    venv.create(prefix, with_pip=False, symlinks=True)
    (prefix / f"lib/python{OWN}").rename(prefix / f"lib/python{BASE}")
    (prefix / f"lib/python{OWN}").symlink_to(f"python{BASE}")
    folder = prefix / LIBRARIES
    folder.mkdir(parents=True)
    library(folder, "a")
    library(folder, "good", "a", rpath="$ORIGIN")
    (folder.parents[1] / "torch.py").write_text("")
    return prefix


def run(prefix: Path, python: str = f"{OWN}.0") -> Mapping[str, Any]:
    """The finding of the check in that environment, with a list of one entry."""
    folder = prefix.parent
    suite = suite_with(folder / "suite", {"test_linkage.py": (SUITE / "test_linkage.py").read_text()})
    (suite / LIST.name).write_text(json.dumps(LIST_OF_ONE))
    wheels = [{"name": "torchaudio", "version": "2.7.1"}]
    facts = {"schema": 1, "claims": {**CLAIMS, "python": python}, "labels": {}, "wheels": wheels}
    interpreter, harness = str(prefix / "bin/python"), Path(pytest_folder())
    return findings(run_suite(suite, folder, python=interpreter, facts=facts, wheels=harness))["linkage"]


def test_a_listed_library_may_be_missing_below_the_target_of_the_link(linked: Path) -> None:
    (linked / LIBRARIES / "liba.so.1").unlink()
    found = run(linked)
    assert (found["outcome"], found["message"]) == ("passed", "")
    assert found["measured"]["unresolved"] == [[f"{LIBRARIES}/libgood.so.1", "liba.so.1"]]


def test_a_library_that_is_missing_below_the_target_is_reported(linked: Path) -> None:
    library(linked / LIBRARIES, "another", "a")  # without a path: the library beside it is not found
    (linked / LIBRARIES / "liba.so.1").unlink()
    found = run(linked)
    assert broken(found) == ["unresolved_not_listed"]
    assert str([f"{LIBRARIES}/libanother.so.1", "liba.so.1"]) in found["message"]


def test_an_entry_that_does_not_occur_below_the_target_is_reported(linked: Path) -> None:
    assert broken(run(linked)) == ["listed_but_resolved"]


def test_the_packages_must_be_those_of_the_locked_python(linked: Path) -> None:
    """The folder of a third Python is not a link to the packages, so the check fails."""
    (linked / LIBRARIES / "liba.so.1").unlink()
    assert broken(run(linked, python="3.10.1")) == ["unresolved_not_listed", "listed_but_resolved"]


def test_packages_outside_of_the_environment_are_refused(linked: Path) -> None:
    (linked / f"lib/python{BASE}").rename(linked.parent / "elsewhere")
    (linked / f"lib/python{OWN}").unlink()
    (linked / f"lib/python{OWN}").symlink_to("../../elsewhere")
    library(linked / "lib", "c")
    assert "is not in the subpath of" in run(linked)["message"]
