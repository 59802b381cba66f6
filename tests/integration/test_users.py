"""Containers whose user is not root: unknown to the image, without capabilities, on a sealed root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.engine.place import shared
from tests.workplace import Workplace

__all__ = ["shared"]

pytestmark = pytest.mark.network  # wheels, and where the cache has none, the base

NOBODY_KNOWS = ("--user", "12345:12345")
# What Kubernetes demands of a pod under the restricted standard; the seccomp profile is the engine's own.
RESTRICTED = (*NOBODY_KNOWS, "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
SEALED = (*RESTRICTED, "--read-only", "--tmpfs", "/tmp")


@pytest.mark.parametrize(
    "options", [NOBODY_KNOWS, RESTRICTED, SEALED], ids=["unknown", "restricted", "sealed"]
)
def test_jupyter_runs_as_anybody(workplace: Workplace, options: tuple[str, ...]) -> None:
    with workplace.started(*options) as container:
        container.says("is running at")
        container.inside("/opt/torchkiln/healthcheck")
        assert container.inside("ps", "-o", "uid=", "-C", "jupyter-lab").split() == ["12345"]
        assert "SSH: off, it needs root" in container.logs()


def test_what_is_made_in_a_bound_workspace_is_the_users(workplace: Workplace, shared: Path) -> None:
    """And not root's, whom nobody on the host could ask to delete it."""
    os.chown(shared, 12345, 12345)
    code = "import numpy; numpy.save('made.npy', numpy.arange(3))"
    ran = workplace.run(*NOBODY_KNOWS, "--volume", f"{shared}:/workspace", command=["python", "-c", code])

    assert ran.returncode == 0, ran.stderr
    found = (shared / "made.npy").stat()
    assert (found.st_uid, found.st_gid) == (12345, 12345)


def test_nobody_else_may_write_the_image(workplace: Workplace) -> None:
    """No folder or file of the image is open to a user who is not root, but those that are everybody's."""
    looked = "find / -xdev -writable -not -type l -not -path '/proc/*' -not -path '/dev/*' 2>/dev/null"
    ran = workplace.run(*NOBODY_KNOWS, command=["sh", "-c", looked])

    assert set(ran.stdout.split()) <= {"/tmp", "/var/tmp", "/workspace", "/run/lock", "/var/lock"}, ran.stdout
