"""Load a folder of checks as a suite: its digest, its checks, and which of them apply to a cell.

The folder is read once. The digest, the catalogue and every run use these bytes, so that later changes of the
folder have no effect. The digest does not cover comments and docstrings, so that a reworded comment needs no
new GPU reports. They cannot change the result of a check: `stripped` removes them from the copy that runs.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from torchkiln.errors import ConfigError
from torchkiln.model.digest import Digest
from torchkiln.smoke.snapshot import copied, read_tree
from torchkiln.util.places import ROOTFS, SMOKE_TESTS

REQUIREMENTS = "requirements.txt"  # pytest and what it needs, with hashes
# A suite without this file gets the one that images contain for the command `doctor`.
DRIVER_PROBE = "probes/driver.py"
_DRIVER_PROBE_OF_IMAGES = ROOTFS / "opt/torchkiln/workplace/driver_probe.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteCheck:
    id: str
    tier: int
    of_image: bool = False  # it compares an image with its lock, and is not run without an image
    # Its values by name, as declared in the suite; None in a clearance, which names only the checks.
    values: Mapping[str, Mapping[str, Any]] | None = field(default=None, hash=False, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """The checks in *folder*; *digest* is the digest of *files*."""

    folder: Path  # for messages; the folder is not read again
    files: Mapping[str, bytes] = field(hash=False, repr=False)
    digest: Digest
    checks: tuple[SuiteCheck, ...]
    not_applicable: Callable[[str, Mapping[str, Any], tuple[int, int] | None], str | None]
    expected: Callable[[str, Mapping[str, Any], Mapping[str, Any]], Any]  # name, facts, host

    def runnable(self) -> dict[str, bytes]:
        """The files to run; Python without comments and docstrings, which the digest does not cover."""
        return {path: _code(path, data) for path, data in self.files.items()}

    def tier_of(self, names: Iterable[str]) -> int:
        """The highest tier of the checks *names*; 0 if the suite has none of them."""
        return max((check.tier for check in self.checks if check.id in names), default=0)

    @property
    def requirements(self) -> bytes:
        """The requirements file for pytest.

        :raises ConfigError: the suite has none.
        """
        try:
            return self.files[REQUIREMENTS]
        except KeyError:
            raise ConfigError(
                f"{self.folder}: {REQUIREMENTS} not found", hint="name a suite that has it: --suite FOLDER"
            ) from None


def load_suite(folder: Path | None = None) -> Suite:
    """The suite in *folder*; None: torchkiln's own.

    Its modules catalogue, applicable and expected run in this process, not in an image. They are compiled
    from the bytes that were hashed; bytecode in the folder is not loaded.

    :raises ConfigError: it is not a valid suite, or contains a file that is not source or data.
    """
    folder = folder or SMOKE_TESTS
    try:
        files = _files(folder)
        checks = _checks(files)
        rule = _module(files, "applicable").not_applicable
        expected = _module(files, "expected").expected
    except Exception as error:  # the suite's own code can raise anything
        raise _not_a_suite(folder, error) from error
    return Suite(
        folder=folder,
        files=files,
        digest=_digest(files),
        checks=checks,
        not_applicable=rule,
        expected=expected,
    )


def suite_digest(folder: Path) -> Digest:
    """The digest of all files: of a Python file the syntax tree without docstrings is hashed, else the bytes.

    :raises ConfigError: a file is not allowed in a suite: a link, a device, compiled code.
    """
    try:
        return _digest(_files(folder))
    except (OSError, ValueError) as error:
        raise _not_a_suite(folder, error) from error


def _files(folder: Path) -> dict[str, bytes]:
    files = read_tree(folder)
    if DRIVER_PROBE not in files:
        files[DRIVER_PROBE] = _DRIVER_PROBE_OF_IMAGES.read_bytes()
    return dict(sorted(files.items(), key=lambda item: PurePosixPath(item[0]).parts))


def _not_a_suite(folder: Path, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or error
    hint = "name a folder with catalogue.py and the tests: --suite FOLDER"
    return ConfigError(f"{folder}: not a folder of smoke tests: {reason}", hint=hint)


def _digest(files: Mapping[str, bytes]) -> Digest:
    digest = hashlib.sha256()
    for path, data in files.items():
        try:
            content = canonical(data).encode() if path.endswith(".py") else data
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        digest.update(f"{path}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return Digest(f"sha256:{digest.hexdigest()}")


def _code(path: str, data: bytes) -> bytes:
    return stripped(data) if path.endswith(".py") else data


def _checks(files: Mapping[str, bytes]) -> tuple[SuiteCheck, ...]:
    with copied(files, "smoke_tests") as copy:
        return tuple(
            SuiteCheck(id=entry.id, tier=entry.tier, of_image=entry.of_image, values=entry.values)
            for entry in _module(files, "catalogue").catalogue(copy)
        )


def _module(files: Mapping[str, bytes], name: str) -> ModuleType:
    """The suite's module *name*, from its source."""
    if (source := files.get(f"{name}.py")) is None:
        raise OSError(f"{name}.py not found")
    module = ModuleType(f"_torchkiln_suite_{name}")
    exec(compile(stripped(source), f"smoke_tests/{name}.py", "exec", dont_inherit=True), module.__dict__)
    return module


