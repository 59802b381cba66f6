"""`build` runs the checks in the image that it built: the exit code, --json, kept runs, hosts that cannot."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import forked
from tests.integration.test_project_image import Commands
from tests.integration.test_project_report import SOUND
from tests.needs import needs_namespaces
from tests.projects import TAG, bench
from tests.reports import json_lines
from torchkiln.errors import BuildFailed
from torchkiln.oci.layout import open_layout
from torchkiln.oci.unpack import root_of
from torchkiln.runtimes import rootfs
from torchkiln.smoke import session as sessions
from torchkiln.smoke.suite import load_suite
from torchkiln.util.places import ROOT

RUN = f"torchkiln smoke {TAG}"
TIER0 = tuple(check.id for check in load_suite().checks if check.tier == 0)
WHOLE = "device-code-is-whole"


def event(name: str, outcome: str) -> Mapping[str, object]:
    found = {"outcome": outcome, "message": "", "measured": {"x": 1}, "threshold": {"x": {"equals": 1}}}
    if name == "device-code":
        found |= {"outcome": "not-applicable", "message": WHOLE}
    if outcome == "failed":
        found["message"] = "No space left on device" if name == "user" else "torch is broken"
    return {"event": "finding", "id": name, "tier": 0, "seconds": 1.0, **found}


def python(*failed: str) -> str:
    """A script in place of the image's Python: it prints a runner's output, in which *failed* failed."""
    lines = json_lines(
        *(event(name, "failed" if name in failed else "passed") for name in TIER0), {"event": "end"}
    )
    shebang, begin, *rest = SOUND.splitlines()
    return "\n".join((shebang, begin, "*runner.py*) cat <<'END'", lines.decode() + "END", ";;", *rest, ""))


class Builds(Commands):
    """Builds cells and projects, whose images are checked."""

    def cell(self, *arguments: str) -> tuple[int, str, str]:
        named = ("--matrix", str(ROOT / "matrix.yaml"), "--images", str(self.images))
        return self.run("build", TAG, *named, *self.output, *arguments)

    def is_in_layout(self, digest: str) -> bool:
        return open_layout(self.small.layout).image(digest).manifest == digest

    def is_unpacked(self, digest: str) -> bool:
        return root_of(self.small.store, open_layout(self.small.layout).image(digest).manifest).is_dir()


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The user's environment; and pip, which would query an index, is not called."""
    monkeypatch.delenv("TORCHKILN_SMOKE")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("TORCHKILN_INDEX_PYTORCH", raising=False)
    monkeypatch.setattr(sessions, "pytest_wheels", lambda *_: tmp_path)


@needs_namespaces
def test_the_image_is_tested_once(tmp_path: Path) -> None:
    """Each check is printed when it ends. The next build of the same image does not test it again."""
    builds = Builds(bench(tmp_path, python=python()))

    code, out, messages = builds.cell("--json")

    assert code == 0, messages
    result = json.loads(out)
    assert result["smoke"]["verdict"] == "pass"
    assert set(result["smoke"]["checks"]) == set(TIER0)
    printed = {name for name in TIER0 if f"\npassed         {name} " in messages}
    assert printed == {*TIER0} - {"device-code"}
    code, out, messages = builds.cell("--max-size", "9B")
    assert (code, out) == (0, result["digest"] + "\n")
    assert "more than 9 B, its bound; " in messages
    assert "smoke: passed at " in messages
    assert f"with the same image, suite and GPUs; {RUN} --force runs again\n" in messages
    assert "smoke: running" not in messages
    assert [name for name in TIER0 if f" {name} " in messages] == []


@needs_namespaces
def test_a_failed_check_ends_the_build_and_keeps_the_image(tmp_path: Path) -> None:
    builds = Builds(bench(tmp_path, python=python("import")))

    for arguments in (("--json",), ("--json", "--quiet")):
        code, out, messages = builds.cell(*arguments)
        result = json.loads(out)
        assert code == 10
        assert result["smoke"]["verdict"] == "fail"
        assert result["smoke"]["checks"]["import"] == "failed"
        assert f"{TAG}: fail: import" in messages
        assert "torch is broken" in messages
        assert ("running the checks" in messages) == ("--quiet" not in arguments)
        assert builds.is_in_layout(result["digest"])
        assert builds.is_unpacked(result["digest"])


@needs_namespaces
def test_a_passed_build_is_quiet(tmp_path: Path) -> None:
    code, out, messages = Builds(bench(tmp_path, python=python())).cell("--quiet")

    assert (code, messages) == (0, "")
    assert out.startswith("sha256:")


@needs_namespaces
def test_a_fault_of_the_host_is_an_error_only_if_the_tests_are_demanded(tmp_path: Path) -> None:
    builds = Builds(bench(tmp_path, python=python("user")))

    code, out, messages = builds.cell("--json")
    assert (code, json.loads(out)["smoke"]["verdict"]) == (0, "inconclusive")
    assert f"smoke: not tested: {TAG}: inconclusive: user" in messages
    assert [builds.cell(*words)[0] for words in (("--smoke",), ("--tier", "0"))] == [11, 11]


