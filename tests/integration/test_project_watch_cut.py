"""`project watch` with a change of the code or Ctrl-C at instants drawn from a seed."""

from __future__ import annotations

import json
import os
import random
import sys
import urllib.request
from collections.abc import Callable
from inspect import CO_GENERATOR
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.engine.registry import RunningRegistry, registry
from tests.integration.test_project_watch import Watch, nothing, watch
from tests.needs import nightly
from torchkiln.cli.shared import project_watch
from torchkiln.cli.shared.unproven import Pushes
from torchkiln.oci.image import digest_of
from torchkiln.oci.validate.validate import validate
from torchkiln.projects.build import rebuild_project, source_of

__all__ = ["registry", "watch"]

pytestmark = pytest.mark.proof  # a minute of builds
NUMBERS = [pytest.param(number, marks=[nightly] if number >= 4 else []) for number in range(8)]

SEED = int(os.environ.get("TORCHKILN_TEST_SEED") or random.randrange(1 << 30))


class Instants:
    """Counts the calls of torchkiln's functions during a build, and calls `then` before call number `at`."""

    def __init__(self) -> None:
        self.calls, self.at, self.then = 0, 0, nothing

    def during(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """*function*, in which calls of torchkiln's functions are counted."""

        def counted(frame: Any, event: str, _: object) -> None:
            code = frame.f_code
            # Generators are excluded, because Python ignores exceptions in a generator that is being deleted.
            if event == "call" and "/torchkiln/" in code.co_filename and not code.co_flags & CO_GENERATOR:
                self.calls += 1
                if self.calls == self.at:
                    self.then()

        def called(*arguments: Any, **named: Any) -> Any:
            sys.setprofile(counted)
            try:
                return function(*arguments, **named)
            finally:
                sys.setprofile(None)

        return called


@pytest.mark.parametrize("number", NUMBERS)
def test_a_change_at_any_instant_is_not_lost(watch: Watch, number: int) -> None:
    """The file changes while it is read, or while the image is planned or written."""
    sys.stderr.write(f"TORCHKILN_TEST_SEED={SEED}\n")
    instants, train = Instants(), watch.project / "train.py"

    def measure() -> None:
        instants.calls = 0
        train.write_text("two")

    def disturb() -> None:
        instants.at = random.Random(f"{SEED} {number}").randrange(1, instants.calls)
        instants.calls, instants.then = 0, watch.write("train.py", "four")
        train.write_text("three")

    with (
        patch.object(project_watch, "source_of", instants.during(source_of)),
        patch.object(project_watch, "rebuild_project", instants.during(rebuild_project)),
    ):
        lines, _ = watch.run(measure, disturb)

    assert instants.calls > instants.at > 0
    assert train.read_text() == "four"
    assert len({digest for digest, _, _ in lines}) in (3, 4)  # "three" may not have been read
    watch.demand_present()
    assert validate(watch.commands.small.layout) == ()


# If Ctrl-C comes between open() and its `with`, only the end of the process closes the file.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", NUMBERS)
def test_ctrl_c_at_any_instant_leaves_nothing_half_written(
    watch: Watch, registry: RunningRegistry, number: int
) -> None:
    """Layout and registry have a complete image: either the one before or the one after the change."""
    sys.stderr.write(f"TORCHKILN_TEST_SEED={SEED}\n")
    instants, name = Instants(), f"cut/{number}"

    def interrupt() -> None:
        raise KeyboardInterrupt

    def measure() -> None:
        instants.calls = 0
        watch.write("train.py", "two")()

    def disturb() -> None:
        instants.at = random.Random(f"{SEED} cut {number}").randrange(1, instants.calls)
        instants.calls, instants.then = 0, interrupt
        watch.write("train.py", "three")()

    with (
        patch.object(project_watch, "source_of", instants.during(source_of)),
        patch.object(project_watch, "rebuild_project", instants.during(rebuild_project)),
        patch.object(Pushes, "push", instants.during(Pushes.push)),
    ):
        to = ("--to", f"{registry.host}/{name}", "--tag", "main")
        lines, _ = watch.run(measure, disturb, arguments=to)

    assert instants.calls == instants.at > 0
    assert len(lines) in (2, 3)  # 3 if Ctrl-C came after the build, during the next comparison of files
    layout = watch.commands.small.layout
    assert faults(layout) == []
    accepted = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    url = f"http://{registry.host}/v2/{name}/manifests/main"
    manifest = urllib.request.urlopen(urllib.request.Request(url, headers=accepted)).read()
    assert digest_of(manifest) in (lines[-1][0], watch.digest())
    document = json.loads(manifest)
    assert all(registry.content(name, one["digest"]) for one in (*document["layers"], document["config"]))
    assert watch.commands.build()[0] == 0
    assert faults(layout) == []
    assert [*layout.rglob(".*.????????")] == []


def faults(layout: Path) -> list[str]:
    """The faults of *layout*, except unreferenced blobs, which a later build removes."""
    return [fault.what for fault in validate(layout) if not fault.what.startswith("unreferenced blob")]
