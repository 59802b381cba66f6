"""The wheel specification as pure functions: where files are installed, and which files are added.

Paths are relative to the image's root. Where the specification leaves a choice, these functions do what
pip does, because the Docker engine uses pip: modes, script launchers, format and order of RECORD.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name
from packaging.version import InvalidVersion, Version

from torchkiln.errors import BadWheel
from torchkiln.model.platform import LINUX_AMD64, PLATFORMS, Platform
from torchkiln.model.recipe import PREFIX, ImagePython
from torchkiln.util.wheel_names import parse_wheel_filename

INSTALLER = b"torchkiln\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheme:
    """The folders of one environment; `python` is its version, "3.11"."""

    prefix: str  # "/opt/venv"
    python: str
    folder_of: str = ""  # "3.11" of lib/python3.11, if `python` is another version: see `ImagePython`
    platform: Platform = LINUX_AMD64

    @classmethod
    def of(cls, python: ImagePython) -> Scheme:
        """The folders of an image's environment with *python*."""
        folder = python.folder if python.of_another else ""
        return cls(prefix=PREFIX, python=python.minor, folder_of=folder, platform=PLATFORMS[python.platform])

    @property
    def site(self) -> str:
        return f"{self.prefix[1:]}/lib/python{self.folder_of or self.python}/site-packages"

    @property
    def scripts(self) -> str:
        return f"{self.prefix[1:]}/bin"

    def folder(self, key: str, distribution: str) -> str | None:
        """The folder of the data scheme *key*; None for an unknown key.

        Headers are installed below the normalized name, as pip does.
        """
        root = self.prefix[1:]
        return {
            "purelib": self.site,
            "platlib": self.site,
            "scripts": self.scripts,
            "data": root,
            "headers": f"{root}/include/site/python{self.python}/{canonicalize_name(distribution)}",
        }.get(key)


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelName:
    filename: str
    distribution: str  # as written, "nvidia_cublas_cu12"
    version: Version
    tags: frozenset[Tag]

    def is_of(self, stated: str) -> bool:
        """Whether *stated* equals this version."""
        return same_version(stated, str(self.version))


class Row(NamedTuple):
    path: str  # relative to site-packages
    hash: str  # "sha256=..." or empty
    size: str


def same_version(stated: str, known: str) -> bool:
    """Whether *stated* equals the version *known*: 1 equals 1.0.

    A file name or a lock may lack the local version (2.7.1+cu126): the default index does not allow one.
    """
    try:
        found, expected = Version(stated), Version(known)
    except InvalidVersion:
        return stated == known
    return found == expected or (expected.local is None and Version(found.public) == expected)


def parse_name(filename: str) -> WheelName:
    """The parts of *filename*.

    :raises BadWheel: it is not the file name of a wheel.
    """
    try:
        _, version, _, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        raise BadWheel(filename, "not a valid wheel filename") from error
    return WheelName(filename=filename, distribution=filename.split("-")[0], version=version, tags=tags)


def destination(name: str, wheel: WheelName, scheme: Scheme) -> str:
    """The path to which the entry *name* is installed.

    :raises BadWheel: *name* has an unknown scheme in `.data`, or would replace a file of the environment.
    """
    top, _, rest = name.partition("/")
    if not top.endswith(".data") or not rest:
        return f"{scheme.site}/{name}"
    key, _, path = rest.partition("/")
    folder = scheme.folder(key, wheel.distribution)
    if folder is None or not path:
        raise BadWheel(wheel.filename, f"entry {name!r}: unknown scheme key")
    target = f"{folder}/{path}"
    if _is_environment(target, scheme):
        raise BadWheel(wheel.filename, f"entry {name!r} would replace /{target} of the virtual environment")
    return target


_OWN = re.compile(r"bin/(python[\d.]*|[Aa]ctivate([.].*)?)(/.*)?|pyvenv[.]cfg(/.*)?|lib64(/.*)?", re.ASCII)


def _is_environment(path: str, scheme: Scheme) -> bool:
    """Whether *path* is part of the virtual environment: its Python, its settings or its links."""
    place = path.removeprefix(f"{scheme.prefix[1:]}/")
    linked = bool(scheme.folder_of) and f"{place}/".startswith(f"lib/python{scheme.python}/")
    return linked or _OWN.fullmatch(place) is not None


