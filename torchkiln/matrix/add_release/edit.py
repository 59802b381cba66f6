"""Inserts lines into the texts of matrix.yaml and of the facts; the rest of a text does not change.

PyYAML only finds the position of the list, so that comments, order and blank lines are kept.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from torchkiln.errors import ConfigError
from torchkiln.util.versions import DOTTED, numbers


def with_version(text: str, key: str, version: str, *, name: str) -> str:
    """The valid matrix *text* with *version* in the list *key*, after the newest older version.

    :param name: of the file, for messages.
    :raises ConfigError: the layout of the list is not supported.
    """
    return _with(text, key, version, f'"{version}"', name)


def with_pair(text: str, torch: str, cuda: str, *, name: str) -> str:
    """The valid matrix *text* with a pair in `beyond`, after those of an older torch.

    :raises ConfigError: the layout of the list is not supported.
    """
    item = f'{{torch: "{torch}", cuda: "{cuda}"}}'
    if _list(text, "beyond") is None:
        end = "\r\n" if "\r\n" in text else "\n"
        return f"{text.rstrip()}{end}{end}beyond:{end}  - {item}{end}"
    return _with(text, "beyond", torch, item, name)


def with_block(text: str, key: str, version: str, block: str, *, name: str) -> str:
    """The valid facts *text* with *block*, the lines of *version*, in the mapping *key*.

    It is inserted after the block of the newest older version, separated like the others.

    :raises ConfigError: the mapping has no older version.
    """
    root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = next(value.value for key_node, value in root.value if key_node.value == key)
    older = [
        (numbers(entry.value), value) for entry, value in pairs if numbers(entry.value) < numbers(version)
    ]
    if not older:
        raise ConfigError(
            f"{name}: {key} has no version before {version}", hint=f"insert the lines yourself, under {key}"
        )
    end = text.find("\n", _last(max(older, key=lambda pair: pair[0])[1])) + 1
    blank = "\n" if block.count("\n") > 1 else ""
    return f"{text[:end]}{blank}{block}{text[end:]}"


def _last(node: yaml.Node) -> int:
    """The index of the last character of *node*; a block's end mark is after the comments that follow it."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        return _last(node.value[-1][1])
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return _last(node.value[-1])
    index: int = node.end_mark.index - 1
    return index


def _with(text: str, key: str, version: str, item: str, name: str) -> str:
    """*text* with *item*, which has *version*, in the list *key*."""
    node = _list(text, key)
    items = [(entry, number) for entry in node.value if (number := _version(entry))] if node else []
    if node is None or not items:
        raise _unsupported(name, key, item)
    older = [(numbers(number), entry) for entry, number in items if numbers(number) < numbers(version)]
    beside = max(older, key=lambda pair: pair[0])[1] if older else items[0][0]
    begin, end = beside.start_mark.index, beside.end_mark.index
    if node.flow_style:
        return f"{text[:end]}, {item}{text[end:]}" if older else f"{text[:begin]}{item}, {text[begin:]}"
    line = text.rfind("\n", 0, begin) + 1
    lead = text[line:begin]
    if not re.fullmatch(r"[ \t]*-[ \t]+", lead) or "\n" in text[begin:end]:
        raise _unsupported(name, key, item)
    new = f"{lead}{item}" + ("\r\n" if "\r\n" in text else "\n")
    if not older:
        return text[:line] + new + text[line:]
    if (after := text.find("\n", end) + 1) == 0:  # the last line has no newline
        return f"{text}\n{new}"
    return text[:after] + new + text[after:]


def _version(item: yaml.Node) -> str | None:
    """The version in *item*, a version or a pair with a torch version; None: neither."""
    if isinstance(item, yaml.MappingNode):
        item = next((value for key, value in item.value if key.value == "torch"), item)
    found = item.value if isinstance(item, yaml.ScalarNode) else ""
    return found if DOTTED.fullmatch(found) else None


def _list(text: str, key: str) -> yaml.SequenceNode | None:
    root = yaml.compose(text, Loader=yaml.SafeLoader)  # libyaml's marks may count bytes
    pairs = root.value if isinstance(root, yaml.MappingNode) else ()
    return next(
        (node for name, node in pairs if name.value == key and isinstance(node, yaml.SequenceNode)), None
    )


def _unsupported(name: str, key: str, item: str) -> ConfigError:
    return ConfigError(
        f"{name}: cannot insert a line into the list {key}: its layout is not supported",
        hint=f"add the line yourself, under {key}:  - {item}",
    )
