"""Settings for all tests."""

import gc
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.docker.scene import scene
from tests.engine.crane import crane
from tests.engine.fixture import engine, podman, second_engine
from tests.engine.registry import registry
from tests.remembered import remember
from tests.workplace import workplace
from torchkiln.index import settings as index_settings

os.environ["TORCHKILN_SMOKE"] = "no"  # tests build images with a fake torch, in which the checks fail

__all__ = ["crane", "engine", "podman", "registry", "scene", "second_engine", "workplace"]


# The slowest test files come first, so that all processes end at about the same time. Files with many
# containers come after tests/docker/, because they use the same engine.
_FIRST = (
    "tests/docker/",
    "tests/integration/site/",
    "tests/integration/test_campaign.py",
    "tests/integration/test_hostile_index.py",
    "tests/integration/test_registry.py",
    "tests/integration/test_installed.py",
    "tests/integration/test_publish.py",
    "tests/integration/test_smoke_bundle.py",
    "tests/integration/test_os_packages.py",
    "tests/integration/test_two_builds.py",
    "tests/unit/test_registry_limits.py",  # waits for time limits
    "tests/unit/test_hostile_",
    "tests/unit/test_terminal.py",
    "tests/integration/test_run_on_docker.py",
    "tests/integration/test_containers.py",
    "tests/integration/test_jupyter.py",
    "tests/integration/test_confined.py",
    "tests/integration/test_ssh.py",
    "tests/integration/",
    "tests/unit/test_workflow",
    "tests/unit/test_smoke_",
    "tests/unit/test_retractions_signed.py",
    "tests/unit/test_verify_published.py",
    "tests/unit/test_project_",
)


_TOGETHER = ("tests/docker/", "tests/integration/site/")
# Files of tests/proof that share the image in an engine, or its unpacked root file system.
_PROOF = {
    f"tests/proof/test_{name}.py": shared
    for shared, names in {
        "engine": ("at_work", "published"),
        "rootfs": (
            "broken_images",
            "edited_image",
            "exporter_image",
            "installed",
            "project_sdist",  # unpacks the base into the same folder of the cache
            "reproducible",
            "sbom",
        ),
    }.items()
    for name in names
}
_ENGINES = {"engine", "second_engine", "podman"}


@pytest.hookimpl(tryfirst=True)  # before the hook that evaluates -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests by `_FIRST`, all others last; give tests that use a container engine the mark `proof`."""

    def rank(item: pytest.Item) -> int:
        return next((at for at, place in enumerate(_FIRST) if item.nodeid.startswith(place)), len(_FIRST))

    items.sort(key=rank)
    for item in items:
        if not _ENGINES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.proof)


def pytest_collection_finish() -> None:
    """Exclude thousands of test objects from garbage collection, which saves 5 % of the CPU time."""
    gc.collect()
    gc.freeze()


class ByEngine(LoadScopeScheduling):
    """Run all tests of a file in one process, like `--dist loadfile`; some folders count as one file.

    The tests of tests/docker use the same names in an engine, those of tests/integration/site one browser.
    `_PROOF` has the groups of files in tests/proof.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return str(Path(path).parent) if path.startswith(_TOGETHER) else _PROOF.get(path, path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByEngine:
    """Replace xdist's scheduler by `ByEngine`, whatever the value of --dist."""
    return ByEngine(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """The number of processes for `-n auto`: the number of cores plus 1, or plus 2 if proofs run.

    Tests often wait, those with a container engine most. Each process needs 10 s of CPU time for collection.
    """
    waiting = 1 if config.option.markexpr == "not proof" else 2
    return len(os.sched_getaffinity(0)) + waiting if config.option.numprocesses == "auto" else None


@pytest.fixture(scope="session", autouse=True)
def _pip_is_asked_once() -> Iterator[None]:
    """Cache the output of `pip config list`: without configuration files, it depends only on PIP_* variables.

    The command takes as long as everything else that `torchkiln lock` does for a small cell.
    """
    real, known = index_settings.pip_config_list, dict[Any, str]()

    def listed(environ: Mapping[str, str]) -> str:
        if environ.get("PIP_CONFIG_FILE") != os.devnull:
            return real(environ)
        variables = frozenset(item for item in environ.items() if item[0].startswith("PIP_"))
        if variables not in known:
            known[variables] = real(environ)
        return known[variables]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_settings, "pip_config_list", listed)
        yield


# No test has a time limit, because machines may be slow or busy. `make test` draws few examples, the same
# each time; `make proof` draws others (--hypothesis-profile=long), and many with NIGHTLY=yes.
_CALM = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "database": None}
settings.register_profile("short", max_examples=25, derandomize=True, **_CALM)
settings.register_profile(
    "long", max_examples=400 if os.environ.get("NIGHTLY") == "yes" else 50, print_blob=True, **_CALM
)
settings.load_profile("short")

remember()
