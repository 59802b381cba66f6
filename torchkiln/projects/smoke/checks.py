"""The checks of a project's image: imports, `pip check`, shared libraries, the project's own test.

Commands run in the image; their output is not trusted. As in a suite, the values and bounds are declared.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from pathlib import Path
from typing import Any

from torchkiln.elf.dynamic import LIBRARY
from torchkiln.model.digest import digest_of_json
from torchkiln.model.project import APP
from torchkiln.model.recipe import PREFIX
from torchkiln.model.report import Finding
from torchkiln.projects.symbols.os_libraries import advice
from torchkiln.smoke.run import Ended, Inside, exit_status
from torchkiln.smoke.suite import Suite, SuiteCheck, canonical, load_suite
from torchkiln.util.strict_json import json_of

#: Check -> value -> the bound or the type of the value.
DECLARED: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "import": {
        "packages": {"at_least": 0},
        "modules": {"at_least": 0},
        "failed": {"equals": []},
        "without_modules": {"type": ["string"]},
    },
    "pip-check": {"packages": {"at_least": 1}, "broken": {"equals": []}},
    "linkage": {"libraries": {"at_least": 0}, "missing": {"equals": []}, "versions": {"equals": []}},
    "test": {"exit_code": {"equals": 0}},
}

LIMIT = 1800.0  # maximum seconds of a check
PLACE = "/opt/torchkiln/smoke-project"  # in the image: the folder with the suite and linkage_probe.py
PROBE = "linkage_probe.py"
# Libraries of the driver: the container runtime mounts them; an image never contains them.
DRIVER = frozenset({"libcuda.so.1", "libnvidia-ml.so.1", "libnvcuvid.so.1", "libnvidia-encode.so.1"})
RULES = 2  # part of the suite's digest: increase it when the result of a check can change
_LINES = 1000  # number of last lines of an output that are kept
_SHOWN = 20  # number of these lines in the message of a failed test
_FOUND = '{"from": '
# Prints where a module is imported from: its file, or the folders of a namespace package.
IMPORT = """
import importlib.util, json, sys
name = sys.argv.pop()
spec = importlib.util.find_spec(name)
importlib.import_module(name)
print(json.dumps({"from": [spec.origin, *(spec.submodule_search_locations or ())]}))
"""
_SOURCE = re.compile(r"(\w+)\.py")
_EXTENSION = re.compile(r"(\w+)(\.[^/]+)?\.so")
_PACKAGE = "__init__"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectSubject:
    """The packages, libraries and test that the checks expect in an image.

    `installed` has the files of each distribution, from its RECORD in the image's layers, relative to /.
    """

    named: tuple[str, ...]  # packages that the project itself requires
    added: tuple[str, ...]  # packages that the project adds to its parent image, or replaces there
    installed: Mapping[str, tuple[str, ...]] = field(hash=False)
    site: str  # site-packages, relative to /
    may_lack: tuple[str, ...] = ()  # libraries that may be missing, packages for which any may be missing
    suite: Path | None = None  # the folder that is mounted at PLACE
    system: tuple[str, tuple[str, ...]] = ("debian12", ())  # its name; the OS packages of the settings
    test: tuple[str, ...] = ()  # the command of the project's own test; empty: none


Check = Callable[[ProjectSubject, Inside, float], Finding]


def check_imports(subject: ProjectSubject, inside: Inside, limit_s: float) -> Finding:
    """Import each top-level package of the distributions that the project requires, one process for each."""
    began, failed, faults = time.monotonic(), list[str](), list[str]()
    modules = {name: modules_of(subject.installed.get(name, ()), subject.site) for name in subject.named}
    for package, names in modules.items():
        if package not in subject.installed:
            failed.append(package)
            faults.append(f"{package}: not installed in the image")
        for name in names:
            left = max(0.0, limit_s - (time.monotonic() - began))
            shown = name if name == package else f"{name} of {package}"
            if fault := _import_fault(name, inside, left, limit_s):
                failed.append(name)
                faults.append(f"{shown}: {fault}")
    measured = {
        "packages": len(modules),
        "modules": sum(map(len, modules.values())),
        "failed": failed,
        "without_modules": [name for name, found in modules.items() if not found],
    }
    return _finding("import", began, faults, measured)


def check_pip(subject: ProjectSubject, inside: Inside, limit_s: float) -> Finding:
    """Run `pip check`, without the project's code on sys.path."""
    began = time.monotonic()
    ended, lines = _run(inside, (inside.python, "-I", "-m", "pip", "check"), limit_s)
    broken = [line for line in lines if line.strip()] if ended.code or ended.timed_out else []
    faults = broken or ([_how(ended, limit_s)] if ended.code or ended.timed_out else [])
    return _finding("pip-check", began, faults, {"packages": len(subject.installed), "broken": broken})


