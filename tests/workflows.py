"""Run workflows locally: each job's `run:` lines in a temporary checkout, and simple replacements of actions.

For slow programs and programs of other machines, PATH has a stub that records its arguments. A test sets
the values of expressions. A missing value is an error, unlike on GitHub, where it is empty.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from torchkiln.util.places import ROOT

GITHUB = ROOT / ".github"
FILES = sorted((GITHUB / "workflows").glob("*.yml"))
ACTION = GITHUB / "actions/torch-gate/action.yml"
GITLAB = ROOT / "docs/ci/gitlab-ci.yml"
_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_NAME = re.compile(
    r"(?P<text>'(?:[^']|'')*')|(?P<name>[A-Za-z_][\w-]*(?:\.[\w-]+)*)(?P<call>\()?|\|\||&&|!(?!=)"
)
_WORDS = {"||": " or ", "&&": " and ", "!": " not "}

Values = Mapping[str, str]


def loaded(file: Path) -> dict[str, Any]:
    """A workflow or an action; every scalar is text, so that `on` is not a boolean."""
    document: dict[str, Any] = yaml.load(file.read_text(), Loader=yaml.BaseLoader)
    return document


def jobs() -> Iterator[tuple[str, str]]:
    """Every job with steps, as file and name, and the composite action."""
    for file in FILES:
        yield from ((file.name, name) for name, job in loaded(file)["jobs"].items() if "steps" in job)
    yield ("action.yml", "torch-gate")


def evaluate(expression: str, values: Values, *, failed: bool = False) -> Any:
    """The value of *expression*; supports only the syntax that torchkiln's workflows use."""

    def word(found: re.Match[str]) -> str:
        if found["text"]:
            return repr(found["text"][1:-1].replace("''", "'"))
        if found["call"]:
            return f"_call[{found['name']!r}]("
        return f"_values[{found['name']!r}]" if found["name"] else _WORDS[found[0]]

    calls = {"fromJSON": json.loads, "always": lambda: True, "cancelled": lambda: False}
    scope = {"_values": values, "_call": calls, "__builtins__": {}}
    # All values are text here. GitHub converts both operands of `> 0` to numbers.
    python = re.sub(r"> 0\b", "not in ('', '0')", _NAME.sub(word, expression.strip()))
    result = eval(python.strip(), scope)
    return result if not failed or "always()" in expression else False


def filled(text: str, values: Values) -> str:
    """*text* with the value of each `${{ }}` in its place."""
    return _EXPRESSION.sub(lambda found: str(evaluate(found[1], values)), text)


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One `run:` line and its result."""

    line: str
    code: int
    out: str
    err: str


@dataclass(kw_only=True)
class Runner:
    """A runner for jobs, with *clone* as the checkout and *tools* first on its PATH."""

    clone: Path
    tools: Path
    artifacts: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    repositories: Mapping[str, Path] = field(default_factory=dict)  # for the checkout action, by OWNER/NAME
    outputs: dict[str, str] = field(default_factory=dict)  # of steps, by "steps.ID.outputs.NAME"

    def job(self, file: str, name: str, values: Values) -> list[Ran]:
        """Run the steps of a job until one fails; after that, only steps with `always()`."""
        if file == "action.yml":
            return self._composite(self.clone / ".github/actions/torch-gate", values)
        document = loaded(GITHUB / "workflows" / file)
        job = document["jobs"][name]
        variables = {**document.get("env", {}), **job.get("env", {})}
        environ = {key: filled(text, values) for key, text in variables.items()}
        workflow = f"octo/kiln/.github/workflows/{file}@refs/heads/main"
        known = {**values, **{f"env.{key}": text for key, text in environ.items()}}
        return self._steps(job["steps"], {**environ, "GITHUB_WORKFLOW_REF": workflow}, known)

    def _composite(self, place: Path, values: Values) -> list[Ran]:
        steps = loaded(place / "action.yml")["runs"]["steps"]
        return self._steps(steps, {"GITHUB_ACTION_PATH": str(place)}, values)

    def _steps(
        self, steps: Sequence[Mapping[str, Any]], environ: Mapping[str, str], values: Values
    ) -> list[Ran]:
        ran: list[Ran] = []
        for step in steps:
            known = {**values, **self.outputs}
            failed = any(line.code for line in ran)
            condition = step.get("if", "").removeprefix("${{").removesuffix("}}")
            if not evaluate(condition, known, failed=failed) if condition else failed:
                continue
            if "run" in step:
                own = {key: filled(text, known) for key, text in step.get("env", {}).items()}
                ran.append(self.line(step, {**environ, **own}))
            else:
                arguments = {key: filled(text, known) for key, text in step.get("with", {}).items()}
                ran += self._action(step["uses"].partition("@")[0], arguments)
        return ran

    def line(self, step: Mapping[str, str], environ: Mapping[str, str]) -> Ran:
        """Run a `run:` line with bash, as GitHub does; it must contain no expression."""
        assert "${{" not in step["run"], (
            "an expression in `run:` could inject untrusted text: pass it in `env:`"
        )
        output = self.clone.parent / "output"
        output.write_text("")
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.clone,
            env={
                **self.environ,
                "PATH": f"{self.tools}:{os.environ['PATH']}",
                "GITHUB_ACTOR": "octocat",
                "GITHUB_OUTPUT": str(output),
                "GITHUB_REPOSITORY": "octo/kiln",
                "GITHUB_SERVER_URL": "https://github.example",
                "GITHUB_STEP_SUMMARY": str(self.clone.parent / "summary.md"),
                **environ,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        for line in output.read_text().splitlines():
            key, _, value = line.partition("=")
            self.outputs[f"steps.{step['id']}.outputs.{key}"] = value
        return Ran(line=step["run"], code=done.returncode, out=done.stdout, err=done.stderr)

    def _action(self, name: str, arguments: Mapping[str, str]) -> list[Ran]:
        """Do what the action *name* does, as far as later steps of the job depend on it."""
        if name == "actions/upload-artifact":
            found = self.clone / arguments["path"]
            if not found.exists():
                return [Ran(line=name, code=1, out="", err=f"{found} not found")]
            place = self.artifacts / arguments.get("name", found.name)
            shutil.copytree(found, place) if found.is_dir() else shutil.copy(found, place)
        elif name == "actions/download-artifact":
            found = self.artifacts / arguments["name"]
            if not found.exists():
                return [Ran(line=name, code=1, out="", err=f"{found} not found")]
            place = self.clone / arguments.get("path", ".")
            shutil.copytree(found, place) if found.is_dir() else shutil.copy(found, place)
        elif name.startswith("./"):
            inputs = loaded(self.clone / name / "action.yml")["inputs"]
            defaults = {key: line.get("default", "") for key, line in inputs.items()}
            inputs_by_name = {f"inputs.{key}": value for key, value in {**defaults, **arguments}.items()}
            return self._composite(self.clone / name, inputs_by_name)
        elif name == "actions/checkout" and "repository" in arguments:
            origin, ref = self.repositories[arguments["repository"]], arguments["ref"]
            lines = 'git clone --quiet "$0" "$1" && git -C "$1" checkout --quiet "$2"'
            command = ["bash", "-c", lines, str(origin), str(self.clone / arguments["path"]), ref]
            subprocess.run(command, capture_output=True, text=True, check=True)
        else:
            assert name in ("actions/checkout", "actions/cache"), f"unknown action {name}"
        return []
