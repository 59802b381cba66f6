"""Where a wheel's files go, and what an installer adds: the wheel specification as pure functions.

Paths are relative to the image's root. Where the specification leaves room we do as pip does, for pip's
own installation is what the other engine gives: modes, script launchers, RECORD's form and order.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from torchkiln.errors import BadWheel

INSTALLER = b"torchkiln\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheme:
    """The folders of one environment; `python` is the version whose folders these are, "3.11"."""

    prefix: str  # "/opt/venv"
    python: str

    @property
    def site(self) -> str:
        return f"{self.prefix[1:]}/lib/python{self.python}/site-packages"

    @property
    def scripts(self) -> str:
        return f"{self.prefix[1:]}/bin"

    def folder(self, key: str, distribution: str) -> str | None:
        """The folder of the data scheme *key*; None for a key that does not exist.

        Headers lie under the normalized name, as it stands in the requirements that pip is given.
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
    """What the file name says."""

    filename: str
    distribution: str  # as written, "nvidia_cublas_cu12"
    version: Version
    tags: frozenset[Tag]

    def is_of(self, stated: str) -> bool:
        """Whether *stated* is this version, by value: 1 is 1.0."""
        try:
            version = Version(stated)
        except InvalidVersion:
            return False
        # A local version (2.7.1+cu126) may be left out of the file name: the default index allows none there.
        return version == self.version or (
            self.version.local is None and Version(version.public) == self.version
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of RECORD, already in pip's notation."""

    path: str  # relative to site-packages
    hash: str  # "sha256=..." or empty
    size: str


def parse_name(filename: str) -> WheelName:
    """:raises BadWheel: the file name is not that of a wheel."""
    try:
        _, version, _, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        raise BadWheel(filename, "not the file name of a wheel") from error
    return WheelName(filename=filename, distribution=filename.split("-")[0], version=version, tags=tags)


def destination(name: str, wheel: WheelName, scheme: Scheme) -> str:
    """Where the entry *name* goes.

    :raises BadWheel: a `.data` folder with a scheme that does not exist, or a file of the environment itself.
    """
    top, _, rest = name.partition("/")
    if not top.endswith(".data") or not rest:
        return f"{scheme.site}/{name}"
    key, _, path = rest.partition("/")
    folder = scheme.folder(key, wheel.distribution)
    if folder is None or not path:
        raise BadWheel(wheel.filename, f"entry {name!r}: no such data scheme")
    place = f"{folder}/{path}"
    if _is_environment(place, scheme):
        raise BadWheel(wheel.filename, f"entry {name!r} would replace the environment's own /{place}")
    return place


_OWN = re.compile(r"bin/(python[\d.]*|[Aa]ctivate([.].*)?)(/.*)?|pyvenv[.]cfg(/.*)?|lib64(/.*)?", re.ASCII)


def _is_environment(path: str, scheme: Scheme) -> bool:
    """Whether *path* belongs to the virtual environment: its Python, its settings, its link lib64."""
    return _OWN.fullmatch(path.removeprefix(f"{scheme.prefix[1:]}/")) is not None


def is_script(name: str) -> bool:
    """Whether the entry lies in the scripts scheme, where a `#!python` line is rewritten."""
    parts = name.split("/", 2)
    return len(parts) == 3 and parts[0].endswith(".data") and parts[1] == "scripts"


def with_interpreter(script: bytes, scheme: Scheme) -> bytes:
    """*script* with its `#!python` line pointing at the environment's interpreter."""
    if not script.startswith(b"#!python"):
        return script
    _, newline, rest = script.partition(b"\n")
    return f"#!{scheme.prefix}/bin/python\n".encode() + (rest if newline else b"")


def dist_info(names: Iterable[str], wheel: WheelName) -> str:
    """The one `.dist-info` folder.

    :raises BadWheel: none, several, or that of another distribution.
    """
    folders = {name.split("/")[0] for name in names if name.split("/")[0].endswith(".dist-info")}
    if len(folders) != 1:
        raise BadWheel(wheel.filename, f"{len(folders)} .dist-info folders; a wheel has one")
    folder = folders.pop()
    name, _, version = folder.removesuffix(".dist-info").partition("-")
    if canonicalize_name(name) != canonicalize_name(wheel.distribution) or not wheel.is_of(version):
        raise BadWheel(wheel.filename, f"its metadata folder is {folder}")
    return folder


_LONGEST_NAME = 255  # bytes of a file's name
_ENTRY_POINT = re.compile(r"(?P<module>[\w.]+)(:(?P<attribute>[\w.]+))?\s*(\[[\w.,\s-]*\])?", re.ASCII)
_SCRIPT_NAME = re.compile(r"[\w+][\w.+-]*( [\w.+-]+)*", re.ASCII)


def launchers(entry_points: bytes, wheel: WheelName, scheme: Scheme) -> dict[str, bytes]:
    """The scripts that entry_points.txt asks for: path → content, to be mode 0755.

    :raises BadWheel: a name or a reference that is not plain (it would become a path or code).
    """
    sections = _sections(entry_points, wheel)
    console = _versioned(sections.get("console_scripts", {}), scheme)
    wanted = {**console, **sections.get("gui_scripts", {})}
    made = {}
    for name, reference in wanted.items():
        match = _ENTRY_POINT.fullmatch(reference)
        if not match or not match["attribute"] or not _SCRIPT_NAME.fullmatch(name):
            raise BadWheel(wheel.filename, f"entry point {name!r} = {reference!r} is not plain")
        path = f"{scheme.scripts}/{name}"
        if len(name) > _LONGEST_NAME or _is_environment(path, scheme):
            raise BadWheel(wheel.filename, f"entry point {name!r} is too long, or the environment's own")
        module, attribute = match["module"], match["attribute"]
        made[path] = (
            f"#!{scheme.prefix}/bin/python\n"
            "import sys\n"
            f"from {module} import {attribute.split('.')[0]}\n"
            "if __name__ == '__main__':\n"
            "    sys.argv[0] = sys.argv[0].removesuffix('.exe')\n"
            f"    sys.exit({attribute}())\n"
        ).encode()
    return made


def launcher_names(entry_points: bytes, wheel: WheelName) -> frozenset[str]:
    """The names of all entry points that become scripts, as the wheel tells them.

    :raises BadWheel: entry_points.txt cannot be read.
    """
    sections = _sections(entry_points, wheel)
    return frozenset({**sections.get("console_scripts", {}), **sections.get("gui_scripts", {})})


def is_old_launcher(name: str, launchers: frozenset[str]) -> bool:
    """Whether the script entry *name* is a launcher from the wheel's build, for one of *launchers*.

    On another system the same launcher is called tool.exe, tool-script.py or tool.pya.
    """
    file = name.rpartition("/")[2]
    for suffix in (".exe", "-script.py", ".pya"):
        if file.lower().endswith(suffix):
            file = file[: -len(suffix)]
            break
    return file in launchers


def _sections(entry_points: bytes, wheel: WheelName) -> dict[str, dict[str, str]]:
    """entry_points.txt as section → name → reference; names keep their case, a later line wins."""
    sections: dict[str, dict[str, str]] = {}
    current: dict[str, str] | None = None
    try:
        text = entry_points.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadWheel(wheel.filename, "entry_points.txt is not UTF-8") from error
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
            raise BadWheel(wheel.filename, f"entry_points.txt has a line that is no entry: {line!r}")
    return sections


def _versioned(console: Mapping[str, str], scheme: Scheme) -> dict[str, str]:
    """pip and old setuptools carry launchers named after the builder's Python: give them ours."""
    named = dict(console)
    major = scheme.python.split(".")[0]
    if "pip" in console:
        named = {name: ref for name, ref in named.items() if not re.fullmatch(r"pip\d+(\.\d+)?", name)}
        named |= {f"pip{version}": console["pip"] for version in (major, scheme.python)}
    if "easy_install" in console:
        named = {name: ref for name, ref in named.items() if not re.fullmatch(r"easy_install-\d+\.\d+", name)}
        named[f"easy_install-{scheme.python}"] = console["easy_install"]
    return named


def parse_record(record: bytes, wheel: WheelName) -> dict[str, tuple[str, str]]:
    """RECORD as path → (hash, size), as written; lines of files that are not there do no harm.

    :raises BadWheel: it is no CSV of UTF-8 lines, names a file twice with different hashes or a path outside,
        or has a hash that is weaker than SHA-256 or not known.
    """
    rows: dict[str, tuple[str, str]] = {}
    try:
        text = record.decode("utf-8")
        if text.count("\n") + text.count("\r") > 2 * _MOST_LINES or _STRANGE_LINE_END.search(text):
            raise csv.Error("too many lines, or lines with strange ends")
        for fields in csv.reader(text.splitlines(), strict=True):
            if not fields or not fields[0]:
                raise csv.Error("a line without a path")
            path, digest, size = (*fields, "", "")[:3]
            if path.startswith("/") or ".." in path.split("/"):
                raise BadWheel(wheel.filename, f"RECORD tells {path!r}, a path outside")
            if digest and (digest.partition("=")[0] not in HASHES or "=" not in digest):
                raise BadWheel(
                    wheel.filename,
                    f"RECORD has {digest[:20]!r} for {path!r}: only SHA-256 and stronger hashes are accepted",
                )
            if rows.setdefault(path, (digest, size)) != (digest, size):
                raise BadWheel(wheel.filename, f"RECORD tells {path!r} twice, differently")
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadWheel(wheel.filename, f"RECORD cannot be read: {error}") from error
    return rows


# What the wheel specification allows ("sha256 or better") of what every Python has, by the names in hashlib;
# not the shake_* functions, which have no length of their own.
HASHES = frozenset({"sha256", "sha384", "sha512", "sha3_256", "sha3_384", "sha3_512", "blake2b", "blake2s"})
_MOST_LINES = 200_000  # as many as a wheel may have entries
# Where str.splitlines cuts, but nobody else.
_STRANGE_LINE_END = re.compile("[\v\f\x1c-\x1e\x85\u2028\u2029]")


def urlsafe_sha256(digest: bytes) -> str:
    """A SHA-256 as RECORD writes it."""
    return urlsafe("sha256", digest)


def urlsafe(algorithm: str, digest: bytes) -> str:
    """A hash as RECORD writes it."""
    return f"{algorithm}=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def row(path: str, data: bytes, scheme: Scheme) -> Row:
    """The line for a file that was made or changed while installing."""
    return Row(
        path=record_path(path, scheme),
        hash=urlsafe_sha256(hashlib.sha256(data).digest()),
        size=str(len(data)),
    )


def record_path(path: str, scheme: Scheme) -> str:
    """*path* as RECORD tells it: relative to site-packages, `../../../bin/x` for what lies elsewhere."""
    if path.startswith(f"{scheme.site}/"):
        return path[len(scheme.site) + 1 :]
    here, there = scheme.site.split("/"), path.split("/")
    common = 0
    while common < min(len(here), len(there) - 1) and here[common] == there[common]:
        common += 1
    return "/".join([".."] * (len(here) - common) + there[common:])


def record(rows: Iterable[Row]) -> bytes:
    """RECORD's text: sorted, with the line ends of RFC 4180 that pip writes too."""
    out = io.StringIO(newline="")
    csv.writer(out).writerows(sorted((row.path, row.hash, row.size) for row in rows))
    return out.getvalue().encode()
