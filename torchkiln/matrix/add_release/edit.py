"""matrix.yaml's text and a new version or pair -> the text with it: one line more, all else as it was.

The file is people's: comments, order and blank lines stay. PyYAML tells where the list stands, and no more.
"""

from __future__ import annotations

import re

import yaml

from torchkiln.errors import ConfigError
from torchkiln.util.versions import DOTTED, numbers


def with_version(text: str, key: str, version: str, *, name: str) -> str:
    """*text* with *version* in the list *key*, behind the newest that is older; *text* has been read before.

    :param name: of the file, for messages.
    :raises ConfigError: the list has a form in which nothing can be put by its text.
    """
    return _with(text, key, version, f'"{version}"', name)


def with_pair(text: str, torch: str, cuda: str, *, name: str) -> str:
    """*text* with a cell beyond, behind those of an older torch; *text* has been read before.

    :raises ConfigError: as above.
    """
    item = f'{{torch: "{torch}", cuda: "{cuda}"}}'
    if _list(text, "beyond") is None:
        end = "\r\n" if "\r\n" in text else "\n"
        return f"{text.rstrip()}{end}{end}beyond:{end}  - {item}{end}"
    return _with(text, "beyond", torch, item, name)


def _with(text: str, key: str, version: str, item: str, name: str) -> str:
    """*text* with *item*, which is of *version*, in the list *key*."""
    node = _list(text, key)
    items = [(one, of) for one in node.value if (of := _version(one))] if node else []
    if node is None or not items:
        raise _by_hand(name, key, item)
    older = [(numbers(of), one) for one, of in items if numbers(of) < numbers(version)]
    beside = max(older, key=lambda pair: pair[0])[1] if older else items[0][0]
    begin, end = beside.start_mark.index, beside.end_mark.index
    if node.flow_style:
        return f"{text[:end]}, {item}{text[end:]}" if older else f"{text[:begin]}{item}, {text[begin:]}"
    line = text.rfind("\n", 0, begin) + 1
    lead = text[line:begin]
    if not re.fullmatch(r"[ \t]*-[ \t]+", lead) or "\n" in text[begin:end]:
        raise _by_hand(name, key, item)
    new = f"{lead}{item}" + ("\r\n" if "\r\n" in text else "\n")
    if not older:
        return text[:line] + new + text[line:]
    if (after := text.find("\n", end) + 1) == 0:  # the file's last line has no end
        return f"{text}\n{new}"
    return text[:after] + new + text[after:]


def _version(item: yaml.Node) -> str | None:
    """Of a version its own, of a pair its torch."""
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


def _by_hand(name: str, key: str, item: str) -> ConfigError:
    return ConfigError(
        f"{name}: the list {key} has a form into which no line can be put; nothing was written",
        hint=f"write it by hand, under {key}:  - {item}",
    )
