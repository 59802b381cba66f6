"""Mutants for the smoke checks `services` and `user`: a script changes the real image before the check.

Both checks pass in the unchanged image: see test_reproducible.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from tests.listeners import SilentSmokeListener
from tests.needs import nightly
from tests.proof.headline import TAG
from tests.smoke_mutants.mutant import broken
from torchkiln.locks.file import lock_digest
from torchkiln.model.report import Finding
from torchkiln.oci.labels import container_config
from torchkiln.runtimes.capture import OnLine
from torchkiln.runtimes.command import Bind, Command, Exited, RuntimeSettings
from torchkiln.runtimes.runtime import ImageSource, RunnableImage
from torchkiln.runtimes.table import RUNTIMES
from torchkiln.smoke.expected import facts_of
from torchkiln.smoke.pytest_wheels import pytest_wheels
from torchkiln.smoke.run import Checks, SmokeSubject, smoke
from torchkiln.smoke.session import image_and_lock
from torchkiln.smoke.suite import load_suite
from torchkiln.store.store import Store, cache_root
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.proof

SITE = "/opt/venv/lib/python3.11/site-packages"
# The values that a finding lacks if the command does not start.
UNSTARTED = ["exit_code", "ids", "import_failures", "name", "home", "home_writable", "tmp_writable"]
TINI = ("tini_is_parent", "tini_adopts_orphan", "tini_reaps_orphan")


@dataclass(frozen=True)
class Broken:
    """The image after *mutation*, a shell script that runs in each of its containers."""

    image: RunnableImage
    mutation: str
    name: str = "rootfs"
    python: str = "/opt/venv/bin/python"

    def run(
        self, argv: Sequence[str], *, binds: Mapping[str, Path], timeout_s: float, on_line: OnLine
    ) -> Exited:
        bound = tuple(Bind(source=source.resolve(), target=target) for target, source in binds.items())
        words = ("sh", "-ec", f'{self.mutation}\nexec "$@"', "sh", *argv)
        command = Command(argv=words, entrypoint=False, user="0:0", workdir="/", binds=bound)
        return self.image.captured(command, timeout_s=timeout_s, on_line=on_line)

    def killed_for_memory(self) -> int:
        return 0


@dataclass(frozen=True)
class Bench:
    """The unpacked image, and files that the smoke suite needs; `check` runs a check in a broken image."""

    image: RunnableImage
    subject: SmokeSubject
    wheels: Path

    def check(self, id: str, mutation: str, suite: Path = ROOT / "smoke_tests") -> Finding:
        """The finding of the check *id* in the image after *mutation*."""
        checks = Checks(suite=load_suite(suite), only=(id,))
        inside = Broken(self.image, mutation)
        report = smoke(self.subject, inside, checks, wheels=self.wheels, when="2026-11-25T03:00:00Z")
        return report.findings[0]


@pytest.fixture(scope="module")
def bench(image: dict[str, Any], unpacked: Path) -> Bench:
    store, layout = Store(cache_root()), Path(image["layout"])
    found, tag, locked = image_and_lock(TAG, layout, ROOT / "images", store)
    facts = facts_of(
        locked, container_config(found), tag=tag, lock_digest=lock_digest(locked), manifest=found.manifest
    )
    source = ImageSource(ref=TAG, layout=layout, store=store, repository=lambda: "", image=found)
    return Bench(
        image=RUNTIMES["rootfs"].ready(source, RuntimeSettings(), SilentSmokeListener()),
        subject=SmokeSubject(image=found.manifest, tag=tag, facts=facts),
        wheels=pytest_wheels(load_suite().requirements, store),
    )


def by_night(*values: object) -> ParameterSet:
    """A case that only `make nightly` runs. `make proof` has another case with the same faults."""
    return pytest.param(*values, marks=nightly)


def faults(found: Finding) -> list[str]:
    """The values that are out of bounds."""
    return broken({"message": found.message})


@pytest.mark.parametrize(
    ("mutation", "values"),
    [
        by_night("printf '#!/bin/sh\\nshift\\nexec \"$@\"\\n' >/usr/bin/tini", list(TINI)),
        ("rm /usr/bin/tini", ["tini_fault", *TINI, "exit_code_after_sigterm"]),
        by_night(
            # A shell between tini and the command does not forward signals.
            'sed -i \'s/exec "$@" ;;/"$@" ;;/\' /opt/torchkiln/entrypoint',
            ["tini_is_parent", "exit_code_after_sigterm"],
        ),
        (
            "printf '#!/bin/sh\\nexec \"$@\"\\n' >/opt/torchkiln/entrypoint",
            ["entrypoint_exit_code", "prepared", "sshd_test", "password_logins"],
        ),
        by_night("echo 'Nonsense yes' >>/etc/ssh/sshd_config", ["sshd_test", "password_logins"]),
        by_night("rm /usr/sbin/sshd", ["sshd_test", "password_logins"]),
        (
            "sed -i s/PasswordAuthentication.no/PasswordAuthentication\\ yes/"
            " /etc/ssh/sshd_config.d/torchkiln.conf",
            ["password_logins"],
        ),
        ("rm /opt/venv/bin/jupyter", ["jupyter_exit_code", "jupyter_versions"]),
        by_night(f"rm -r {SITE}/jupyterlab", ["jupyter_versions"]),
        ("printf '#!/bin/sh\\nexit 0\\n' >/opt/torchkiln/healthcheck", ["healthcheck_of_refused_port"]),
        ("printf '#!/bin/sh\\nexit 1\\n' >/opt/torchkiln/healthcheck", ["healthcheck_of_command"]),
        ("ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key", ["credentials"]),
        by_night("ssh-keygen -q -t ed25519 -N '' -f /opt/torchkiln/other", ["credentials"]),
        by_night(
            "mkdir -p /opt/venv/etc/jupyter; echo 'c.IdentityProvider.token = \"\"'"
            " >/opt/venv/etc/jupyter/jupyter_server_config.py",
            ["credentials"],
        ),
        by_night("echo machine pypi.example login a password b >/root/.netrc", ["credentials"]),
        by_night("echo 'root:$6$salt$hash:19000:0:99999:7:::' >/etc/shadow", ["credentials"]),
    ],
    ids=lambda value: value.split("/")[-1][:40] if isinstance(value, str) else "",
)
def test_the_check_services_names_each_fault(bench: Bench, mutation: str, values: list[str]) -> None:
    assert faults(bench.check("services", mutation)) == values


@pytest.mark.parametrize(
    ("mutation", "values"),
    [
        by_night(f"chmod 0700 {SITE}/torch", ["import_failures", "unreadable_for_others"]),
        (f"chmod 0600 {SITE}/torch/lib/libtorch_cpu.so", ["import_failures", "unreadable_for_others"]),
        ("chmod 0755 /tmp", ["name", "home", "home_writable", "tmp_writable", "tmp_mode"]),
        by_night("mkdir /tmp/home-12345", ["home", "home_writable"]),
        by_night("chown 0:0 /home/user; chmod 0755 /home/user", ["home"]),
        by_night("rm /usr/lib/x86_64-linux-gnu/libnss_wrapper.so*", ["name"]),
        by_night("chmod 0700 /opt/torchkiln", UNSTARTED),
        ("echo 'exit 3' >/opt/torchkiln/account", UNSTARTED),
    ],
    ids=lambda value: value.split("/")[-1][:40] if isinstance(value, str) else "",
)
def test_the_check_user_names_each_fault(bench: Bench, mutation: str, values: list[str]) -> None:
    assert faults(bench.check("user", mutation)) == values
