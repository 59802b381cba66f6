"""`publish` reads its input, asks the gate, and only then a registry: who is refused sent nothing."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.keys import STRANGER, pem, public_pem
from tests.press import Press, press
from tests.reports import OTHER, TAG, found
from tests.standin.registry_server import RegistryServer
from torchkiln.oci.layout import open_layout
from torchkiln.registry.request import HttpRequest
from torchkiln.registry.response import HttpResponse
from torchkiln.registry.session import Registry
from torchkiln.util.places import ROOT

NOWHERE = "127.0.0.1:9/team/app"  # nobody listens there


@pytest.fixture(scope="module", name="made")
def a_built_press(tmp_path_factory: pytest.TempPathFactory) -> Press:
    desk = press(tmp_path_factory.mktemp("made"))
    desk.build()
    return desk


@pytest.fixture
def desk(made: Press, tmp_path: Path) -> Press:
    return Press(folder=shutil.copytree(made.folder, tmp_path / "desk"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What any registry was asked."""
    seen: list[str] = []
    ask = Registry.request_once

    def noted(self: Registry, request: HttpRequest) -> HttpResponse:
        seen.append(f"{request.method} {request.url}")
        return ask(self, request)

    monkeypatch.setattr(Registry, "request_once", noted)
    return seen


def good(desk: Press) -> str:
    return desk.signed(desk.report(open_layout(desk.layout).image(TAG)))


def unproved(desk: Press, case: str) -> tuple[str, ...]:
    """Arguments with a report that proves nothing."""
    image = open_layout(desk.layout).image(TAG)
    told = desk.report(image)
    lab = ("--trust", str(desk.folder / "lab.pub.pem"))
    key = ("--key", str(desk.folder / "publisher.pem"))
    if case == "a check failed":
        failed = desk.report(image, found("cuda", "failed", "is 0"), verdict="fail")
        return ("--report", desk.signed(failed), *lab, *key)
    if case == "no report":
        return key
    if case == "of another image":
        other = replace(told, image=OTHER)
        return ("--report", desk.signed(other), *lab, *key)
    if case == "of the future":
        return ("--report", desk.signed(desk.report(image, when="2999-01-01T00:00:00Z")), *lab, *key)
    if case == "unsigned":
        return ("--report", desk.write(told, "plain.json"), *lab, *key)
    return ("--report", desk.write(told, "plain.json"), *key)


@pytest.mark.parametrize(
    "case",
    ["a check failed", "no report", "of another image", "of the future", "unsigned", "nobody's, no --trust"],
)
def test_what_is_not_proved_is_refused_before_a_registry_is_asked(
    desk: Press, asked: list[str], case: str
) -> None:
    """Exit 7, though nobody listens where it should go; it was 9."""
    done = desk.run("publish", TAG, "--to", NOWHERE, *desk.here, *unproved(desk, case))

    assert getattr(done.exception, "exit_code", None) == 7, done.exception
    assert asked == []


def slips(desk: Press) -> dict[str, tuple[tuple[str, ...], int]]:
    """Options that are wrong, each with how the command ends."""
    folder = desk.folder
    (folder / "open.pem").write_bytes(pem(STRANGER))
    (folder / "open.pem").chmod(0o644)
    (folder / "bad.yaml").write_text("torch: [")
    signed = (ROOT / "matrix.yaml").read_text().replace("signed: false", "signed: true")
    (folder / "signed.yaml").write_text(signed)
    (folder / "keys.yaml").write_text(signed.replace("keys: [] ", "keys: [none.pem]"))
    stranger = desk.write(public_pem(STRANGER), "stranger.pem")
    return {
        "a key are too open": (("--key", str(folder / "open.pem")), 2),
        "a key that is none": (("--key", stranger), 2),
        "no such key": (("--key", str(folder / "none.pem")), 2),
        "a trusted key that is none": (("--trust", str(folder / "open.pem")), 2),
        "no such trusted key": (("--trust", "laboratory=none.pem"), 2),
        "a key of another laboratory": (("--trust", stranger, "--report", good(desk)), 12),
        "no tag": (("--tag", "a b"), 2),
        "a dated tag": (("--tag", f"{TAG}-20261122"), 2),
        "no day": (("--dated", "tomorrow"), 2),
        "no reason": (("--override", " "), 2),
        "no policy": (("--policy", str(folder / "none.yaml")), 2),
        "a policy that is none": (("--policy", str(folder / "bad.yaml")), 2),
        "a policy that wants keys": (("--policy", str(folder / "signed.yaml")), 2),
        "a policy whose key is not there": (("--policy", str(folder / "keys.yaml")), 2),
        "no such suite": (("--suite", str(folder / "none")), 2),
        "no such layout": (("--output", str(folder / "none")), 2),
        "no such lock": (("--images", str(folder / "none")), 5),
        "a report that is none": (("--report", str(folder / "bad.yaml")), 2),
    }