def is_script(name: str) -> bool:
    """Whether the entry is in the scripts scheme, where a `#!python` line is rewritten."""
    parts = name.split("/", 2)
    return len(parts) == 3 and parts[0].endswith(".data") and parts[1] == "scripts"


def with_interpreter(script: bytes, scheme: Scheme) -> bytes:
    """*script*, with its `#!python` line changed to the environment's interpreter."""
    if not script.startswith(b"#!python"):
        return script
    _, newline, rest = script.partition(b"\n")
    return f"#!{scheme.prefix}/bin/python\n".encode() + (rest if newline else b"")


def dist_info(names: Iterable[str], wheel: WheelName) -> str:
    """The name of the `.dist-info` directory.

    :raises BadWheel: there is none, several, or that of another distribution.
    """
    folders = {name.split("/")[0] for name in names if name.split("/")[0].endswith(".dist-info")}
    if len(folders) != 1:
        raise BadWheel(wheel.filename, f"{len(folders)} .dist-info directories found, expected one")
    folder = folders.pop()
    name, _, version = folder.removesuffix(".dist-info").partition("-")
    if canonicalize_name(name) != canonicalize_name(wheel.distribution) or not wheel.is_of(version):
        raise BadWheel(
            wheel.filename,
            f".dist-info directory {folder!r} does not start with the name and version of the wheel",
        )
    return folder


_MAX_NAME = 255  # bytes of a file's name
_ENTRY_POINT = re.compile(r"(?P<module>[\w.]+)(:(?P<attribute>[\w.]+))?\s*(\[[\w.,\s-]*\])?", re.ASCII)
_SCRIPT_NAME = re.compile(r"[\w+][\w.+-]*( [\w.+-]+)*", re.ASCII)


def launchers(entry_points: bytes, wheel: WheelName, scheme: Scheme) -> dict[str, bytes]:
    """The scripts that entry_points.txt defines: path → content, with mode 0755.

    :raises BadWheel: an invalid name or reference, which would become a path or code.
    """
    sections = _sections(entry_points, wheel)
    console = _versioned(sections.get("console_scripts", {}), scheme)
    scripts = {}
    for name, reference in {**console, **sections.get("gui_scripts", {})}.items():
        match = _ENTRY_POINT.fullmatch(reference)
        if not match or not match["attribute"] or not _SCRIPT_NAME.fullmatch(name):
            raise BadWheel(wheel.filename, f"invalid script entry point: {name!r} = {reference!r}")
        path = f"{scheme.scripts}/{name}"
        if len(name) > _MAX_NAME or _is_environment(path, scheme):
            raise BadWheel(
                wheel.filename,
                f"entry point {name!r} is too long, or would replace a file of the virtual environment",
            )
        module, attribute = match["module"], match["attribute"]
        scripts[path] = (
            f"#!{scheme.prefix}/bin/python\n"
            "import sys\n"
            f"from {module} import {attribute.split('.')[0]}\n"
            "if __name__ == '__main__':\n"
            "    sys.argv[0] = sys.argv[0].removesuffix('.exe')\n"
            f"    sys.exit({attribute}())\n"
        ).encode()
    return scripts


def launcher_names(entry_points: bytes, wheel: WheelName) -> frozenset[str]:
    """The names of all entry points that become scripts, as written in the wheel.

    :raises BadWheel: entry_points.txt is invalid.
    """
    sections = _sections(entry_points, wheel)
    return frozenset({**sections.get("console_scripts", {}), **sections.get("gui_scripts", {})})


def is_old_launcher(name: str, launchers: frozenset[str]) -> bool:
    """Whether the script *name* was generated when the wheel was built, for one of *launchers*.

    On other systems such a launcher is called tool.exe, tool-script.py or tool.pya.
    """
    file = name.rpartition("/")[2]
    for suffix in (".exe", "-script.py", ".pya"):
        if file.lower().endswith(suffix):
            file = file[: -len(suffix)]
            break
    return file in launchers


def _sections(entry_points: bytes, wheel: WheelName) -> dict[str, dict[str, str]]:
    """entry_points.txt as section → name → reference; case-sensitive, the last of duplicate lines counts."""
    sections: dict[str, dict[str, str]] = {}
    current: dict[str, str] | None = None
    try:
        text = entry_points.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadWheel(wheel.filename, "entry_points.txt is not valid UTF-8") from error
    for line in text.splitlines():
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            current = sections.setdefault(line[1:-1].strip(), {})
        elif current is not None and "=" in line:
            name, _, reference = line.partition("=")
            current[name.strip()] = reference.strip()
        else:
            raise BadWheel(wheel.filename, f"invalid line in entry_points.txt: {line!r}")
    return sections


