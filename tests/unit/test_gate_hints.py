"""The gate's hint names the missing checks, and contains the keys and files that the user gave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.published import a_built_publisher, a_copied_publisher
from tests.publisher import Publisher
from tests.reports import IMAGE, LOCKED, SUITE, TAG, report, signed_report, without
from torchkiln.errors import GateRefused
from torchkiln.gate.gate import clear, judge
from torchkiln.gate.hints import GivenOptions
from torchkiln.matrix.policy import Policy
from torchkiln.model.report import SignedReport

__all__ = ["a_built_publisher", "a_copied_publisher"]

POLICY = Policy(tiers=(0, 1), checks=("nccl-all-reduce",))
SIGNED = Policy(tiers=(0, 1), checks=("nccl-all-reduce", "busbw"), signed=True)


def hint(policy: Policy, given: GivenOptions, *reports: SignedReport) -> list[str]:
    with pytest.raises(GateRefused) as refused:
        clear(judge(reports, policy, LOCKED, SUITE, image=IMAGE), given)
    return refused.value.hint.splitlines()


def test_the_command_names_the_checks_and_the_key_that_was_given() -> None:
    partial = signed_report(without(report(), "nccl-all-reduce", "compile-cpu"), "report.json", "k1")
    given = GivenOptions(key="keys/my kiln.pem", trust=("kiln.pub.pem",), reports=("report.json",))

    assert hint(SIGNED, given, partial) == [
        f"run the missing checks on a host with 2 GPUs: torchkiln smoke {TAG} --only compile-cpu "
        "--only nccl-all-reduce --report FILE --key 'keys/my kiln.pem'",
        "then repeat this command with --report FILE",
    ]


def test_with_a_public_key_alone_the_private_one_is_described() -> None:
    partial = signed_report(without(report(), "nccl-all-reduce"), "report.json", "k1")
    given = GivenOptions(trust=("kiln.pub.pem",), nonce="request-0001")

    assert hint(SIGNED, given, partial) == [
        f"run the missing checks on a host with 2 GPUs: torchkiln smoke {TAG} --only nccl-all-reduce "
        "--nonce request-0001 --report FILE --key KEY.pem",
        "KEY.pem is the private key of kiln.pub.pem",
        "then repeat this command with --report FILE",
    ]


def test_a_report_of_another_machine_needs_a_key() -> None:
    unsigned = SignedReport(name="report.json", report=report(), signed=False, signers=())
    run = (
        "run the missing checks on a host with 2 GPUs: "
        f"torchkiln smoke {TAG} --tier 2 --report FILE --key KEY.pem"
    )
    then = "then repeat this command with --report FILE --trust laboratory=PUBLIC.pem"

    assert hint(POLICY, GivenOptions(), unsigned) == [run, then]
    assert hint(POLICY, GivenOptions(), replace(unsigned, signed=True)) == [
        "if you trust the key that signed the report, name it: --trust laboratory=PUBLIC.pem",
        run,
        then,
    ]


def test_the_hint_names_the_gpus_of_the_policy() -> None:
    policy = Policy(tiers=(0, 1), checks=(), gpus=("8.0", "9.0"))
    own_run = SignedReport(name="run", report=report(), signed=False, signers=(), own=True)

    assert hint(policy, GivenOptions(), own_run) == [
        "run the missing checks on a host with 1 GPU of capability 8.0: "
        f"torchkiln smoke {TAG} --tier 1 --report FILE"
    ]


def test_hints_of_gate_and_publish_contain_their_options(publisher: Publisher) -> None:
    """The hint of `publish` contains its --key only if the gate trusts that key's public part for reports."""
    from torchkiln.oci.layout import open_layout

    image = open_layout(publisher.layout).image(TAG)
    file = publisher.signed(without(publisher.report(image), "nccl-all-reduce"), "report.dsse.json")
    lab, public = str(publisher.folder / "lab.pub.pem"), str(publisher.folder / "publisher.pub.pem")
    gated = publisher.run("gate", TAG, *publisher.here, "--report", file, "--trust", lab).exception
    pushed = publisher.publish("127.0.0.1:1/team/app", "--report", file).exception
    both = publisher.publish("127.0.0.1:1/team/app", "--report", file, "--trust", f"any={public}").exception

    for refused in (gated, pushed):
        assert isinstance(refused, GateRefused)
        assert "--only nccl-all-reduce --report FILE --key KEY.pem" in refused.hint
        assert f"KEY.pem is the private key of {lab}" in refused.hint
    assert isinstance(both, GateRefused)
    assert f"--only nccl-all-reduce --report FILE --key {publisher.folder / 'publisher.pem'}" in both.hint
