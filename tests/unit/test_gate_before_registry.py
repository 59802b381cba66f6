"""`publish` sends no request to a registry before all input is read and the gate has cleared the image."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.keys import UNKNOWN_KEY, pem, public_pem
from tests.published import a_built_publisher, a_copied_publisher
from tests.publisher import Publisher
from tests.reports import TAG, found
from tests.servers.registry_server import RegistryServer
from torchkiln.oci.layout import open_layout
from torchkiln.registry.messages import HttpRequest, HttpResponse
from torchkiln.registry.session import Registry
from torchkiln.util.places import ROOT

__all__ = ["a_built_publisher", "a_copied_publisher"]

NOWHERE = "127.0.0.1:9/team/app"  # connection refused


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The list of all requests that were sent to any registry."""
    sent: list[str] = []
    request_once = Registry.request_once

    def recorded(self: Registry, request: HttpRequest) -> HttpResponse:
        sent.append(f"{request.method} {request.url}")
        return request_once(self, request)

    monkeypatch.setattr(Registry, "request_once", recorded)
    return sent


def valid_report(publisher: Publisher) -> str:
    return publisher.signed(publisher.report(open_layout(publisher.layout).image(TAG)))


def unproved(publisher: Publisher, case: str) -> tuple[str, ...]:
    """The arguments of `publish` with a report that does not prove the image."""
    image = open_layout(publisher.layout).image(TAG)
    lab = ("--trust", f"laboratory={publisher.folder / 'lab.pub.pem'}")
    if case == "a check failed":
        failed = publisher.report(image, found("cuda", "failed", "is 0"), verdict="fail")
        return ("--report", publisher.signed(failed), *lab, *publisher.signing)
    if case == "no report":
        return publisher.signing
    report = publisher.report(image, when="2999-01-01T00:00:00Z")
    return ("--report", publisher.signed(report), *lab, *publisher.signing)


@pytest.mark.parametrize("case", ["a check failed", "no report", "of the future"])
def test_an_unproved_image_is_refused_before_any_request(
    publisher: Publisher, requests: list[str], case: str
) -> None:
    """Exit code 7 is the gate's. An earlier version connected to the registry first and gave 9."""
    done = publisher.run("publish", TAG, "--to", NOWHERE, *publisher.here, *unproved(publisher, case))

    assert getattr(done.exception, "exit_code", None) == 7, done.exception
    assert requests == []


def wrong_options(publisher: Publisher) -> dict[str, tuple[tuple[str, ...], int]]:
    """Invalid options of `publish`, with their exit codes."""
    folder = publisher.folder
    (folder / "open.pem").write_bytes(pem(UNKNOWN_KEY))
    (folder / "open.pem").chmod(0o644)
    (folder / "bad.yaml").write_text("torch: [")
    signed = (ROOT / "matrix.yaml").read_text().replace("signed: false", "signed: true")
    (folder / "signed.yaml").write_text(signed)
    (folder / "keys.yaml").write_text(signed.replace("keys: [] ", "keys: [none.pem]"))
    stranger = publisher.write(public_pem(UNKNOWN_KEY), "stranger.pem")
    report = valid_report(publisher)
    return {
        "a key that others can read": (("--key", str(folder / "open.pem")), 2),
        "not a private key": (("--key", stranger), 2),
        "no such key": (("--key", str(folder / "none.pem")), 2),
        "not a public key": (("--trust", f"any={folder / 'open.pem'}"), 2),
        "no such trusted key": (("--trust", "laboratory=none.pem"), 2),
        "a key of another laboratory": (("--trust", f"any={stranger}", "--report", report), 12),
        "an invalid tag": (("--tag", "a b"), 2),
        "a dated tag": (("--tag", f"{TAG}-20261122"), 2),
        "an invalid date": (("--dated", "tomorrow"), 2),
        "an empty reason": (("--override", " "), 2),
        "no such policy": (("--policy", str(folder / "none.yaml")), 2),
        "an invalid policy": (("--policy", str(folder / "bad.yaml")), 2),
        "a policy without the keys that it requires": (("--policy", str(folder / "signed.yaml")), 2),
        "a policy with a missing key file": (("--policy", str(folder / "keys.yaml")), 2),
        "no such suite": (("--suite", str(folder / "none")), 2),
        "no such layout": (("--output", str(folder / "none")), 2),
        "no such lock": (("--images", str(folder / "none")), 5),
        "not a report": (("--report", str(folder / "bad.yaml")), 2),
    }


def test_wrong_options_are_reported_before_any_request(publisher: Publisher, requests: list[str]) -> None:
    publisher.keep(publisher.report(open_layout(publisher.layout).image(TAG)))
    options = wrong_options(publisher)
    ended = {}
    for case, (words, _) in options.items():
        done = publisher.run("publish", TAG, "--to", NOWHERE, *publisher.here, *words)
        ended[case] = getattr(done.exception, "exit_code", None) or done.exit_code

    assert ended == {case: code for case, (_, code) in options.items()}
    assert requests == []


def test_a_cleared_image_and_an_unreachable_registry(publisher: Publisher) -> None:
    done = publisher.publish(NOWHERE, "--report", valid_report(publisher))

    assert getattr(done.exception, "exit_code", None) == 9, done.exception


def test_several_images_are_each_judged_before_any_request(publisher: Publisher, requests: list[str]) -> None:
    """The remaining images are published; if all are refused, no request is sent."""
    with RegistryServer() as server:
        argv = publisher.publishing(f"{server.host}/team/app", "--report", valid_report(publisher), "--json")
        done = publisher.run(*argv, "2.7.1-cuda12.1-cudnn9-devel")
        assert [json.loads(line)["image"] for line in done.stdout.splitlines()] == [TAG]
        assert getattr(done.exception, "exit_code", None) == 2
    before = len(requests)
    failed = publisher.report(
        open_layout(publisher.layout).image(TAG), found("cuda", "failed", "is 0"), verdict="fail"
    )
    both = publisher.publishing(NOWHERE, "--report", publisher.signed(failed))
    done = publisher.run(*both, "2.7.1-cuda12.1-cudnn9-devel")
    assert getattr(done.exception, "exit_code", None) == 7
    assert len(requests) == before


def test_another_image_under_the_requested_tag(publisher: Publisher, requests: list[str]) -> None:
    """The image's own tag must be the tag of the command line."""
    index = publisher.layout / "index.json"
    index.write_text(index.read_text().replace(TAG, "2.6.0-cuda12.1-cudnn9-runtime"))
    report = publisher.signed(
        publisher.report(open_layout(publisher.layout).image("2.6.0-cuda12.1-cudnn9-runtime"))
    )
    argv = publisher.publishing(NOWHERE, "--report", report)
    done = publisher.run(*("2.6.0-cuda12.1-cudnn9-runtime" if word == TAG else word for word in argv))

    assert getattr(done.exception, "exit_code", None) == 2, done.exception
    assert f"the image with this name in the layout is {TAG}" in str(done.exception)
    assert requests == []


def test_a_lock_of_another_cell_in_the_images_folder(publisher: Publisher, requests: list[str]) -> None:
    """Without this check, the image would get the aliases of the other cell."""
    other = "2.7.1-cuda12.1-cudnn9-devel"
    shutil.copy(ROOT / "images" / other / "lock.json", publisher.folder / "images" / TAG / "lock.json")
    done = publisher.publish(NOWHERE, "--report", valid_report(publisher), "--override", "a test")

    assert getattr(done.exception, "exit_code", None) == 5, done.exception
    assert requests == []
