"""Remove comments and docstrings from the source of a check, and write its syntax tree as text.

A suite's digest does not cover comments and docstrings, so that a reworded comment needs no new GPU reports.
They cannot change the result of a check: `stripped` removes them from the copy that runs.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import lru_cache

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
