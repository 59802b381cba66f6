"""Malformed and malicious documents, each with the command that reads it and the expected message."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.arranged_documents import (
    BASE,
    LOCK,
    config,
    first_blob,
    held,
    index,
    layout,
    linked,
    linked_blobs,
    lock,
    lock_tree,
    locked,
    manifest,
    matrix,
    matrix_line,
    piped,
    project,
    report,
)
from torchkiln.cli import main
from torchkiln.util.places import ROOT

_LIST = ("list", "--matrix", "matrix.yaml")
_PLAN = ("plan", "--torch", "2.7.1", "--cuda", "12.1", "--images", "images")
_CHECK = ("lock", "--check", "--torch", "2.7.1", "--cuda", "12.1", "--images", "images")
_VERIFY = ("verify", "layout")
_RUN = ("run", "--output", "layout", "a", "--", "true")
_SHOW = ("smoke", "show", "report.json")
_PROJECT = ("project", "lock", "project", "--torch", "2.7.1", "--cuda", "12.1", "--images", "images")
ESCAPE = "\x1b]0;owned\x07"


@dataclass(frozen=True, kw_only=True)
class Case:
    """`arrange` writes the document into the current folder; `torchkiln ARGV` must fail with `code`."""

    name: str
    arrange: Callable[[], object]
    argv: tuple[str, ...]
    code: int
    message: str  # text that the message must contain


@dataclass(frozen=True, kw_only=True)
class Ran:
    """The exit code and output of a run."""

    code: int
    out: str
    err: str


def provoke(case: Case, folder: Path) -> Ran:
    """Write the document of *case* into the empty *folder*, and run its command in that folder."""
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # Text streams with a bytes buffer, as in a process, because `torchkiln run` writes bytes to stdout.
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code, before = 0, Path.cwd()
    os.chdir(folder)
    try:
        case.arrange()
        with (
            patch.dict(os.environ, {"TORCHKILN_CACHE": str(folder / "cache")}),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                main(list(case.argv))
            except SystemExit as end:
                code = int(end.code or 0)
    finally:
        os.chdir(before)
        for number, handler in signals.items():
            signal.signal(number, handler)
    stdout, stderr = (stream.buffer.getvalue().decode() for stream in (out, err))
    return Ran(code=code, out=stdout, err=stderr)


def page_of(results: Mapping[str, Ran]) -> str:
    """The text of tests/golden/hostile-documents.md: the messages of all cases, by kind of document and command."""
    lines = [
        "# Messages for malformed and malicious documents",
        "",
        "`make golden` writes this page: it runs each case of `tests/hostile_documents.py` on the command line.",
        "Hashes are shortened to `…`. A hint is shown once for each command, and again where a case has another.",
        "The numbers are [exit codes](../../docs/reference.md#exit-codes).",
    ]
    kinds: dict[str, dict[tuple[tuple[str, ...], int], list[tuple[str, str, str]]]] = {}
    for case in CASES:
        found = results[case.name]
        kind, _, name = case.name.partition(": ")
        message, _, hint = re.sub(r"[0-9a-f]{64}", "…", found.err).rstrip("\n").rpartition("\nhint: ")
        kinds.setdefault(kind, {}).setdefault((case.argv, found.code), []).append((name, message, hint))
    for kind, commands in kinds.items():
        lines += ["", f"## {kind}"]
        for (argv, code), cases in commands.items():
            lines += ["", f"`torchkiln {' '.join(argv)}` exits with {code}:", *_messages(cases)]
    return "\n".join(lines) + "\n"


def _messages(cases: list[tuple[str, str, str]]) -> list[str]:
    """The lines for name, message and hint of each of *cases*; the most frequent hint is shown once."""
    usual = Counter(hint for _, _, hint in cases).most_common(1)[0][0]
    lines = ["", f"    hint: {usual}"]
    for name, message, hint in cases:
        text = message if hint == usual else f"{message}\nhint: {hint}"
        lines += ["", f"{name}:", "", *("    " + line for line in text.splitlines())]
    return lines


def _twice(text: str) -> str:
    return text.replace('"schema": 2,', '"schema": 2,\n  "schema": 2,', 1)


def _conflict(text: str) -> str:
    first, rest = text.split("\n", 1)
    return f"{first}\n<<<<<<< ours\n{rest}>>>>>>> theirs\n"


def _wheel(**fields: object) -> Callable[[Any], object]:
    return lambda document: document["wheels"][0].update(fields)


def _entry(**fields: object) -> Callable[[Any], object]:
    return lambda document: document["manifests"][0].update(fields)


_HAVE = ("smoke", "a", "--output", "layout", "--bundle", "out", "--have", "have.txt")
_NAME = "org.opencontainers.image.ref.name"
_TAGS = ".".join(f"py{number}" for number in range(100))
_BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(40))


def case(name: str, arrange: Callable[[], object], argv: tuple[str, ...], code: int, message: str) -> Case:
    """A `Case` from positional arguments, so that each case fits on one line."""
    return Case(name=name, arrange=arrange, argv=argv, code=code, message=message)


# fmt: off
# ruff: noqa: E501
CASES = (
    case("matrix: billion laughs", matrix(_BOMB), _LIST, 2, "matrix.yaml:1: anchors and aliases"),
    case("matrix: an anchor that refers to itself", matrix("a: &a [*a]\n"), _LIST, 2, "matrix.yaml:1: anchors"),
    case("matrix: nested 10,000 deep", matrix("a: " + "[" * 10_000), _LIST, 2, "matrix.yaml:1: nested deeper"),
    case("matrix: a value of a megabyte", matrix("a: " + "x" * (1 << 20)), _LIST, 2, "longer than"),
    case("matrix: a duplicate key", matrix("torch: []\ntorch: []\n"), _LIST, 2, "matrix.yaml:2: torch: duplicate key"),
    case("matrix: a merge key", matrix("<<: {torch: []}\n"), _LIST, 2, "matrix.yaml:1: merge keys"),
    case(
        "matrix: a tag that creates objects", matrix("torch: !!python/object:os.system [x]\n"), _LIST, 2,
        "matrix.yaml:1: tags (tag:yaml.org,2002:python/object:os.system)",
    ),
    case("matrix: 12.10 without quotes", matrix_line('- "12.1"', "- 12.10"), _LIST, 2, "must be text, not 12.10; put it"),
    case("matrix: a number of 50,000 hexadecimal digits", matrix_line('- "12.1"', "- 0x" + "f" * 50_000), _LIST, 2, "'0xfff"),
    case("matrix: a number of 50,000 binary digits", matrix_line('- "12.1"', "- 0b" + "1" * 50_000), _LIST, 2, "'0b111"),
    case("matrix: a number out of range", matrix_line('- "12.1"', "- 1.0e+999"), _LIST, 2, "'1.0e+999' is not major.minor"),
    case("matrix: a date without quotes", matrix_line('"2.7.1"', "2024-02-07"), _LIST, 2, "'2024-02-07' is not an exact"),
    case("matrix: a name without quotes", matrix_line("pytorch-cuda", "on"), _LIST, 2, "must be text, not on; put it in quotes"),
    case("matrix: tabs", matrix("torch:\n\t- x\n"), _LIST, 2, "matrix.yaml:2: not valid YAML"),
    case("matrix: UTF-16", matrix("torch: []\n".encode("utf-16")), _LIST, 2, "matrix.yaml:1: not UTF-8 text"),
    case("matrix: NUL", matrix("torch: []\ncuda: \0\n"), _LIST, 2, "matrix.yaml:2: not valid YAML: the control"),
    case("matrix: an empty file", matrix(""), _LIST, 2, "matrix.yaml:1: the file is empty"),
    case("matrix: a list", matrix("- torch\n"), _LIST, 2, "matrix.yaml:1: must be a mapping, not a list"),
    case("matrix: a merge conflict", matrix("<<<<<<< HEAD\n"), _LIST, 2, "matrix.yaml:1: unresolved merge conflict"),
    case("matrix: an escape sequence", matrix(f'"{json.dumps(ESCAPE)[1:-1]}": 1\n'), _LIST, 2, r"\x1b]0;owned\x07: unknown key"),
    case("matrix: a newline in a requirement", matrix_line("- numpy", '- "numpy\\nevil"'), _LIST, 2, "is not a package with"),
    case("matrix: a pipe", lambda: piped(Path("matrix.yaml")), _LIST, 2, "matrix.yaml: is a pipe, not a file"),
    case("matrix: no file", lambda: None, _LIST, 2, "matrix.yaml: No such file"),
    case("lock: an edited version", lock_tree(_wheel(version="2.5.2", filename="absl_py-2.5.2-py3-none-any.whl")), _PLAN, 5, "edited or merged incorrectly"),
    case("lock: a layer's diff_id changed", lock_tree(lambda d: d["layers"][0].update(diff_id=d["layers"][0]["digest"])), _PLAN, 5, "edited or merged incorrectly"),
    case("lock: a base package changed", lock_tree(lambda d: d["base"]["packages"].update(tar="9")), _CHECK, 5, "edited or merged incorrectly"),
    case("lock: without a seal", lock_tree(lambda d: d.pop("seal")), _PLAN, 5, "the key 'seal' is missing"),
    case("lock: another schema", lock_tree(lambda d: d.update(schema=3)), _PLAN, 5, "schema 3, not 2"),
    case("lock: a merge conflict", lock(_conflict), _PLAN, 5, "line 2: unresolved merge conflict (<<<<<<<)"),
    case("lock: truncated", lock(lambda t: t[:900]), _PLAN, 5, "not JSON"),
    case("lock: a duplicate key", lock(_twice), _PLAN, 5, "duplicate key 'schema'"),
    case("lock: a wheel that is a path", lock_tree(_wheel(filename="../../../etc/cron.d/x.whl")), _PLAN, 5, "wheels[0].filename: '../../../etc"),
    case("lock: a negative size", lock_tree(_wheel(size=-1)), _PLAN, 5, "wheels[0].size: -1 is less than 1"),
    case("lock: a number of 31 digits", lock(lambda t: t.replace('"epoch": ', '"epoch": 1' + "0" * 20)), _PLAN, 5, "a number of 31 digits"),
    case("lock: NaN", lock(lambda t: t.replace('"epoch": ', '"epoch": NaN, "x": ')), _PLAN, 5, "NaN is not valid JSON"),
    case("lock: a newline in a name", lock_tree(_wheel(name="absl-py\nevil==1")), _PLAN, 5, r"'absl-py\nevil==1' is not a"),
    case("lock: an escape sequence in a title", lock_tree(lambda d: d["layers"][0].update(title=ESCAPE)), _PLAN, 5, "layers[0].title"),
    case("lock: nested 100,000 deep", lock(lambda t: "[" * 100_000), _PLAN, 5, "nested too deep"),
    case("lock: of another image", lambda: (locked(), shutil.copy(ROOT / "images/2.6.0-cuda12.1-cudnn9-runtime/lock.json", LOCK)), _PLAN, 5, "is the lock of 2.6.0-cuda12.1-cudnn9-runtime, not of 2.7.1"),
    case("lock: a folder", lambda: LOCK.mkdir(parents=True), _PLAN, 5, "lock.json: is a directory, not a file"),
    case("base.json: a digest that is a path", lock_tree(lambda d: d.update(digest="sha256:../../etc/passwd"), BASE), _CHECK, 2, "base.json: digest: 'sha256:../../etc/passwd' is not"),
    case("layout: a digest that is a path", index(_entry(digest="sha256:../../../etc/passwd")), _VERIFY, 12, "'sha256:../../../etc/passwd' is not a sha256 digest"),
    case("layout: run with a digest that is a path", index(_entry(digest="sha256:../../../etc/passwd")), _RUN, 12, "manifests[0].digest: 'sha256:../../../etc/passwd' is not"),
    case("layout: another algorithm", index(_entry(digest="md5:" + "0" * 32)), _VERIFY, 12, "is not a sha256 digest"),
    case("layout: a size that is a boolean", index(_entry(size=True)), _VERIFY, 12, "mediaType or size is missing"),
    case("layout: an escape sequence in a name", index(_entry(annotations={_NAME: ESCAPE})), _VERIFY, 12, r"\x1b]0;owned\x07' is not a valid image name"),
    case("layout: an annotation that is a number", index(_entry(annotations={_NAME: 7})), _VERIFY, 12, "annotations is not a mapping of strings"),
    case("layout: a platform that differs from the config", index(_entry(platform={"os": "linux", "architecture": "arm64"})), _VERIFY, 12, "architecture is 'amd64', but 'arm64' in the index"),
    case("layout: 12,000 entries", index(lambda d: d.update(manifests=d["manifests"] * 12_000)), _RUN, 12, "has 12000 entries"),
    case("layout: an index of 5 MB", layout(lambda p: (p / "index.json").write_text(" " * 5_000_000)), _VERIFY, 12, "longer than 4194304 bytes"),
    case("layout: a manifest that is a link", first_blob(lambda p: linked(p, "/etc/passwd")), _VERIFY, 12, "is not a regular file"),
    case("layout: a manifest that is a pipe", first_blob(piped), _RUN, 12, "is a pipe, not a file"),
    case("layout: a manifest with another digest", first_blob(lambda p: (p.unlink(), p.write_text("{}"))), _RUN, 12, "digest mismatch"),
    case("layout: another version", layout(lambda p: (p / "oci-layout").write_text('{"imageLayoutVersion": ["1"]}')), _VERIFY, 12, "layout version a list, not '1.0.0'"),
    case("layout: a version of a megabyte", layout(lambda p: (p / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "9" * 1_000_000}))), _RUN, 12, "unknown layout version '9999"),
    case("layout: an index without manifests", layout(lambda p: (p / "index.json").write_text("{}")), _RUN, 12, "index.json: manifests: must be a list, not nothing"),
    case("layout: run with annotations that are a list", index(_entry(annotations=[])), _RUN, 12, "manifests[0].annotations: must be a mapping"),
    case("layout: no version file", layout(lambda p: (p / "oci-layout").unlink()), _RUN, 12, "oci-layout: No such file"),
    case("layout: blobs is a symbolic link", layout(linked_blobs), _RUN, 2, "layout/blobs is a symbolic link"),
    case("layout: Layers and layers", manifest(lambda d: d.update(Layers=[])), _RUN, 12, "the key 'Layers' differs from 'layers' only in case"),
    case("layout: verify with Layers and layers", manifest(lambda d: d.update(Layers=[])), _VERIFY, 12, "the key 'Layers' differs from 'layers' only in case"),
    case("layout: env and Env", config(lambda d: d["config"].update(env=["LD_PRELOAD=/x"])), _RUN, 12, "the key 'env' differs from 'Env' only in case"),
    case("layout: 10,000 layers", manifest(lambda d: d.update(layers=d["layers"][:1] * 10_000)), _RUN, 12, "has 10000 entries; at most 1000 are allowed"),
    case("layout: 300,000 labels", config(lambda d: d["config"].update(Labels={f"{n:x}": "" for n in range(300_000)})), _RUN, 12, "more than 200000 values"),
    case("layout: a million entries of history", config(lambda d: d.update(history=[{}] * 1_000_000)), _RUN, 12, "more than 200000 values"),
    case("layout: a history of strings", config(lambda d: d.update(history=["x"])), ("diff", "a", "a", "--output", "layout"), 12, "history[0]: must be a mapping, not 'x'"),
    case("layout: a layer with a negative size", manifest(lambda d: d["layers"][0].update(size=-1)), _RUN, 12, "layers[0].size: -1 is less than 0"),
    case("layout: a layer with a fraction as size", manifest(lambda d: d["layers"][0].update(size=1.5)), _RUN, 12, "layers[0].size: must be a whole number"),
    case("layout: a media type that is a list", manifest(lambda d: d["layers"][0].update(mediaType=["x"])), _RUN, 12, "layers[0].mediaType: must be text"),
    case("layout: a user beyond 32 bits", config(lambda d: d["config"].update(User="4294967296")), _RUN, 2, "the largest id is 4294967294"),
    case("layout: volumes that are a list", config(lambda d: d["config"].update(Volumes=["/v"])), _RUN, 12, "config.Volumes: must be a mapping or nothing"),
    case("report: an invalid verdict", report(lambda d: {**d, "verdict": "splendid"}), _SHOW, 2, "verdict: 'splendid' is not valid"),
    case("report: not JSON", report(lambda d: "PASS"), _SHOW, 2, "report.json: line 1: not JSON"),
    case("report: Infinity", report(lambda d: json.dumps({**d, "schema": float("inf")})), _SHOW, 2, "Infinity is not valid JSON"),
    case("project: a dotted key of 40 kB", project("pyproject.toml", "a" + ".a" * 20_000 + " = 1\n"), _PROJECT, 2, "pyproject.toml: a key of more than 16 parts"),
    case("project: a number of 4 MB", project("pyproject.toml", "a = 0x" + "f" * 4_000_000), _PROJECT, 2, "pyproject.toml: a number of more than 1000 digits, or a word of more than 200"),
    case("project: a million tables", project("pylock.toml", "[[a]]\n" * 1_000_000), _PROJECT, 2, "pylock.toml: more than 262144 values"),
    case("project: eight megabytes of lines", project("requirements.txt", "a\n" * 4_000_000), _PROJECT, 2, "requirements.txt: more than 262144 lines"),
    case("project: 5,001 options", project("requirements.txt", "--prefer-binary\n" * 5_001), _PROJECT, 2, "more than 5000 requirements"),
    case("project: a million tags", project("requirements.txt", f"./a-1-{_TAGS}-{_TAGS}-{_TAGS}.whl\n"), _PROJECT, 2, "not a valid wheel filename"),
    case("layers of a host: a path", held(b"../../etc/passwd\n"), _HAVE, 2, "line 1: not a sha256 digest: '../../etc/passwd'"),
    case("layers of a host: ten thousand lines of another file", held(b"\xff\x00\x1b[2J\n" * 10_000), _HAVE, 2, "and 9995 more lines"),
    case("layers of a host: two megabytes", held(b"#" * (2 << 20)), _HAVE, 2, "longer than 1048576 bytes"),
    case("layers of a host: a pipe", held(None), _HAVE, 2, "have.txt: is a pipe, not a file"),
)
# fmt: on
