"""Chooses the language of messages, English or Chinese, by the locale variables."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from workplace import doctor_texts, start_texts

TEXTS = doctor_texts.TEXTS | start_texts.TEXTS
_LANGUAGES = ("en", "zh")  # the order in TEXTS
_ENCODINGS = ("", "utf8")  # "zh_CN" without an encoding, too: output of containers is UTF-8
_used = 0


def language(environ: Mapping[str, str]) -> str:
    """`zh` if the locale of *environ* is Chinese and the output is UTF-8, else `en`."""
    name = next((environ[key] for key in ("LC_ALL", "LC_MESSAGES", "LANG") if environ.get(key)), "")
    encoding = name.partition("@")[0].partition(".")[2].lower().replace("-", "")
    output = sys.stdout.encoding if sys.stdout else ""  # None: closed
    known = encoding in _ENCODINGS and output.lower().replace("-", "") == "utf8"
    return "zh" if name.lower().startswith("zh") and known else "en"


def use(chosen: str) -> None:
    """Let `message` return texts in the language *chosen* from now on; before, they are English."""
    global _used
    _used = _LANGUAGES.index(chosen)


def message(key: str, **values: object) -> str:
    """The text *key* in the language in use, with *values* in its placeholders."""
    return TEXTS[key][_used].format(**values)


def listed(names: list[str]) -> str:
    """*names*, separated as the language does."""
    return message("list.separator").join(names)