# Fields of the syntax tree that have no effect at run time.
_NO_EFFECT = frozenset({"kind", "type_comment", "type_ignores"})


@lru_cache(maxsize=256)  # a command reads the same suite several times
def canonical(source: bytes) -> str:
    """The syntax tree of *source* without docstrings, as the same text on every Python that can parse it.

    :raises ValueError: *source* is not Python.
    """
    tree = _parsed(_text(source))
    for body in _documented(tree):
        del body[0]
    try:
        return _written(tree)
    except RecursionError:
        raise ValueError("not Python: nested too deeply") from None


@lru_cache(maxsize=256)
def stripped(source: bytes) -> bytes:
    """*source* in UTF-8 without comments, and with empty docstrings. Every line keeps its number.

    :raises ValueError: *source* is not Python.
    """
    text = _text(source)
    lines = [line.encode() for line in text.split("\n")]
    for token in _tokens(text):
        if token.type == tokenize.COMMENT:  # no code follows a comment on its line
            row, column = token.start
            lines[row - 1] = lines[row - 1].decode()[:column].encode()
    for body in _documented(_parsed(text)):
        value = body[0].value  # type: ignore[attr-defined]  # it is an expression
        first, last = value.lineno - 1, value.end_lineno - 1
        rest = lines[last][value.end_col_offset :]
        lines[first] = lines[first][: value.col_offset] + b'""' + rest
        lines[first + 1 : last + 1] = [b""] * (last - first)
    found = b"\n".join(lines)
    if canonical(found) != canonical(source):
        raise ValueError("comments and docstrings cannot be separated from the code")
    return found


def _text(source: bytes) -> str:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        text = source.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise ValueError(f"not Python: {error}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"not Python: {error}") from None


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    try:
        yield from tokenize.generate_tokens(io.StringIO(text).readline)
    except (SyntaxError, tokenize.TokenError, ValueError) as error:
        raise ValueError(f"not Python: {error}") from None


def _documented(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """The bodies of modules, classes and functions that start with a docstring."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            value = first.value if isinstance(first, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield node.body


def _written(value: object) -> str:
    """A *value* of a syntax tree as text, without empty fields, because newer Pythons add empty fields."""
    if isinstance(value, ast.Constant):
        return f"Constant({value.value!a})"
    if isinstance(value, ast.AST):
        fields = ((name, field) for name, field in ast.iter_fields(value) if name not in _NO_EFFECT)
        texts = (f"{name}={_written(field)}" for name, field in fields if field is not None and field != [])
        return f"{type(value).__name__}({', '.join(texts)})"
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    return ascii(value)
