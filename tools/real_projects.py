"""Locks and builds the projects of real-projects.yaml, runs some Python in each image, and records it.

    .venv/bin/python -m tools.real_projects FOLDER [NAME...]    # FOLDER gets the projects and images

The results go to real-projects.json, from which `make golden` makes a table of examples/projects/MEASURED.md.
No GPU is used here; the table of trainings comes from real-projects-gpu.jsonl, the lines that the scripts in
tools/trainings printed on a GPU host. Each project's sdist comes from the package index, by pip;
nothing of it is kept.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from bench.markdown import table
from torchkiln.projects.file import FILE
from torchkiln.util.files import write_atomic
from torchkiln.util.places import ROOT

LIST, RESULTS = (ROOT / "tools" / f"real-projects.{kind}" for kind in ("yaml", "json"))
TRAINED = ROOT / "tools" / "real-projects-gpu.jsonl"
_CELL = "--torch 2.7 --cuda 12.1"
_LIMIT = 1800  # seconds of one step
_STEPS = ("lock", "build", "import")


def tried(project: Mapping[str, Any], work: Path) -> dict[str, Any]:
    """What happened to *project*, in a new folder in *work*."""
    folder, name = work / project["name"], project["name"]
    shutil.rmtree(folder, ignore_errors=True)
    if "sdist" in project:
        _unpack(project["sdist"], folder)
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in project.get("files", {}).items():
        (folder / file).write_text(text)
    if "prepare" in project:
        subprocess.run(project["prepare"], shell=True, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = {"date": f"{datetime.now(timezone.utc):%Y-%m-%d}", "seconds": {}}
    for step in _STEPS:
        begin = time.monotonic()
        argv = [sys.executable, str(ROOT / "build.py"), *_command(step, project, folder)]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT, check=False)
        found["seconds"][step] = round(time.monotonic() - begin, 1)
        sys.stderr.write(f"{name}: {step}: exit {done.returncode}\n{done.stderr}\n")
        if done.returncode:
            found |= {"failed": step, "exit": done.returncode, "message": _message(done.stderr, work)}
            break
    locked = folder / FILE
    if locked.exists():
        document = json.loads(locked.read_bytes())
        found |= {"parent": document["parent"], "wheels": len(document["wheels"])}
        found["megabytes"] = round(sum(wheel["size"] for wheel in document["wheels"]) / 1e6)
    return found


def _unpack(sdist: str, folder: Path) -> None:
    """The project in the *sdist* (`NAME==VERSION`) as *folder*."""
    inside = folder.with_name(f"{folder.name}.sdist")
    shutil.rmtree(inside, ignore_errors=True)
    options = ["--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(inside)]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, sdist], check=True)
    (archive,) = inside.iterdir()
    with tarfile.open(archive) as tar:
        tar.extractall(inside, filter="data")
    (top,) = (path for path in inside.iterdir() if path.is_dir())
    top.rename(folder)
    shutil.rmtree(inside)


def _command(step: str, project: Mapping[str, Any], folder: Path) -> list[str]:
    """The arguments of torchkiln."""
    layout = ["--output", str(folder.parent / "dist")]
    if step == "lock":
        words = f"{project.get('cell', _CELL)} {project.get('options', '')}".split()
        return ["project", "lock", str(folder), *words]
    if step == "build":
        return ["project", "build", str(folder), "--no-smoke", *layout]
    image = json.loads((folder / FILE).read_bytes())["name"]
    return ["run", *layout, image, "--", "python", "-c", project["check"]]


def _message(stderr: str, work: Path) -> str:
    """The error and the hint, or the last line of a traceback."""
    lines = [line for line in stderr.replace(f"{work}/", "").splitlines() if line.strip()]
    printed = [line for line in lines if line.startswith(("error: ", "hint: "))]
    return "; ".join(printed or lines[-1:])


def page() -> str:
    """The table of all projects."""
    results = json.loads(RESULTS.read_bytes())
    rows = []
    for project in yaml.safe_load(LIST.read_text()):
        found = results.get(project["name"])
        if found is None:
            continue
        source = project["source"] + (f", sdist {project['sdist']}" if "sdist" in project else "")
        seconds = [f"{found['seconds'][step]:.0f} s" if step in found["seconds"] else "" for step in _STEPS]
        rows.append(
            [source, found.get("parent", "").partition("-cudnn")[0], *seconds, _outcome(project, found)]
        )
    titles = ("project", "image", *_STEPS, "what happened, and what it took")
    days = " and ".join(sorted({found["date"] for found in results.values()}))
    head = f"Tried on {days}, on a machine without a GPU."
    return f"{head}\n\n{table(titles, rows)}"


def trainings() -> str:
    """The table of the trainings on GPUs; a cell has a value for each precision, in their order."""
    if not TRAINED.exists():
        return "Training on a GPU was not run.\n"
    runs: dict[str, list[dict[str, Any]]] = {}
    for line in map(json.loads, TRAINED.read_text().splitlines()):
        runs.setdefault(line["project"], []).append(line)
    sources = {project["name"]: project["source"] for project in yaml.safe_load(LIST.read_text())}
    rows = [
        [
            sources[name],
            f"{lines[0]['gpu']}, torch {lines[0]['torch']}",
            " / ".join(line["precision"] for line in lines),
            " / ".join(f"{line['samples_per_s']:,.0f}" for line in lines),
            " / ".join(f"{line['first_loss']:.3g} → {line['last_loss']:.3g}" for line in lines),
            f"{lines[0]['steps']} steps of {lines[0]['batch']}",
        ]
        for name, lines in runs.items()
    ]
    return table(("project", "on", "precision", "samples a second", "loss", "of"), rows)


def _outcome(project: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    asked = f". First: {project['asked']}" if "asked" in project else ""
    if "failed" in found:
        return f"`{found['failed']}` exits with {found['exit']}: {found['message']}{asked}"
    size = f"{found['wheels']} wheels, {found['megabytes']} MB" if found["wheels"] else "nothing"
    return f"locked, built, imported; adds {size}{asked}"


def main() -> None:
    """Try the named projects, and keep their results."""
    work, names = Path(sys.argv[1]).absolute(), sys.argv[2:]
    for project in yaml.safe_load(LIST.read_text()):
        if not names or project["name"] in names:
            found = tried(project, work)
            results = json.loads(RESULTS.read_bytes()) if RESULTS.exists() else {}
            results[project["name"]] = found
            write_atomic(RESULTS, (json.dumps(results, indent=1, sort_keys=True) + "\n").encode())


if __name__ == "__main__":
    main()
