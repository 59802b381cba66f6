"""The files of `plan --as`: by schema, and by running every command that they contain."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.cells import planned_cell, small_wheels
from tests.many_scene import LAYERS, Scene, a_scene, digests, made, needs_base
from tests.unit.test_workflow_files import schema, zizmor
from torchkiln.engine.cache_keys import layer_name
from torchkiln.engine.shared_layers import shared_layers
from torchkiln.jobs.formats import FORMATS
from torchkiln.jobs.graph import Job, groups, jobs_of

__all__ = ["a_scene"]
CACHE = ("--cache-from", "oci://ghcr.io/octo/cache", "--cache-to", "oci://ghcr.io/octo/cache")
# Runs each task of an array at once, as Slurm does with one node; its options and ids are recorded.
_SBATCH = """\
#!/bin/sh
echo "$@" >> sbatch.log
number=$(wc -l < sbatch.log)
for word in "$@"; do case $word in --array=0-*) last=${word#--array=0-} ;; esac; done
cat > job.sh
for task in $(seq 0 "$last"); do SLURM_ARRAY_TASK_ID=$task sh job.sh >> jobs.out || exit 1; done
echo "$number;cluster"
"""


def a_job(name: str, *needs: str) -> Job:
    return Job(name=name, title=name, arguments=("build", name), needs=needs, digest=None)


def tool(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def run_lines(many: Scene, script: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run *script* on one machine; `torchkiln` prints JSON."""
    tool(
        folder / "bin",
        "torchkiln",
        f'#!/bin/sh\ncd {many.folder} && exec {" ".join(many.argv())} "$@" --json\n',
    )
    env = many.environ(folder.name) | environ
    env["PATH"] = f"{folder / 'bin'}:{env['PATH']}"
    return subprocess.run(["bash", "-euc", script], env=env, cwd=folder, capture_output=True, text=True)


# --- the graph --------------------------------------------------------------------------------------


def test_a_shared_layer_belongs_to_the_first_image(tmp_path: Path) -> None:
    """Images need the jobs of all their layers; wheel layers need the base's job."""
    plans = [planned_cell(small_wheels(tmp_path / version, version)) for version in ("1", "2")]
    plans[1] = replace(plans[1], tag="second")
    jobs = jobs_of(
        [(plan, None) for plan in plans], ("--images", "i"), ("--output", "o"), only_recorded=False
    )
    names = [f"layer-{layer_name(layer)}" for layer in shared_layers(plans[0])]
    base, torch, triton, rest = names

    first, second = (next(job for job in jobs if job.name == plan.tag) for plan in plans)
    assert [job.name for job in jobs[:5]] == [*names, plans[0].tag]
    assert first.needs == tuple(names)
    assert second.needs[:3] == (base, torch, triton)
    assert second.needs[3] not in names
    assert len(jobs) == 7
    assert {job.needs for job in jobs if job.name in (torch, triton, rest)} == {(base,)}
    assert jobs[1].arguments == ("build", first.name, "--locked", "--layer", torch[6:], "--images", "i")
    assert first.arguments == (
        "build",
        first.name,
        "--locked",
        "--no-smoke",
        "--images",
        "i",
        "--output",
        "o",
    )


def test_groups_are_levels_of_limited_size() -> None:
    jobs = [a_job("base"), *(a_job(f"l{n}", "base") for n in range(5)), a_job("image", "l4"), a_job("other")]
    assert [[job.name for job in group] for group in groups(jobs, 3)] == [
        ["base", "other"],
        ["l0", "l1", "l2"],
        ["l3", "l4"],
        ["image"],
    ]


def test_a_thousand_cells_take_a_second() -> None:
    """20,000 jobs in each format."""
    jobs = [a_job("base"), *(a_job(f"layer-{n}", "base") for n in range(19_000))]
    jobs += [a_job(f"tag-{n}", *(f"layer-{n * 19 + k}" for k in range(19))) for n in range(1000)]
    for name, write in FORMATS.items():
        started = time.process_time()
        assert "tag-999" in write(jobs), name
        assert time.process_time() - started < 1.0, name


# --- files ------------------------------------------------------------------------------------------


@needs_base
def test_slurm_submits_each_group_after_the_one_before(many: Scene, tmp_path: Path) -> None:
    tool(tmp_path / "bin", "sbatch", _SBATCH)
    shared = str(tmp_path / "shared")
    script = many.plan("slurm", "--cache-from", shared, "--cache-to", shared)
    (tmp_path / "plan.sh").write_text(script)
    done = run_lines(many, "sh plan.sh --partition=main", tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "2", "3"]
    calls = (tmp_path / "sbatch.log").read_text().splitlines()
    usual = "--parsable --requeue --job-name=torchkiln --array=0-"
    after = [f" --dependency=afterany:{number}" for number in (1, 2)]
    last = f"{LAYERS - 2}"
    assert calls == [f"{usual}{end} --partition=main" for end in ("0", f"{last}{after[0]}", f"2{after[1]}")]
    output = (tmp_path / "jobs.out").read_text()
    assert (digests(output), made(output)) == (many.digests, {"made": LAYERS})


def of_github(text: str, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Each `run:` line with its environment. Neither GitHub's schema nor zizmor finds a fault."""
    file = folder / ".github/workflows/torchkiln.yml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert (schema("github-workflows", file), zizmor(file.parent)) == ("", "")
    for number, (name, job) in enumerate(yaml.load(text, Loader=yaml.BaseLoader)["jobs"].items()):
        assert (name, job.get("needs")) == (f"group-{number}", f"group-{number - 1}" if number else None)
        for row in job["strategy"]["matrix"]["include"]:
            environ = {"ARGUMENTS": row["arguments"], "TOKEN": "t0ken", "GITHUB_ACTOR": "octo"}
            yield from ((step["run"], environ) for step in job["steps"] if "run" in step)


def of_kubernetes(text: str, _folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The command of each index. Kubernetes' schema finds no fault."""
    for document, count in zip(yaml.safe_load_all(text), (1, LAYERS - 1, 3), strict=True):
        kubernetes_validate.validate(document, "1.37", strict=True)
        assert document["spec"]["completions"] == count
        (container,) = document["spec"]["template"]["spec"]["containers"]
        shell, option, script = container["command"]
        assert (shell, option) == ("sh", "-c")
        yield from ((script, {"JOB_COMPLETION_INDEX": str(index)}) for index in range(count))


@needs_base
@pytest.mark.proof  # importing the schemas is slow
@pytest.mark.parametrize(("form", "commands"), [("github", of_github), ("k8s", of_kubernetes)])
def test_every_command_runs(many: Scene, tmp_path: Path, form: str, commands: Any) -> None:
    tool(tmp_path / "bin", "docker", '#!/bin/sh\necho "$* $(cat)" >> docker.log\n')
    tool(tmp_path / "bin", "make", "#!/bin/sh\nmkdir -p .venv && ln -sfn ../bin .venv/bin\n")
    output, shared = "", str(tmp_path / "shared")
    for script, environ in commands(many.plan(form, *CACHE), tmp_path):
        here = {name: value.replace(CACHE[1], shared) for name, value in environ.items()}
        done = run_lines(many, script.replace(CACHE[1], shared), tmp_path, **here)
        assert done.returncode == 0, done.stderr
        output += done.stdout
    assert (digests(output), made(output)) == (many.digests, {"made": LAYERS})
    logins = set((tmp_path / "docker.log").read_text().splitlines()) if form == "github" else set()
    assert logins <= {"login --username octo --password-stdin ghcr.io t0ken"}
    assert bool(logins) == (form == "github")