SLIPS = [
    "a key are too open",
    "a key that is none",
    "no such key",
    "a trusted key that is none",
    "no such trusted key",
    "a key of another laboratory",
    "no tag",
    "a dated tag",
    "no day",
    "no reason",
    "no policy",
    "a policy that is none",
    "a policy that wants keys",
    "a policy whose key is not there",
    "no such suite",
    "no such layout",
    "no such lock",
    "a report that is none",
]


@pytest.mark.parametrize("case", SLIPS)
def test_what_is_asked_wrongly_is_told_before_a_registry_is_asked(
    desk: Press, asked: list[str], case: str
) -> None:
    words, code = slips(desk)[case]
    desk.keep(desk.report(open_layout(desk.layout).image(TAG)))
    done = desk.run("publish", TAG, "--to", NOWHERE, *desk.here, *words)

    ended = getattr(done.exception, "exit_code", None) or done.exit_code
    assert ended == code, done.exception
    assert asked == []


def test_what_is_proved_and_cannot_be_sent(desk: Press) -> None:
    done = desk.publish(NOWHERE, "--report", good(desk))

    assert getattr(done.exception, "exit_code", None) == 9, done.exception


def test_of_several_all_are_judged_first(desk: Press, asked: list[str]) -> None:
    """One that is refused keeps no other back; where all are, no registry is asked."""
    with RegistryServer() as server:
        argv = desk.publishing(f"{server.host}/team/app", "--report", good(desk), "--json")
        done = desk.run(*argv, "2.7.1-cuda12.1-cudnn9-devel")
        assert [json.loads(line)["image"] for line in done.stdout.splitlines()] == [TAG]
        assert getattr(done.exception, "exit_code", None) == 2
    before = len(asked)
    failed = desk.report(open_layout(desk.layout).image(TAG), found("cuda", "failed", "is 0"), verdict="fail")
    both = desk.publishing(NOWHERE, "--report", desk.signed(failed))
    done = desk.run(*both, "2.7.1-cuda12.1-cudnn9-devel")
    assert getattr(done.exception, "exit_code", None) in (2, 7)
    assert len(asked) == before


def test_another_image_under_the_name_that_was_asked_for(desk: Press, asked: list[str]) -> None:
    """The layout's index is no promise: what was asked for is what is published, or nothing is."""
    index = desk.layout / "index.json"
    index.write_text(index.read_text().replace(TAG, "2.6.0-cuda12.1-cudnn9-runtime"))
    report = desk.signed(desk.report(open_layout(desk.layout).image("2.6.0-cuda12.1-cudnn9-runtime")))
    argv = desk.publishing(NOWHERE, "--report", report)
    done = desk.run(*("2.6.0-cuda12.1-cudnn9-runtime" if word == TAG else word for word in argv))

    assert getattr(done.exception, "exit_code", None) == 2, done.exception
    assert f"the layout has {TAG} under this name" in str(done.exception)
    assert asked == []


def test_a_lock_of_another_cell_in_the_image_s_folder(desk: Press, asked: list[str]) -> None:
    """Its names would have been the other cell's aliases."""
    other = "2.7.1-cuda12.1-cudnn9-devel"
    shutil.copy(ROOT / "images" / other / "lock.json", desk.folder / "images" / TAG / "lock.json")
    done = desk.publish(NOWHERE, "--report", good(desk), "--override", "a test")

    assert getattr(done.exception, "exit_code", None) in (2, 5), done.exception
    assert asked == []
