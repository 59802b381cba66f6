"""`project watch`: builds and pushes changed code; errors, stale locks, and the end by Ctrl-C."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.engine.registry import RunningRegistry, registry
from tests.faultproxy import Fault, FaultProxy
from tests.integration.test_project_image import Commands
from tests.projects import TAG, bench
from torchkiln.cli.shared import project_build, project_watch
from torchkiln.errors import KilnError
from torchkiln.oci.layout import open_layout
from torchkiln.oci.validate.validate import validate
from torchkiln.projects.file import FILE, save_project
from torchkiln.projects.freshness import inputs_digest
from torchkiln.projects.source import needs_of
from torchkiln.projects.watch import INTERVAL, Rebuilt, WatchedProject, rebuilds
from torchkiln.util.places import ROOT

__all__ = ["registry"]

LINE = re.compile(r"(sha256:[0-9a-f]{64})  \d+\.\d\d s  (?:(\d+(?:\.\d)? \w?B) pushed  )?(.*)")
Step = Callable[[], object]


class Watch:
    """A watched project that changes in steps: one step in each third pause of `--watch`, at last Ctrl-C."""

    def __init__(self, commands: Commands) -> None:
        self.commands, self.project = commands, commands.small.project

    def run(self, *steps: Step, arguments: tuple[str, ...] = ()) -> tuple[list[tuple[str, str, str]], str]:
        """The lines on stdout (digest, bytes pushed, files), and the messages."""
        out, messages = self.output(*steps, arguments=arguments)
        lines = [found for line in out.splitlines() if (found := LINE.fullmatch(line))]
        assert len(lines) == len(out.splitlines()), out
        return [(found[1], found[2] or "", found[3]) for found in lines], messages

    def output(self, *steps: Step, arguments: tuple[str, ...] = ()) -> tuple[str, str]:
        """stdout and the messages."""

        def script() -> Iterator[None]:
            for step in steps:
                step()
                yield from (None, None, None)
            raise KeyboardInterrupt

        made = script()

        def pause(seconds: float) -> None:
            if seconds >= INTERVAL:
                next(made)

        def watched(project: WatchedProject) -> Iterator[Rebuilt | KilnError]:
            return rebuilds(replace(project, pause=pause))

        with patch.object(project_watch, "rebuilds", watched):
            code, out, messages = self.commands.build("--watch", *arguments)
        assert (code, messages.splitlines()[-1]) == (1, "Aborted!"), messages  # click's end after Ctrl-C
        return out, messages

    def write(self, name: str, text: str) -> Step:
        """A step that writes *text* to the file *name*."""
        return lambda: (self.project / name).write_text(text)

    def digest(self) -> str:
        """The digest of the image in the layout."""
        return open_layout(self.commands.small.layout).image("project").manifest

    def demand_present(self) -> None:
        """Assert that `build` of the current files gives the image in the layout."""
        before = self.digest()
        code, digest, messages = self.commands.build()
        assert (code, digest.strip()) == (0, before), messages


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(Commands(bench(tmp_path)))


def nothing() -> None:
    """A step without a change."""


def test_each_change_is_built_and_pushed(watch: Watch, registry: RunningRegistry) -> None:
    """A change rebuilds and pushes only the layer of code; the parent image is built once."""
    to = ("--to", f"{registry.host}/team/watched", "--tag", "main", "--tag", "now")
    with patch.object(project_build, "build_project", wraps=project_build.build_project) as whole:
        lines, messages = watch.run(
            watch.write("train.py", "print('two')\n"),
            watch.write("more.py", ""),
            lambda: (watch.project / "train.py").unlink(),
            arguments=to,
        )

    assert [files for _, _, files in lines] == ["3 files", "train.py", "+more.py", "-train.py"]
    assert len({digest for digest, _, _ in lines}) == 4
    assert lines[-1][0] == watch.digest()
    assert whole.call_count == 1
    assert registry.tags("team/watched") == ["main", "now"]
    assert [sent.partition(" ")[2] for _, sent, _ in lines] == ["MB", "kB", "kB", "kB"]
    manifest = registry.content("team/watched", lines[-1][0])
    assert all(registry.content("team/watched", one["digest"]) for one in json.loads(manifest)["layers"])
    assert messages.count("unproven") == 1
    assert " moves from " not in messages
    assert validate(watch.commands.small.layout) == ()


def test_changed_settings_are_those_of_the_image(watch: Watch) -> None:
    """A change of the settings file changes the image, even if git ignores the file."""
    subprocess.run(["git", "init", "--quiet", watch.project], check=True)
    (watch.project / ".gitignore").write_text("torchkiln.toml\n")
    lines, messages = watch.run(
        nothing,
        watch.write("torchkiln.toml", 'env = { APP_MINE = "1" }\n'),
        watch.write("torchkiln.toml", 'env = { PATH = "/" }\n'),
        watch.write("torchkiln.toml", 'env = { APP_MINE = "2" }\n'),
    )

    assert [files for _, _, files in lines[1:]] == ["no file of the image changed"] * 2
    assert len({digest for digest, _, _ in lines}) == 3
    assert messages.count("error: torchkiln.toml") == 1
    watch.demand_present()


def test_json_has_an_object_for_each_image(watch: Watch, registry: RunningRegistry) -> None:
    to = ("--to", f"{registry.host}/team/json")
    out, _ = watch.output(watch.write("train.py", "two"), arguments=(*to, "--json", "--quiet"))

    first, second = map(json.loads, out.splitlines())
    assert (first["changed"], second["changed"]) == ([], ["train.py"])
    assert second["digest"] == watch.digest()
    assert second["pushed"]["reference"] == f"{registry.host}/team/json@{second['digest']}"
    assert second["pushed"]["tags"] == ["unproven-project"]
    assert 0 < second["pushed"]["bytes_sent"] < 20_000
    assert {*second["seconds"]} == {"build", "total"}
    assert "fsspec 3" in second["reused"]


def test_a_stale_lock_is_told_and_never_made(watch: Watch) -> None:
    """`--watch` reports a stale lock, and never locks. After `lock`, it builds the new packages."""
    small, commands = watch.commands.small, watch.commands
    wheel = small.wheel("einops", "1", "einops/__init__.py")

    def lock() -> None:
        needs = needs_of(small.project, small.cell, small.store)
        other = small.lock(wheel, requirements=["einops"])
        inputs = inputs_digest(needs, small.cell)
        save_project(small.project, replace(other, name=commands.lock.name, inputs=inputs))

    with patch("torchkiln.projects.locking.lock_folder", side_effect=AssertionError):
        lines, messages = watch.run(
            watch.write("requirements.txt", "einops\n"),
            watch.write("train.py", "two"),
            lock,
            (small.project / FILE).unlink,
        )

    stale = f"error: {small.project / FILE}: made from other requirements than requirements.txt has now\n"
    assert messages.count(stale) == 2  # once for each change
    assert messages.count(f"hint: run: torchkiln project lock {small.project}\n") == 2
    assert [files for _, _, files in lines[1:]] == ["requirements.txt, torchkiln.lock.json, train.py"]
    assert f"error: {small.project / FILE}: no such file: the project is not locked\n" in messages
    cell = f"--torch {small.cell.resolution.cell.torch} --cuda {small.cell.resolution.cell.cuda}"
    assert f"hint: run: torchkiln project lock {small.project} {cell}\n" in messages


def test_new_warnings_are_told_once(watch: Watch) -> None:
    lines, messages = watch.run(
        watch.write("sitecustomize.py", ""), watch.write("train.py", "two"), watch.write("a.py", "")
    )

    assert len(lines) == 4
    assert messages.count("warning: Python runs at each start: app/sitecustomize.py") == 1


def test_a_failed_push_is_told_and_the_next_one_sends_everything(
    watch: Watch, registry: RunningRegistry
) -> None:
    with FaultProxy(registry.host) as proxy:

        def fail() -> None:
            proxy.faults = [Fault("status", "PUT", "/manifests/", status=403)]
            watch.write("train.py", "two")()

        to = ("--to", f"{proxy.host}/team/failing", "--tag", "main")
        lines, messages = watch.run(fail, watch.write("train.py", "three"), arguments=to)

    assert [bool(sent) for _, sent, _ in lines] == [True, False, True]
    assert messages.count("error: ") == 1
    assert "access denied" in messages
    manifest = registry.content("team/failing", lines[-1][0])
    assert all(registry.content("team/failing", one["digest"]) for one in json.loads(manifest)["layers"])


def test_the_first_image_must_succeed(watch: Watch) -> None:
    (watch.project / ".env").write_text("KEY=1")

    code, out, messages = watch.commands.build("--watch")

    assert (code, out) == (2, "")
    assert "looks like a secret" in messages


def test_ctrl_c_ends_it_with_130(watch: Watch) -> None:
    """The command runs in a separate process, as a user's does."""
    small = watch.commands.small
    assert watch.commands.build()[0] == 0  # from now on all layers are in the cache
    named = ("--matrix", str(ROOT / "matrix.yaml"), "--images", str(watch.commands.images))
    argv = [str(ROOT / ".venv/bin/python"), str(ROOT / "build.py"), "project", "watch", str(watch.project)]
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(small.folder), "TORCHKILN_CACHE": str(small.store.root)}
    with subprocess.Popen(
        [*argv, *named, *watch.commands.output],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        first = process.stdout.readline()
        watch.write("train.py", "two")()
        second = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, messages = process.communicate()

    assert (process.returncode, out) == (130, ""), messages
    assert LINE.fullmatch(first.rstrip()), messages
    assert (found := LINE.fullmatch(second.rstrip())), messages
    assert (found[1], found[3]) == (watch.digest(), "train.py")
    assert messages.endswith("interrupted; completed work is kept, the next run continues from there\n")
    assert validate(small.layout) == ()
    assert [*small.layout.rglob(".*.????????")] == []
    assert {*open_layout(small.layout).refs()} >= {TAG, "project"}