def _versioned(console: Mapping[str, str], scheme: Scheme) -> dict[str, str]:
    """*console*, with the version in the names of pip and easy_install adapted: pip3.9 → pip3.11."""
    named = dict(console)
    if "pip" in console:
        named = {name: ref for name, ref in named.items() if not re.fullmatch(r"pip\d+(\.\d+)?", name)}
        named |= {f"pip{version}": console["pip"] for version in (scheme.python.split(".")[0], scheme.python)}
    if "easy_install" in console:
        named = {name: ref for name, ref in named.items() if not re.fullmatch(r"easy_install-\d+\.\d+", name)}
        named[f"easy_install-{scheme.python}"] = console["easy_install"]
    return named


def record_rows(text: str) -> Iterator[list[str]]:
    """The rows of the RECORD *text*.

    :raises csv.Error: it is not CSV, or has too many lines.
    """
    if text.count("\n") + text.count("\r") > 2 * _MAX_LINES or _UNUSUAL_LINE_END.search(text):
        raise csv.Error("too many lines, or unusual line endings")
    yield from csv.reader(text.splitlines(), strict=True)


def parse_record(record: bytes, wheel: WheelName) -> dict[str, tuple[str, str]]:
    """RECORD as path → (hash, size), as written; lines of missing files are allowed.

    :raises BadWheel: it is not CSV in UTF-8, has two different lines for one file, a path outside the wheel,
        or a hash that is unknown or weaker than SHA-256.
    """
    rows: dict[str, tuple[str, str]] = {}
    try:
        for fields in record_rows(record.decode("utf-8")):
            if not fields or not fields[0]:
                raise csv.Error("line without a path")
            path, digest, size = (*fields, "", "")[:3]
            if path.startswith("/") or ".." in path.split("/"):
                raise BadWheel(wheel.filename, f"RECORD contains a path outside the wheel: {path!r}")
            if digest and (digest.partition("=")[0] not in HASHES or "=" not in digest):
                raise BadWheel(
                    wheel.filename,
                    f"RECORD has an unsupported hash for {path!r}: {digest[:20]!r}; use SHA-256 or better",
                )
            if rows.setdefault(path, (digest, size)) != (digest, size):
                raise BadWheel(wheel.filename, f"RECORD contains two different lines for {path!r}")
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadWheel(wheel.filename, f"invalid RECORD: {error}") from error
    return rows


# The algorithms of hashlib that the wheel specification allows ("sha256 or better"); not shake_*, whose
# length is variable.
HASHES = frozenset({"sha256", "sha384", "sha512", "sha3_256", "sha3_384", "sha3_512", "blake2b", "blake2s"})
_MAX_LINES = 200_000  # the limit of entries of a wheel
# Only str.splitlines splits at these.
_UNUSUAL_LINE_END = re.compile("[\v\f\x1c-\x1e\x85\u2028\u2029]")


def urlsafe_sha256(digest: bytes) -> str:
    """A SHA-256 as RECORD writes it."""
    return urlsafe("sha256", digest)


def urlsafe(algorithm: str, digest: bytes) -> str:
    """A hash as RECORD writes it."""
    return f"{algorithm}=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def row(path: str, data: bytes, scheme: Scheme) -> Row:
    """The line for a file that the installation creates or changes."""
    return Row(record_path(path, scheme), urlsafe_sha256(hashlib.sha256(data).digest()), str(len(data)))


def record_path(path: str, scheme: Scheme) -> str:
    """*path* as written in RECORD: relative to site-packages, such as `../../../bin/x`."""
    if path.startswith(f"{scheme.site}/"):
        return path[len(scheme.site) + 1 :]
    site, parts = scheme.site.split("/"), path.split("/")
    common = 0
    while common < min(len(site), len(parts) - 1) and site[common] == parts[common]:
        common += 1
    return "/".join([".."] * (len(site) - common) + parts[common:])


def record(rows: Iterable[Row]) -> bytes:
    """The content of RECORD: sorted, with the line endings of RFC 4180, as pip writes it."""
    out = io.StringIO(newline="")
    csv.writer(out).writerows(sorted(rows))
    return out.getvalue().encode()
