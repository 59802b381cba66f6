"""Builds a wheel from an sdist with its build backend: a program that a sandbox runs with an image's Python.

    python sdist_driver.py ACTION FOLDER BACKEND BACKEND_PATH...

/in/source.tar.gz is the sdist or another tar, and FOLDER is the package's folder in it. /in/wheels has the
build requirements. ACTION is "read" (prints pyproject.toml), "requires" (prints the requirements that the
backend adds, as JSON), or "wheel" (prints the file name on a line, then the wheel). All other output goes to
stderr. The program uses only the standard library, and runs on Python 3.10 and newer.
"""

from __future__ import annotations

import configparser
import importlib
import json
import os
import shutil
import site
import sys
import tarfile
import zipfile
from typing import Any

_SOURCE, _WHEELS = "/in/source.tar.gz", "/in/wheels"
_LAUNCHER = """#!{python}
import sys
from {module} import {name}
sys.argv[0] = sys.argv[0].removesuffix(".exe")
sys.exit({call}())
"""


def main() -> None:
    """Run the action that the arguments name; write its result to stdout."""
    action, folder, backend, *path = sys.argv[1:]
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a backend prints is not part of the result
    here = "/tmp/build"
    os.mkdir(here)
    os.chdir(here)
    source = os.path.normpath(f"{_unpacked(f'{here}/source')}/{folder}")
    if action == "read":
        if os.path.isfile(f"{source}/pyproject.toml"):
            with open(f"{source}/pyproject.toml", "rb") as file:
                answer.write(file.read())
        answer.close()
        return
    _install(f"{here}/env")
    os.chdir(source)
    hooks = _backend(backend, [f"{source}/{part}" for part in path])
    if action == "requires":
        hook = getattr(hooks, "get_requires_for_build_wheel", None)
        answer.write(json.dumps([str(text) for text in (hook(None) if hook else ())]).encode())
        answer.close()
        return
    os.mkdir(f"{here}/out")
    name = os.path.basename(hooks.build_wheel(f"{here}/out", None))
    answer.write(name.encode() + b"\n")
    with open(f"{here}/out/{name}", "rb") as wheel:
        shutil.copyfileobj(wheel, answer)
    answer.close()


def _unpacked(into: str) -> str:
    """The folder of the sdist, unpacked."""
    with tarfile.open(_SOURCE) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(into, filter="data")
        else:
            archive.extractall(into)
    names = os.listdir(into)
    if len(names) != 1:
        sys.exit(f"the sdist has {len(names)} top-level entries, not one folder")
    return f"{into}/{names[0]}"


def _install(env: str) -> None:
    """Install the build requirements, so that this process and those that it starts import them."""
    os.makedirs(f"{env}/bin")
    for name in sorted(os.listdir(_WHEELS)):
        with zipfile.ZipFile(f"{_WHEELS}/{name}") as wheel:
            for entry in wheel.namelist():
                _put(wheel, entry, env)
    site.addsitedir(env)
    sys.path.remove(env)
    sys.path[0] = env  # the first entry was the folder of this program; the packages of the base come later
    os.environ.update(PYTHONPATH=env, PATH=f"{env}/bin:{os.environ['PATH']}")


def _put(wheel: zipfile.ZipFile, entry: str, env: str) -> None:
    top, _, rest = entry.partition("/")
    if entry.endswith("/"):
        return
    if not top.endswith(".data"):
        wheel.extract(entry, env)
        if top.endswith(".dist-info") and rest == "entry_points.txt":
            _launchers(wheel.read(entry).decode(), env)
        return
    kind, _, path = rest.partition("/")
    folder = {"purelib": env, "platlib": env, "scripts": f"{env}/bin"}.get(kind, f"{env}/{kind}")
    target = os.path.normpath(f"{folder}/{path}")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    data = wheel.read(entry)
    if kind == "scripts" and data.startswith(b"#!python"):
        data = f"#!{sys.executable}\n".encode() + data.partition(b"\n")[2]
    with open(target, "wb") as file:
        file.write(data)
    if kind == "scripts":
        os.chmod(target, 0o755)


def _launchers(text: str, env: str) -> None:
    """Write the programs that entry_points.txt names."""
    points = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    points.optionxform = str  # type: ignore[assignment,method-assign]
    points.read_string(text)
    for name, value in points["console_scripts"].items() if points.has_section("console_scripts") else ():
        module, _, call = value.partition("[")[0].strip().partition(":")
        path = f"{env}/bin/{os.path.basename(name)}"
        with open(path, "w") as file:
            first = call.partition(".")[0]
            file.write(_LAUNCHER.format(python=sys.executable, module=module, name=first, call=call))
        os.chmod(path, 0o755)


def _backend(name: str, path: list[str]) -> Any:
    """The object with the hooks (PEP 517)."""
    sys.path[:0] = path
    module, _, attribute = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in filter(None, attribute.split(".")):
        found = getattr(found, part)
    return found


if __name__ == "__main__":
    main()