def check_linkage(subject: ProjectSubject, inside: Inside, limit_s: float) -> Finding:
    """Check that the loader or `import torch` provides the libraries that added packages need."""
    began = time.monotonic()
    owners = {f"/{path}": name for name in subject.added for path in subject.installed.get(name, ())}
    libraries = [path for path in owners if LIBRARY.fullmatch(path.rpartition("/")[2])]
    if not libraries:
        return _linkage(began, [], 0)
    binds = {PLACE: subject.suite} if subject.suite else {}
    ended, lines = _run(inside, (inside.python, "-I", "-B", f"{PLACE}/{PROBE}"), limit_s, binds)
    try:
        found = _probed(lines[-1]) if lines and not (ended.code or ended.timed_out) else None
    except (ValueError, KeyError, TypeError):
        return _linkage(began, [f"no result: {lines[-1][:200]}"], len(libraries))
    if found is None:
        return _linkage(began, [_how(ended, limit_s)], len(libraries))
    there = DRIVER.union(found.loaded, subject.may_lack)
    lacking: dict[tuple[str, str], list[str]] = {}
    for file, soname in found.missing:
        owner = owners.get(path := f"{PREFIX}/{file}")
        if owner and soname not in there and owner not in subject.may_lack:
            lacking.setdefault((owner, soname), []).append(path)
    versions = [line for line in found.versions if any(path in line for path in libraries)]
    faults = [
        f"{owner} needs {soname}, which is missing: {_first(paths)}"
        for (owner, soname), paths in lacking.items()
    ]
    for owner in dict.fromkeys(owner for owner, _ in lacking):
        if way := advice(owner, [soname for one, soname in lacking if one == owner], *subject.system):
            faults.append(f"for {owner}: {way}")
    torch = [f"import torch: {found.import_torch}"] if lacking and found.import_torch else []
    return _linkage(began, [*faults, *versions, *torch], len(libraries), list(lacking), versions)


def _first(paths: Sequence[str]) -> str:
    return f"{paths[0]} and {len(paths) - 1} more" if len(paths) > 1 else paths[0]


def _linkage(
    began: float,
    faults: Sequence[str],
    libraries: int,
    missing: Sequence[tuple[str, str]] = (),
    versions: Sequence[str] = (),
) -> Finding:
    measured = {"libraries": libraries, "missing": list(missing), "versions": list(versions)}
    return _finding("linkage", began, faults, measured)


def check_test(subject: ProjectSubject, inside: Inside, limit_s: float) -> Finding:
    """Run the project's own test, which must end with exit code 0."""
    began = time.monotonic()
    ended, lines = _run(inside, subject.test, limit_s)
    faults = []
    if ended.code or ended.timed_out:
        last = [*lines, *ended.stderr.decode("utf-8", "replace").splitlines()][-_SHOWN:]
        how = f"killed: {_reached(limit_s)}" if ended.timed_out else exit_status(ended.code)
        faults = [f"{shlex.join(subject.test)}: {how}", *last]
    return _finding("test", began, faults, {"exit_code": ended.code or (137 if ended.timed_out else 0)})


CHECKS: Mapping[str, Check] = {
    "import": check_imports,
    "pip-check": check_pip,
    "linkage": check_linkage,
    "test": check_test,  # the last check, because the project's code runs in it
}


def _import_fault(name: str, inside: Inside, left_s: float, limit_s: float) -> str:
    """Why *name* cannot be imported; empty if it can.

    :param left_s: the seconds that are left of *limit_s*.
    """
    if left_s <= 0:
        return f"not started: {_reached(limit_s)}"
    ended, lines = _run(inside, (inside.python, "-c", IMPORT, name), left_s)
    if ended.code or ended.timed_out:
        return (not ended.timed_out and last_error(ended.stderr)) or _how(ended, limit_s)
    place = next((line for line in reversed(lines) if line.startswith(_FOUND)), None)
    if place is None:
        return "it ended Python"
    try:
        places = _texts(json_of(place.encode())["from"])
    except ValueError as error:
        return f"no result: {error}"
    hiding = next((path for path in places if path.startswith(f"/{APP}/")), "")
    return f"{hiding}, a file of the project, is imported instead: rename it" if hiding else ""


