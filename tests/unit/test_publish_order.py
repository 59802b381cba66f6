"""`publish`: what goes with an image is there before its names, and no other image than the cleared one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.press import Press, press
from tests.reports import TAG
from tests.standin.registry_server import RegistryServer
from torchkiln.model.digest import Digest
from torchkiln.publish import session as module
from torchkiln.publish.publish import PreparedImage, PublishedImage, publish

NAME = "team/app"


@pytest.fixture
def desk(tmp_path: Path) -> Press:
    return press(tmp_path / "desk")


@pytest.fixture(params=[True, False], ids=["referrers", "by a tag"])
def server(request: pytest.FixtureRequest) -> Iterator[RegistryServer]:
    with RegistryServer() as found:
        found.manners.lists_referrers = request.param
        yield found


def published(desk: Press, server: RegistryServer) -> list[str]:
    """The names under which manifests were put, in that order."""
    image = desk.build()
    report = desk.signed(desk.report(image))
    done = desk.publish(f"{server.host}/{NAME}", "--report", report, "--dated", "20261122")
    assert done.exit_code == 0, done.exception
    return list(server.repository(NAME).manifests)


def test_first_the_image_then_what_goes_with_it_then_its_names(desk: Press, server: RegistryServer) -> None:
    """So that whoever finds a name finds all the rest; and the name that never moves before those that do."""
    put = published(desk, server)
    image = json.loads(server.repository(NAME).manifests[put[0]])
    there = next(number for number, name in enumerate(put) if not name.startswith("sha256"))

    assert image["config"]["mediaType"] == "application/vnd.oci.image.config.v1+json"
    assert all(name.startswith("sha256") for name in put[:there])
    assert put[there] == f"{TAG}-20261122"
    assert put[there + 1] == TAG
    assert not any(name.startswith("sha256") for name in put[there:])


def test_another_image_than_the_one_that_was_cleared(
    desk: Press, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layout's image is another one when it is to be sent: somebody built meanwhile."""

    def late(ready: PreparedImage, *more: Any) -> PublishedImage:
        other = replace(ready.image, manifest=Digest("sha256:" + "5" * 64))
        return publish(replace(ready, image=other), *more)

    monkeypatch.setattr(module, "publish", late)
    report = desk.signed(desk.report(desk.build()))
    done = desk.publish(f"{server.host}/{NAME}", "--report", report)

    assert getattr(done.exception, "exit_code", None) == 2, done.exception
    assert "was cleared" in str(done.exception)
    assert server.repository(NAME).manifests == {}
