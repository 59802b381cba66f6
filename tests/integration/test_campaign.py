"""A short campaign: each fault once, interruptions at five instants. tests/campaign has a full one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.campaign import host, network
from tests.campaign.instants import IMPATIENT, draw
from tests.campaign.scene import Scene
from tests.campaign.tracer import compiler
from tests.campaign.trials import Disturbance, Reference, provoke_all

pytestmark = [
    pytest.mark.proof,  # minutes
    pytest.mark.skipif(compiler() is None, reason="no C compiler for the tracer: apt-get install gcc"),
]
SEED, JOBS = 1, 5  # more jobs than cores, because they mostly wait


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    """An undisturbed build, to which the disturbed builds are compared; they must not change its files."""
    made = Reference(Scene(tmp_path_factory.mktemp("campaign"), seed=SEED))
    yield made
    assert made.check() == ()


def wrong(reference: Reference, disturbances: list[Disturbance], *, heal: bool = True) -> list[str]:
    records = provoke_all(reference, disturbances, jobs=JOBS, heal=heal)
    assert len(records) == len(disturbances)
    return [f"{record.name} {record.detail}: {fault}" for record in records for fault in record.wrong]


def test_instants(reference: Reference) -> None:
    """A signal interrupts a build at any instant: nothing is lost, and the next run completes the build."""
    reference.measure()
    assert wrong(reference, [IMPATIENT, *itertools.islice(draw(SEED, reference), 5)]) == []


def test_network_and_index(reference: Reference) -> None:
    """A build survives each fault or ends with its own message; the store stays valid."""
    assert wrong(reference, list(network.faults()), heal=False) == []


def test_the_machine(reference: Reference) -> None:
    """The same for faults of disks, limits and clocks. Most work of the builds is done beforehand."""
    disturbances = [replace(fault, start="network") for fault in host.faults()]
    assert wrong(reference, disturbances, heal=False) == []


@pytest.mark.skipif(not host.can_mount(), reason="small and read-only disks are mounts, which require root")
def test_mounts_are_possible() -> None:
    """Skipped if the campaign omits small and read-only disks, so that the results show the omission."""