def last_error(stderr: bytes) -> str:
    """The first line of the error message of the last traceback in *stderr*; empty without a traceback."""
    _, found, trace = stderr.decode("utf-8", "replace").rpartition("Traceback (most recent call last):\n")
    lines = (line for line in trace.splitlines() if line and not line[0].isspace()) if found else ()
    return next(iter(lines), "")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Probed:
    """The output of linkage_probe.py."""

    missing: list[tuple[str, str]]  # path relative to PREFIX, library
    loaded: list[str]
    versions: list[str]
    import_torch: str


def _probed(line: str) -> _Probed:
    """:raises ValueError, KeyError, TypeError: *line* is not the output of linkage_probe.py."""
    values = json_of(line.encode())
    return _Probed(
        missing=[(str(file), str(soname)) for file, soname in values["missing"]],
        loaded=_texts(values["loaded"]),
        versions=_texts(values["versions"]),
        import_torch=str(values["import_torch"]),
    )


def _run(
    inside: Inside, argv: Sequence[str], limit_s: float, binds: Mapping[str, Path] | None = None
) -> tuple[Ended, list[str]]:
    """Run *argv*; return how it ended, and the last lines of its stdout."""
    lines: deque[bytes] = deque(maxlen=_LINES)
    ended = inside.run(argv, binds=binds or {}, timeout_s=limit_s, on_line=lines.append)
    return ended, [line.decode("utf-8", "replace") for line in lines]


def _how(ended: Ended, limit_s: float) -> str:
    if ended.timed_out:
        return f"killed: {_reached(limit_s)}"
    last = ended.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return ": ".join(filter(None, (exit_status(ended.code), last)))


def _reached(limit_s: float) -> str:
    return f"the limit of this check, {limit_s:g} s, was reached (--limit)"


def _texts(values: Any) -> list[str]:
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


def _finding(name: str, began: float, faults: Sequence[str], measured: Mapping[str, Any]) -> Finding:
    rules = DECLARED[name].items()
    threshold = {value: rule for value, rule in rules if "type" not in rule}
    return Finding(
        id=name,
        tier=0,
        outcome="failed" if faults else "passed",
        seconds=round(time.monotonic() - began, 3),
        message="\n".join(faults),
        measured=json.dumps(measured),
        threshold=json.dumps(threshold),
    )


def modules_of(paths: Iterable[str], site: str) -> tuple[str, ...]:
    """The top-level packages and modules of the distribution with the files *paths*: dotted names, sorted.

    A namespace package is replaced by the packages in it. Three kinds are returned only if there is nothing
    else: extension modules outside of packages, names that begin with an underscore, and modules in folders
    without __init__.py. The distribution's public packages import them; some cannot be imported alone.

    :param paths: relative to /.
    :param site: site-packages, relative to /.
    """
    files = [tuple(path.removeprefix(f"{site}/").split("/")) for path in paths if path.startswith(f"{site}/")]
    found = [(folders, *named) for *folders, file in files if (named := _module(file))]
    packages = {tuple(folders) for folders, name, _ in found if name == _PACKAGE and folders}
    public, others = set[str](), set[str]()
    for folders, name, is_source in found:
        above = (tuple(folders[:count]) for count in range(1, len(folders) + 1))
        package = next((each for each in above if each in packages), None)
        parts = package or (*folders, name)
        if (name == _PACKAGE and not package) or not all(map(_importable, parts)):
            continue
        plain = not any(part.startswith("_") for part in parts)
        top = package is not None or (is_source and not folders)
        (public if plain and top else others).add(".".join(parts))
    return tuple(sorted(public or others))


def _module(file: str) -> tuple[str, bool] | None:
    """The name of the module *file*, and whether it is source code; None: it is not a module."""
    if match := _SOURCE.fullmatch(file):
        return match[1], True
    match = _EXTENSION.fullmatch(file)
    return (match[1], False) if match else None


def _importable(part: str) -> bool:
    return part.isidentifier() and not iskeyword(part)


def project_suite() -> Suite:
    """The checks of a project. The digest covers the programs that run in the image, and the bounds."""
    probe = Path(__file__).with_name(PROBE).read_bytes()
    suite = load_suite()  # linkage_probe.py imports modules of it
    programs = {"rules": RULES, "values": DECLARED, "import": IMPORT, "probe": canonical(probe)}
    return Suite(
        folder=Path(__file__).parent,
        files={PROBE: probe},
        digest=digest_of_json({**programs, "suite": suite.digest}),
        checks=tuple(SuiteCheck(id=name, tier=0, values=values) for name, values in DECLARED.items()),
        not_applicable=lambda _check, _facts, _capability: None,
        expected=lambda name, _facts, _host: name,
    )
