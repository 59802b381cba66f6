"""matrix.yaml's text and a new version -> the text with it: one line more, all else as it was.

The file is people's: comments, order and blank lines stay. PyYAML tells where the list stands, and no more.
"""

from __future__ import annotations

import re

import yaml

from torchkiln.errors import ConfigError
from torchkiln.versions import DOTTED, numbers


def with_version(text: str, key: str, version: str, *, name: str) -> str:
    """*text* with *version* in the list *key*, behind the newest that is older; *text* has been read before.

    :param name: of the file, for messages.
    :raises ConfigError: the list has a form in which nothing can be put by its text.
    """
    node = _list(text, key)
    items = [item for item in node.value if isinstance(item, yaml.ScalarNode)] if node else []
    if node is None or not items:
        raise _by_hand(name, key, version)
    older = [
        item for item in items if DOTTED.fullmatch(item.value) and numbers(item.value) < numbers(version)
    ]
    beside = max(older, key=lambda item: numbers(item.value)) if older else items[0]
    begin, end = beside.start_mark.index, beside.end_mark.index
    if node.flow_style:
        return (
            f'{text[:end]}, "{version}"{text[end:]}'
            if older
            else f'{text[:begin]}"{version}", {text[begin:]}'
        )
    line = text.rfind("\n", 0, begin) + 1
    lead = text[line:begin]
    if not re.fullmatch(r"[ \t]*-[ \t]+", lead):
        raise _by_hand(name, key, version)
    new = f'{lead}"{version}"' + ("\r\n" if "\r\n" in text else "\n")
    if not older:
        return text[:line] + new + text[line:]
    if (after := text.find("\n", end) + 1) == 0:  # the file's last line has no end
        return f"{text}\n{new}"
    return text[:after] + new + text[after:]


def _list(text: str, key: str) -> yaml.SequenceNode | None:
    root = yaml.compose(text, Loader=yaml.SafeLoader)  # libyaml's marks may count bytes
    pairs = root.value if isinstance(root, yaml.MappingNode) else ()
    return next(
        (node for name, node in pairs if name.value == key and isinstance(node, yaml.SequenceNode)), None
    )


def _by_hand(name: str, key: str, version: str) -> ConfigError:
    return ConfigError(
        f"{name}: the list {key} has a form into which no line can be put; nothing was written",
        hint=f'write it by hand, under {key}:  - "{version}"',
    )
