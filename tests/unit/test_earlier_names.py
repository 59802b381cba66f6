"""Earlier names of commands work for one release, and name the present command."""

from __future__ import annotations

import pytest

from torchkiln.cli.commands import as_project

HERE = ["--torch", "2.7"]


@pytest.mark.parametrize(
    ("earlier", "present"),
    [
        (["build", "--project", "DIR", *HERE], ["project", "build", "DIR", *HERE]),
        (["build", *HERE, "--project=DIR"], ["project", "build", "DIR", *HERE]),
        (["build", "--to", "R", "--project", "DIR"], ["project", "push", "DIR", "--to", "R"]),
        (["build", "--project", "DIR", "--watch", "--to=R"], ["project", "watch", "DIR", "--to=R"]),
        (["lock", "TAG", "--project", "DIR", "--check"], ["project", "lock", "DIR", "--check", "TAG"]),
        (["smoke", "run", "--project", "DIR"], ["project", "smoke", "DIR"]),
        (["vault", "drop", "V", "--project", "DIR"], ["vault", "drop", "V", "--project", "DIR"]),
        (["build", *HERE], ["build", *HERE]),
        ([], []),
    ],
)
def test_project_was_an_option(earlier: list[str], present: list[str]) -> None:
    assert as_project(earlier) == present
