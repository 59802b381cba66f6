"""A wheel's layer unpacks to the files that pip installs: every path, type, mode and byte is the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.layers import Item, layer_of, tree_of_folder, tree_of_layer
from tests.programs import run_program
from tests.realpip import RealPip, agree, pip_folder, requirements
from tests.wheels import File, Scheme, WheelSpec, write_wheel

# Without separators, control characters and line endings, which cannot be written in RECORD, a text file.
_LETTERS = st.characters(
    exclude_categories=("Cc", "Cs", "Cn", "Zl", "Zp"), exclude_characters="/\\:", max_codepoint=0x1F600
)
_PLAIN = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
_MODULES = st.sampled_from(
    (b"", b"x = 1\n", b"def main():\n    return 0\n", b"# \xc3\xa9\n", b"syntax error(\n")
)
_CONTENTS = st.one_of(
    _MODULES,
    st.binary(max_size=300),
    st.builds(lambda unit, times: unit * times, st.binary(min_size=1, max_size=9), st.integers(1, 9000)),
)
_SCRIPTS = st.sampled_from(
    (
        b"#!python\nprint(1)\n",
        b"#!pythonw\nprint(1)\n",
        b"#!python -E\n",
        b"#!/bin/sh\nexit 0\n",
        b"\x7fELF",
        b"",
    )
)
_ROOT: tuple[Scheme, ...] = ("", "purelib", "platlib")


def _part(suffix: str) -> st.SearchStrategy[str]:
    """A component of a path. Only files have suffixes, so a folder and a file never have the same path."""
    text = st.one_of(_PLAIN, st.text(_LETTERS, min_size=1, max_size=12), st.just("n" * 200))
    return text.map(lambda found: "d" + found.replace(".", "_") + suffix).filter(
        lambda f: len(f.encode()) <= 240
    )


def paths(*, suffix: str) -> st.SearchStrategy[str]:
    """A path of one to four components, sometimes longer than 300 bytes; its file name ends in *suffix*."""
    return st.builds(
        lambda folders, file: "/".join((*folders, file)), st.lists(_part(""), max_size=3), _part(suffix)
    )


@st.composite
def _files(draw: st.DrawFn) -> tuple[File, ...]:
    found: dict[tuple[str, str], File] = {}
    for number in range(draw(st.integers(1, 7))):
        scheme: Scheme = draw(st.sampled_from((*_ROOT, "headers", "scripts", "data")))
        suffix = draw(st.sampled_from((".py", ".so", ".txt", ".PY", ".dat")))
        if scheme == "scripts":
            path, data = f"script{number}{suffix}", draw(_SCRIPTS)
        else:
            # Each scheme has its own folder: of two files with one path, even pip would overwrite one.
            path, data = f"{scheme or 'root'}_/" + draw(paths(suffix=suffix)), draw(_CONTENTS)
        mode = draw(st.sampled_from((0o644, 0o755, 0o600, 0o664, 0o777, 0o444)))
        found[scheme, path] = File(path=path, data=data, scheme=scheme, mode=mode, stored=draw(st.booleans()))
    return tuple(found.values())


@st.composite
def wheel_specs(draw: st.DrawFn) -> WheelSpec:
    """Any wheel that pip installs without an error."""
    target = st.sampled_from(("root_.mod:main", "root_.mod:Main.run", "root_:main"))
    names = draw(
        st.lists(st.from_regex(r"[a-z][a-z0-9.-]{0,10}[a-z0-9]", fullmatch=True), max_size=4, unique=True)
    )
    points = tuple((f"run-{name}", draw(target)) for name in names)
    cut = draw(st.integers(0, len(points)))
    return WheelSpec(
        name=draw(st.from_regex(r"[A-Za-z][A-Za-z0-9]{1,5}([-_.][A-Za-z0-9]{1,4}){0,2}", fullmatch=True)),
        version=draw(st.sampled_from(("1.0", "2.7.1", "0.0.1.post1", "1.0+cu126"))),
        files=draw(_files()),
        console=points[:cut],
        gui=points[cut:],
        purelib=draw(st.booleans()),
        folders=draw(st.booleans()),
        streamed=draw(st.booleans()),
        zip64=draw(st.booleans()),
        shuffle=draw(st.none() | st.integers(0, 99)),
    )


pytestmark = pytest.mark.network  # the locked pip is downloaded once

CODE = b"def main():\n    return 0\n"
MODULE = File(path="package/__init__.py", data=CODE)
LONG = "/".join(("n" * 150, "m" * 150, "l" * 60))

FIXED = {
    "plain": WheelSpec(name="plain", files=(MODULE,)),
    "stored": WheelSpec(
        name="stored",
        files=(replace(MODULE, stored=True), File(path="a/b.so", data=b"x" * 70000, stored=True)),
    ),
    "empty": WheelSpec(
        name="empty",
        files=(File(path="e/__init__.py", data=b""), File(path="e/stored", data=b"", stored=True)),
    ),
    "zip64": WheelSpec(name="zip64", zip64=True, files=(MODULE, File(path="z/z.dat", data=b"z" * 3000))),
    "streamed": WheelSpec(
        name="streamed", streamed=True, files=(MODULE, File(path="s/s.dat", data=b"s" * 300, stored=True))
    ),
    "streamed-zip64": WheelSpec(name="streamed64", streamed=True, zip64=True, files=(MODULE,)),
    "unicode": WheelSpec(
        name="unicode", files=(File(path='ü/é, "q" 漢字.py', data=CODE), File(path="ü/😀.txt", data=b"smile"))
    ),
    "long": WheelSpec(
        name="long",
        files=(File(path=f"{LONG}/module.py", data=CODE), File(path=f"{'a' * 99}/{'b' * 99}", data=b"1")),
    ),
    "modes": WheelSpec(
        name="modes",
        files=tuple(
            File(path=f"m/{mode:o}", data=b"#!/bin/sh\n", mode=mode)
            for mode in (0o755, 0o600, 0o444, 0o777, 0o4755, 0o010)
        ),
    ),
    "shuffled": WheelSpec(
        name="shuffled",
        shuffle=7,
        folders=True,
        files=(MODULE, File(path="a/z", data=b"z"), File(path="z/a", data=b"a")),
    ),
    "folders": WheelSpec(name="folders", folders=True, files=(MODULE,)),
    "purelib": WheelSpec(
        name="purelib", purelib=False, files=(File(path="p/p.py", data=CODE, scheme="purelib"),)
    ),
    "platlib": WheelSpec(name="platlib", files=(File(path="p/q.py", data=CODE, scheme="platlib"),)),
    "headers": WheelSpec(
        name="Some_Headers.here", files=(File(path="deep/h.h", data=b"int x;\n", scheme="headers"),)
    ),
    "data": WheelSpec(
        name="data",
        files=(
            File(path="share/d.txt", data=b"d", scheme="data"),
            File(path="bin/run", data=b"#!python\nunchanged\n", mode=0o755, scheme="data"),
            File(path="lib/python3.11/site-packages/by_data.py", data=CODE, scheme="data"),
        ),
    ),
    "scripts": WheelSpec(
        name="scripts",
        files=(
            File(path="rewritten", data=b"#!python\nprint(1)\n", mode=0o755, scheme="scripts"),
            File(path="rewritten-w", data=b"#!pythonw -E\r\nprint(1)\n", mode=0o755, scheme="scripts"),
            File(path="not-marked", data=b"#!python\nprint(1)\n", scheme="scripts"),
            File(path="no-newline", data=b"#!python", mode=0o755, scheme="scripts"),
            File(path="shell", data=b"#!/bin/sh\nexit 0\n", mode=0o755, scheme="scripts"),
            File(path="elf", data=b"\x7fELF" + b"\0" * 5000, mode=0o755, scheme="scripts"),
            File(path="large", data=b"\x7fELF" + os.urandom(10) * 200_000, mode=0o755, scheme="scripts"),
            File(path="tool.py", data=b"#!python\nprint(1)\n", mode=0o755, scheme="scripts"),
            File(path="empty", data=b"", mode=0o755, scheme="scripts"),
        ),
    ),
    "entry-points": WheelSpec(
        name="points",
        files=(MODULE,),
        console=(
            ("tool", "package:main"),
            ("Tool.Two", "package.deep:Class.run"),
            ("with-extra", "package:main [extra]"),
        ),
        gui=(("window", "package:main"),),
    ),
    "point-over-script": WheelSpec(
        name="over",
        files=(
            MODULE,
            *(
                File(path=name, data=b"#!python\nold\n", mode=0o755, scheme="scripts")
                for name in ("tool", "tool.exe", "tool-script.py", "tool.pya", "TOOL")
            ),
        ),
        console=(("tool", "package:main"),),
    ),
    "pip": WheelSpec(
        name="pip",
        version="99.0",
        files=(File(path="pip/__init__.py", data=CODE),),
        console=tuple((name, "pip:main") for name in ("pip", "pip3", "pip3.9", "pip2.7", "pipx")),
    ),
    "easy_install": WheelSpec(
        name="setuptools",
        version="51.0",
        files=(File(path="easy/__init__.py", data=CODE),),
        console=(
            ("easy_install", "easy:main"),
            ("easy_install-3.6", "easy:main"),
            ("easy_install-tool", "easy:main"),
        ),
    ),
    "name": WheelSpec(
        name="A.Strange_Name", version="1.0+cu126", files=(File(path="strange.py", data=CODE),)
    ),
}


@pytest.fixture(scope="module")
def pip(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPip]:
    running = RealPip(pip_folder(tmp_path_factory.mktemp("pip")))
    yield running
    running.close()


@pytest.mark.parametrize("kind", FIXED)
def test_each_kind_of_wheel(kind: str, pip: RealPip, tmp_path: Path) -> None:
    agree(write_wheel(FIXED[kind], tmp_path / "wheels"), pip, tmp_path / "root")


@given(spec=wheel_specs())
def test_any_wheel(pip: RealPip, tmp_path_factory: pytest.TempPathFactory, spec: WheelSpec) -> None:
    """hypothesis combines the features of wheels."""
    folder = tmp_path_factory.mktemp("any")
    agree(write_wheel(spec, folder / "wheels"), pip, folder / "root")
    shutil.rmtree(folder)


def test_gnu_tar_unpacks_the_same_tree(tmp_path: Path) -> None:
    """The tests above read layers with tarfile. GNU tar and gzip unpack the same tree."""
    wheels = [write_wheel(spec, tmp_path / "wheels") for spec in FIXED.values()]
    for wheel in wheels:
        blob, _ = layer_of([wheel])
        root = tmp_path / wheel.stem
        root.mkdir()
        argv = [
            "tar",
            "--extract",
            "--gzip",
            "--no-same-owner",
            "--preserve-permissions",
            "--directory",
            str(root),
        ]
        subprocess.run(argv, input=blob, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
        assert tree_of_folder(root) == tree_of_layer(blob)


@pytest.mark.proof
def test_the_dockerfiles_command_in_a_real_venv(tmp_path: Path, pip: RealPip) -> None:
    """In a real /opt/venv, the Dockerfile's pip command gives the files that --root gives above."""
    wheels = [write_wheel(spec, tmp_path / "wheels") for kind, spec in FIXED.items() if kind != "pip"]
    (tmp_path / "requirements.txt").write_text(requirements(wheels))
    archive = tmp_path / "venv.tar"
    script = f"""
        set -e
        mount -t tmpfs tmpfs /opt
        {sys.executable} -m venv --without-pip --copies /opt/venv
        cd /opt/venv
        find . -mindepth 1 | sort > {tmp_path}/before
        umask 022
        export PYTHONPATH={pip_folder(tmp_path)}
        bin/python -B -m pip install --no-index --find-links {tmp_path}/wheels --require-hashes --no-deps \
            --no-compile --no-cache-dir --root-user-action ignore -r {tmp_path}/requirements.txt
        find . -mindepth 1 | sort | comm -13 {tmp_path}/before - > {tmp_path}/new
        tar --create --file {archive} --no-recursion --verbatim-files-from --files-from={tmp_path}/new
    """
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run(
        [*unshare, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
    ).returncode:
        pytest.skip("cannot create a mount namespace: needs root, or user namespaces")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
    environment |= {"LC_ALL": "C.UTF-8", "PIP_CONFIG_FILE": os.devnull}
    done = run_program([*unshare, "sh", "-c", script], env=environment)
    assert done.returncode == 0, done.stderr + done.stdout

    pip.install(wheels, tmp_path / "root")
    by_root = {
        path: item for path, item in tree_of_folder(tmp_path / "root/opt/venv").items() if item.kind == "file"
    }
    with tarfile.open(archive) as tar:
        true = {
            member.name.removeprefix("./"): Item(
                kind="file", mode=member.mode, data=tar.extractfile(member).read()
            )
            for member in tar
            if member.isreg()
        }
    assert true == by_root