@pytest.mark.parametrize("words", [("--no-smoke",), ("--dry-run",)])
def test_no_test_runs(tmp_path: Path, words: tuple[str, ...]) -> None:
    builds = Builds(bench(tmp_path, python=python("import")))

    code, _, messages = builds.cell(*words)
    assert (code, "smoke:" in messages) == (0, False), messages
    if words == ("--no-smoke",):
        code, out, messages = builds.cell("--json", *words)
        assert (code, "smoke" in json.loads(out)) == (0, False), messages


def test_an_engine_builds_without_tests(tmp_path: Path) -> None:
    """`--no-smoke` says so; `--smoke` is refused. Here the engine cannot be reached."""
    environ = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none"}
    words = ("build", TAG, "--engine", "docker")

    assert forked.run((*words, "--no-smoke"), env=environ).returncode == 8
    refused = forked.run((*words, "--smoke"), env=environ)
    assert (refused.returncode, "--smoke is for --engine embedded" in refused.stderr) == (2, True)


@needs_namespaces
def test_the_variable_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds = Builds(bench(tmp_path, python=python("import")))
    monkeypatch.setenv("TORCHKILN_SMOKE", "no")

    assert builds.cell()[0] == 0
    assert [builds.cell(*words)[0] for words in (("--smoke",), ("--tier", "0"))] == [10, 10]
    monkeypatch.setenv("TORCHKILN_SMOKE", "always")
    assert "'always' is not a valid boolean" in builds.cell()[2]


def test_a_host_without_namespaces_builds_without_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is unpacked. A build whose tests are demanded fails."""
    builds = Builds(bench(tmp_path, python=python()))
    enter = tmp_path / "enter.py"
    enter.write_text('import os, sys\nos.write(int(sys.argv[2]), b"unshare: Operation not permitted")\n')
    monkeypatch.setattr(rootfs, "_ENTER", enter)

    code, out, messages = builds.cell("--json")

    assert code == 0, messages
    result = json.loads(out)
    why = "the rootfs runtime cannot start a container: unshare: Operation not permitted"
    assert result["smoke"] == {"verdict": None, "why": why}
    assert f"smoke: not tested: {why}\n" in messages
    assert "but `torchkiln gate` refuses it" in messages
    assert f"hint: run as root, or allow user namespaces (sysctl user.max_user_namespaces); then: {RUN}" in (
        messages
    )
    assert builds.is_in_layout(result["digest"])
    assert not builds.is_unpacked(result["digest"])
    assert builds.cell("--smoke")[0] == 8
    gate = builds.run("gate", TAG, "--images", str(builds.images), *builds.output)
    assert gate[0] == 7


@needs_namespaces
def test_without_an_index_for_pytest_the_build_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> Path:
        raise BuildFailed("cannot download pytest", hint="check the index")

    monkeypatch.setattr(sessions, "pytest_wheels", refuses)
    code, _, messages = Builds(bench(tmp_path, python=python())).cell()

    assert code == 0
    assert "smoke: not tested: cannot download pytest" in messages
    assert "hint: check the index; then: " in messages


@needs_namespaces
def test_a_project_is_tested_once(tmp_path: Path) -> None:
    builds = Builds(bench(tmp_path, python=python()))
    (builds.small.project / "torchkiln.toml").write_text('test = ["python", "-m", "selftest"]\n')

    code, out, messages = builds.build("--json")

    assert code == 0, messages
    smoke = json.loads(out)["smoke"]
    names = ("import", "pip-check", "linkage", "test")
    assert smoke == {"verdict": "pass", "checks": dict.fromkeys(names, "passed")}
    code, _, messages = builds.build()
    assert code == 0
    assert "smoke: passed at " in messages
    assert "smoke: running" not in messages
    assert "smoke: running" in builds.smoke()[2]


@needs_namespaces
def test_a_project_whose_test_fails(tmp_path: Path) -> None:
    builds = Builds(bench(tmp_path, python=python()))
    (builds.small.project / "torchkiln.toml").write_text('test = ["false"]\n')

    code, out, messages = builds.build("--json")
    assert (code, json.loads(out)["smoke"]["verdict"]) == (10, "fail"), messages
    assert "project: fail: test" in messages
    assert builds.build("--no-smoke")[0] == 0


@needs_namespaces
def test_a_laxer_run_of_a_project_does_not_count(tmp_path: Path) -> None:
    """A run that allowed libraries to be missing does not answer a build, which allows none."""
    builds = Builds(bench(tmp_path, python=python()))
    assert builds.build("--no-smoke")[0] == 0
    assert builds.smoke("--allow-missing", "fsspec")[0] == 0

    assert "smoke: running" in builds.build()[2]
    assert "smoke: passed at " in builds.build()[2]


@needs_namespaces
def test_of_several_images_none_stays_unpacked(tmp_path: Path) -> None:
    """The second cell needs PyTorch's own index, which is not configured."""
    builds = Builds(bench(tmp_path, python=python("import")))
    named = ("--matrix", str(ROOT / "matrix.yaml"), "--images", str(builds.images), *builds.output)

    code, out, messages = builds.run("build", "--torch", "2.7.1", "--cuda", "12.1,11.8", *named, "--json")

    built, last = (json.loads(line) for line in out.splitlines())
    assert (built["smoke"]["verdict"], last["built"], last["failed"]) == ("fail", 0, 2), messages
    assert (code, sorted(last["codes"])) == (10, [4, 10])
    assert builds.is_in_layout(built["digest"])
    assert not builds.is_unpacked(built["digest"])
