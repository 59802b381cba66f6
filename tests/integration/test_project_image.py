"""The commands for a project: `build`, `run`, `push`, `smoke`, also after changes and with faults."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from click.testing import CliRunner

from tests.cells import HostPython
from tests.engine.registry import RunningRegistry, registry
from tests.needs import needs_namespaces
from tests.planned import FACTS, MATRIX
from tests.pool_worker import in_this_process
from tests.programs import run_program
from tests.projects import SITE, TAG, Bench, bench
from torchkiln import Project, build_project
from torchkiln.cli import torchkiln
from torchkiln.engine import environment, wheel_layers
from torchkiln.errors import ConfigError, KilnError
from torchkiln.locks.folder import LockFolder
from torchkiln.locks.lock import inputs_digest as cell_inputs
from torchkiln.locks.lock import save
from torchkiln.model.layer import BuiltImage
from torchkiln.oci.layout import open_layout
from torchkiln.projects.choice import choice_of
from torchkiln.projects.file import FILE, save_project
from torchkiln.projects.freshness import inputs_digest
from torchkiln.projects.source import needs_of
from torchkiln.util.places import ROOT

__all__ = ["registry"]


class Commands:
    """Runs torchkiln's commands in a folder with a locked project."""

    def __init__(self, small: Bench) -> None:
        self.small, self.images = small, small.folder / "images"
        bound = LockFolder(self.images, MATRIX, FACTS).bound
        small.cell = replace(small.cell, inputs=cell_inputs(small.cell.resolution, bound))
        save(self.images, small.cell)
        (small.project / "requirements.txt").write_text("fsspec>=3\n")
        lock = small.lock(
            small.wheel("fsspec", "3", "fsspec/__init__.py", "fsspec_fast.so"), requirements=["fsspec>=3"]
        )
        needs = needs_of(small.project, small.cell, small.store)
        self.lock = replace(lock, name=needs.name, inputs=inputs_digest(needs, small.cell))
        save_project(small.project, self.lock)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command; returns exit code, stdout, and stderr with the error."""
        environ = {"TORCHKILN_CACHE": str(self.small.store.root), "TORCHKILN_LAYOUT": None}
        with (
            patch.object(wheel_layers, "interpreter", lambda _base, _store: HostPython()),
            patch.object(environment, "LazyIndex", lambda _store: self.small.index),
            in_this_process(),
        ):
            result = CliRunner(env=environ).invoke(torchkiln, list(arguments))
        error = result.exception
        if isinstance(error, KilnError):
            return error.exit_code, result.stdout, f"{result.stderr}{error.message}\n{error.hint}"
        assert error is None or isinstance(error, SystemExit), error
        return result.exit_code, result.stdout, result.stderr

    def build(self, *arguments: str) -> tuple[int, str, str]:
        command = "watch" if "--watch" in arguments else "push" if "--to" in arguments else "build"
        words = (word for word in arguments if word != "--watch")
        named = ("--matrix", str(ROOT / "matrix.yaml"), "--images", str(self.images))
        return self.run("project", command, str(self.small.project), *named, *self.output, *words)

    def smoke(self, *arguments: str) -> tuple[int, str, str]:
        named = ("--matrix", str(ROOT / "matrix.yaml"), "--images", str(self.images))
        return self.run("project", "smoke", str(self.small.project), *named, *self.output, *arguments)

    @property
    def output(self) -> tuple[str, str]:
        return "--output", str(self.small.layout)


# Replaces the image's Python: an import succeeds only in /app and as root; `pip check` fails; the library
# probe fails if its files are missing.
LACKS = {"missing": [[f"{SITE.removeprefix('opt/venv/')}/fsspec_fast.so", "libx.so.1"]]}
PROBED = json.dumps({**LACKS, "loaded": [], "versions": [], "import_torch": ""})
PYTHON = f"""#!/bin/sh
case "$*" in
*/linkage_probe.py) suite="${{3%/*}}/smoke_tests"; cat "$3" "$suite/linkage.py" >&2 && echo '{PROBED}' ;;
*"pip check") echo "broken 1 requires gone, which is not installed."; exit 1 ;;
*) echo '{{"from": ["/opt/venv"]}}'; [ "$(id -u) $(pwd) $PYTHONPATH" = "0 /app /app" ] ;;
esac
"""
BROKEN = "\n    broken 1 requires gone, which is not installed.\n"
LACKING = f"\n    fsspec needs libx.so.1, which is missing: /{SITE}/fsspec_fast.so\n"


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    return Commands(bench(tmp_path))


def test_the_parent_is_that_of_the_lock(commands: Commands) -> None:
    code, out, messages = commands.build("--json")

    assert code == 0, messages
    found = json.loads(out)
    assert (found["tag"], found["project"], found["ref"]) == ("project",) * 3
    parent = open_layout(commands.small.layout).image(TAG)
    assert found["parent"] == {"tag": TAG, "digest": parent.manifest}
    assert found["code"]["files"] == 3
    assert f"project is on {TAG} ({parent.manifest})" in messages
    assert "its bound" not in messages
    assert "more than 9 B, its bound; " in commands.build("--no-smoke", "--max-size", "9B")[2]
    assert "its bound" not in commands.build("--no-smoke", "--max-size", "9B", "--quiet")[2]


def test_the_library_builds_what_the_command_builds(commands: Commands, tmp_path: Path) -> None:
    """The code of docs/project-folder.md builds the same image; without a cell, that of the lock."""
    code, digest, messages = commands.build()
    assert code == 0, messages
    small, said = commands.small, list[str]()
    files = Project(
        matrix=ROOT / "matrix.yaml",
        images=commands.images,
        layout=tmp_path / "by-the-library",
        cache=small.store.root,
        say=said.append,
    )
    with (
        patch.object(wheel_layers, "interpreter", lambda _base, _store: HostPython()),
        patch.object(environment, "LazyIndex", lambda _store: small.index),
    ):
        [text] = re.findall("```python\n(mine = .*?)```", (ROOT / "docs/project-folder.md").read_text(), re.S)
        names = {
            "torchkiln": SimpleNamespace(build_project=build_project),
            "Path": lambda _: small.project,
            "cell": None,
            "project": files,
        }
        exec(compile(text, "docs/project-folder.md", "exec"), names)
        image = names["mine"]
        assert isinstance(image, BuiltImage)
        assert (image.tag, f"{image.manifest}\n", said) == ("project", digest, [])
        (small.project / FILE).unlink()
        with pytest.raises(ConfigError, match=FILE):
            build_project(small.project, project=files)


@needs_namespaces
def test_from_a_folder_to_a_running_and_pushed_image(commands: Commands, registry: RunningRegistry) -> None:
    code, digest, messages = commands.build()
    assert code == 0, messages
    script = f"pwd; cat train.py; echo $PYTHONPATH; ls /{SITE}/fsspec; ls -d /{SITE}/fsspec-*"
    argv = [str(ROOT / ".venv/bin/python"), str(ROOT / "build.py"), "run", *commands.output]
    done = run_program(
        [*argv, "--no-entrypoint", "project", "--", "/bin/sh", "-c", script],
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(Path.home()),
            "TORCHKILN_CACHE": str(commands.small.store.root),
        },
    )
    to = ("--to", f"{registry.host}/team/project")
    first = commands.run("push", "project", *commands.output, *to, "--tag", "main", "--json")
    (commands.small.project / "train.py").write_text("print('two')\n")
    assert commands.build()[0] == 0
    second = commands.run("push", "project", *commands.output, *to, "--tag", "main", "--json")

    assert done.returncode == 0, done.stderr
    names = "\n".join(("__init__.py", "__pycache__", f"/{SITE}/fsspec-3.dist-info"))
    assert done.stdout == f"/app\nprint('one')\n/app\n{names}\n"
    assert first[0] == second[0] == 0, (first, second)
    sent = [json.loads(each[1]) for each in (first, second)]
    assert sent[0]["digest"] == digest.strip()
    assert registry.tags("team/project") == ["main"]
    sizes = [layer.size for layer in open_layout(commands.small.layout).image("project").layers]
    assert sent[1]["bytes_sent"] < sizes[-1] + 20_000  # the code, config and manifest


@pytest.mark.parametrize("form", ["oci-archive", "docker-archive"])
def test_an_archive_of_the_image(commands: Commands, form: str) -> None:
    """It is beside the layout, with the same blobs; an engine gives it the name with which `run` loads it."""
    code, out, messages = commands.build("--json", "--format", form)

    assert code == 0, messages
    found, archive = json.loads(out), commands.small.folder / f"project.{form}.tar"
    assert found["archive"] == str(archive)
    assert f"archive: {archive}\n" in messages
    with tarfile.open(archive) as tar:
        names = tar.getnames()
        (entry,) = json.loads(tar.extractfile("index.json").read())["manifests"]  # type: ignore[union-attr]
    assert entry["digest"] == found["digest"]
    assert entry["annotations"]["io.containerd.image.name"] == "docker.io/library/pytorch-cuda:project"
    assert {f"blobs/{layer['digest'].replace(':', '/')}" for layer in found["layers"]} <= set(names)
    assert ("manifest.json" in names) == (form == "docker-archive")


@needs_namespaces
def test_smoke_checks_the_image(tmp_path: Path) -> None:
    commands = Commands(bench(tmp_path, python=PYTHON))
    commands.build()

    sound = commands.smoke("--only", "import", "--only", "linkage", "--allow-missing", "libx.so.1")
    code, out, messages = commands.smoke()

    parent = open_layout(commands.small.layout).image(TAG)
    digest = open_layout(commands.small.layout).image("project").manifest
    assert sound[:2] == (0, "pass\n"), sound
    assert f"\nproject  {digest}\non {TAG}  {parent.manifest}\n" in sound[2]
    assert re.search(r"^passed +import .* packages 1  modules 1  failed \[0\]$", messages, re.M), messages
    assert (code, out) == (10, "fail\n")
    assert BROKEN in messages
    assert LACKING in messages
    assert "project: fail: pip-check, linkage\n" in messages


def test_smoke_checks_the_image_in_an_engine(
    tmp_path: Path, engine: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in engine.items():
        monkeypatch.setenv(name, value)
    commands = Commands(bench(tmp_path, python=PYTHON))
    commands.build()

    code, out, messages = commands.smoke("--runtime", "docker")

    assert (code, out) == (10, "fail\n"), messages
    assert re.search(r"^passed +import .* modules 1 ", messages, re.M), messages
    assert BROKEN in messages
    assert LACKING in messages


def test_smoke_needs_the_image_of_the_lock(commands: Commands) -> None:
    """An image that was built before the lock changed is refused."""
    commands.build()
    before = commands.lock
    wheel = commands.small.wheel("fsspec", "4", "fsspec/__init__.py")
    other = commands.small.lock(wheel, requirements=["fsspec>=3"])
    save_project(commands.small.project, replace(other, name=before.name, inputs=before.inputs))
    code, out, messages = commands.smoke()

    assert (code, out) == (5, ""), messages
    assert "project was built from a different lock than" in messages
    assert "torchkiln project build" in messages


def test_smoke_without_a_built_image(commands: Commands) -> None:
    commands.small.build(commands.small.lock())  # another project

    code, _, messages = commands.smoke()

    assert code == 2
    assert "no image of the project: 'project'" in messages


def test_the_extras_are_those_of_the_lock(commands: Commands) -> None:
    """Extras that differ from those of the lock make it stale. Without a lock, `build` makes one."""
    small = commands.small
    (small.project / "requirements.txt").unlink()
    (small.project / "pyproject.toml").write_text(
        '[project]\nname = "project"\ndependencies = []\n'
        '[project.optional-dependencies]\nfs = ["fsspec>=3"]\n'
    )
    choice = choice_of(["fs"], [])
    inputs = inputs_digest(needs_of(small.project, small.cell, small.store, choice), small.cell)
    save_project(small.project, replace(commands.lock, extras=("fs",), inputs=inputs))

    code, digest, messages = commands.build()
    assert code == 0, messages
    assert commands.build("--extra", "FS")[:2] == (0, digest)
    code, _, messages = commands.smoke("--allow-missing", "numpy")
    assert code == 2, messages  # so the lock was found to be fresh
    code, out, messages = commands.build("--group", "dev", "--extra", "fs")
    assert (code, out) == (2, "")
    assert "--group dev: pyproject.toml has no such group; it has none" in messages
    code, out, messages = commands.build("--extra", "")
    assert (code, out) == (5, "")
    assert "made with --extra fs, not without extras and groups" in messages
    assert messages.endswith(f"project lock {small.project} --extra ''")

    (small.project / "torchkiln.lock.json").unlink()
    cell = small.cell.resolution.cell
    code, out, messages = commands.build("--torch", cell.torch, "--cuda", cell.cuda, "--extra", "nope")
    assert (code, out) == (2, "")
    assert "--extra nope: pyproject.toml has no such extra; it has: fs" in messages


def test_refused_code_leaves_no_lock(commands: Commands) -> None:
    (commands.small.project / "torchkiln.lock.json").unlink()
    (commands.small.project / ".env").write_text("KEY=1\n")

    cell = commands.small.cell.resolution.cell
    code, out, messages = commands.build("--torch", cell.torch, "--cuda", cell.cuda)

    assert (code, out) == (2, "")
    assert ".env: looks like a secret" in messages
    assert not (commands.small.project / "torchkiln.lock.json").exists()
