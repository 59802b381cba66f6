"""`project build`: one command with the same effect as `build` and then `push`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.engine.registry import RunningRegistry, registry
from tests.faultproxy import Fault, FaultProxy
from tests.integration.test_project_image import Commands
from tests.integration.test_project_report import SOUND
from tests.needs import needs_namespaces
from tests.projects import bench
from torchkiln.oci.layout import open_layout

__all__ = ["registry"]


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    return Commands(bench(tmp_path))


def lines_of(messages: str) -> list[str]:
    """The lines of *messages*, without times, and without lines of blobs, because their order varies."""
    lines = (re.sub(r"\d+\.\d s", "- s", line) for line in messages.splitlines())
    return [line for line in lines if not line.endswith(" in the registry")]


def test_it_pushes_as_push_does(commands: Commands, registry: RunningRegistry) -> None:
    """References, tags and messages are the same, also when a tag moves."""
    for text in ("print('one')\n", "print('two')\n"):
        (commands.small.project / "train.py").write_text(text)
        both = commands.build("--to", f"{registry.host}/both", "--tag", "main", "--tag", "now")
        built = commands.build()
        pushed = commands.run(
            "push", "project", *commands.output, "--to", f"{registry.host}/both", "--tag", "main"
        )

        digest = open_layout(commands.small.layout).image("project").manifest
        assert both[:2] == pushed[:2] == (0, f"{registry.host}/both@{digest}\n"), (both, pushed)
        assert built[:2] == (0, f"{digest}\n")
        assert f"warning: {registry.host}/both@{digest} is unproven: no gate has cleared it" in both[2]
    assert registry.tags("both") == ["main", "now"]
    assert f"{registry.host}/both:now moves from sha256:" in both[2]

    to = ("--to", f"{registry.host}/both")
    apart = commands.build(), commands.run("push", "project", *commands.output, *to)
    again = commands.build(*to)
    assert lines_of(again[2]) == [line for _, _, messages in apart for line in lines_of(messages)]
    assert registry.tags("both") == ["main", "now", "unproven-project"]


@needs_namespaces
def test_an_image_that_fails_its_checks_is_not_pushed(
    tmp_path: Path, registry: RunningRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its digest is printed. `--no-smoke` pushes it."""
    monkeypatch.delenv("TORCHKILN_SMOKE")
    commands = Commands(bench(tmp_path, python=SOUND))
    (commands.small.project / "torchkiln.toml").write_text('test = ["false"]\n')
    to = ("--to", f"{registry.host}/failing", "--tag", "main")

    code, out, messages = commands.build(*to)

    assert f"{registry.host}/failing" not in messages
    digest = open_layout(commands.small.layout).image("project").manifest
    assert (code, out) == (10, f"{digest}\n"), messages
    assert "project: fail: test" in messages
    assert commands.build(*to, "--no-smoke")[:2] == (0, f"{registry.host}/failing@{digest}\n")
    assert registry.tags("failing") == ["main"]


def test_json_has_the_objects_of_both(commands: Commands, registry: RunningRegistry) -> None:
    to = ("--to", f"{registry.host}/team/json", "--json")
    code, out, messages = commands.build(*to, "--quiet")
    assert code == 0, messages
    built = json.loads(commands.build("--json")[1])
    pushed = json.loads(commands.run("push", "project", *commands.output, *to)[1])

    def same(found: dict[str, Any]) -> dict[str, Any]:
        """*found* without the keys whose values differ in a second run."""
        changing = {"seconds", "bytes_sent", "sent", "mounted", "there", "blobs", "reused", "built", "stages"}
        return {key: value for key, value in found.items() if key not in changing}

    found = json.loads(out)
    assert same(found.pop("pushed")) == same(pushed)
    assert pushed["proven"] is False
    assert found.keys() == built.keys()
    assert (found["digest"], found["digest"]) == (built["digest"], pushed["digest"])
    assert messages.splitlines() == [
        f"torchkiln: warning: {pushed['reference']} is unproven: no gate has cleared it",
    ]


def test_a_failed_push_leaves_the_image_in_the_layout(commands: Commands, registry: RunningRegistry) -> None:
    with FaultProxy(registry.host) as proxy:
        to = ("--to", f"{proxy.host}/team/failing", "--tag", "main")
        proxy.faults = [Fault("status", "PUT", "/manifests/", status=403)]
        code, out, messages = commands.build(*to)
        proxy.faults = [Fault("status", "PUT", "/manifests/", status=403)]
        alone = commands.run("push", "project", *commands.output, *to)

    assert (code, out) == alone[:2] == (9, ""), messages
    assert messages.splitlines()[-2:] == alone[2].splitlines()[-2:]
    assert open_layout(commands.small.layout).image("project").manifest in messages


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--to", "localhost:1/a"), 9, "localhost:1: GET /v2/: connection refused"),
        (("--to", "localhost:5000"), 2, "localhost:5000: invalid reference"),
        (("--to", "localhost:1/a", "--tag", "2.7.1-20260101"), 2, "is a dated tag"),
    ],
)
def test_faults_before_the_build(
    commands: Commands, arguments: tuple[str, ...], code: int, message: str
) -> None:
    with patch("torchkiln.util.http.retry.pause", lambda *_: 0.0):
        found, out, messages = commands.build(*arguments)

    assert (found, out) == (code, ""), messages
    assert message in messages
    assert not commands.small.layout.exists()
