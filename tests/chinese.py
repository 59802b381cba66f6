"""Finds English on the Chinese pages of the catalogue: every Latin word that is not a name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser

from tests.site_scene import listed
from tools.kept import tables
from torchkiln.smoke.suite import load_suite

#: Names, units and terms that Chinese documents, such as `docs/*.zh-CN.md`, write in Latin letters.
TERMS = frozenset(
    """
    torch PyTorch pytorch-cuda JavaScript CUDA cuDNN cuSPARSELt NCCL GPU NVIDIA Python Docker JupyterLab SSH
    JSON OCI SBOM PTX Triton NVRTC Jetson DataLoader NVSwitch FlashAttention API ABI C++ SHA-256 Linux
    aarch64 triton sympy lit cmake numpy torchaudio torchvision torchkiln pick nvidia-smi
    nvidia-fabricmanager nvidia-uvm dmesg sysctl root rootfs runtime devel wheel tier digest
    manifest stub kernel MiB GiB GB MB kB Esc A B torch.compile libcuda.so user.max_user_namespaces
    CUDA_VISIBLE_DEVICES
    """.split()  # noqa: SIM905 -- words are easier to read
)
_SKIPPED = ("script", "style", "code", "pre")  # commands and digests
_VOID = ("meta", "link", "input", "br")
_SHOWN = ("aria-label", "title", "alt", "placeholder")  # attributes that users see or hear
_WORD = re.compile(r"\w[\w.+-]*(?<!\.)", re.ASCII)
# Words with a digit, and variables: versions, tags, architectures, cu126.
_IDENTIFIER = re.compile(r"\S*\d\S*|[A-Z]+(_[A-Z]+)+")
_NOT_WORDS = re.compile(r"--[a-z-]+|/[\w./-]+", re.ASCII)  # options and paths
_PAIR = re.compile(r"([A-Za-z][\w.-]*) (?=v?\d)")  # a package and its version
#: JavaScript that returns what the browser shows: the texts of elements, and the attributes in `_SHOWN`.
COLLECT = """() => {
  const skipped = (node) => node.parentElement.closest("script, style, code, pre, [lang=en]");
  const walk = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walk.nextNode()) if (!skipped(walk.currentNode)) found.push(walk.currentNode.data.trim());
  for (const name of ["aria-label", "title", "alt", "placeholder"])
    for (const one of document.querySelectorAll(`[${name}]:not(code)`)) found.push(one.getAttribute(name));
  return [...new Set(found)].filter(Boolean);
}"""


def english_in(text: str) -> list[str]:
    """The words of *text* that are not names.

    >>> english_in("2.7.1-cuda12.1-cudnn9-runtime 的设备代码"), english_in("wheel has no PTX")
    ([], ['has', 'no'])
    """
    if text.strip() in _names():
        return []
    left = _PAIR.sub(lambda found: "" if found[1] in _packages() else found[0], text)
    for gpu in _gpus():
        left = left.replace(gpu, "")
    return [word for word in _WORD.findall(_NOT_WORDS.sub("", left)) if not _is_name(word)]


def _is_name(word: str) -> bool:
    package = word in _packages() and "-" in word
    return word in TERMS or package or bool(_IDENTIFIER.fullmatch(word))


class ShownTexts(HTMLParser):
    """The texts of a page that are not marked with `lang=en`, and the number of elements with that mark."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.english = 0
        self._open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        skip = tag in _SKIPPED or given.get("lang") == "en"
        self.english += given.get("lang") == "en"
        if not skip:
            self.texts += [given[name] or "" for name in _SHOWN if name in given]
        if tag not in _VOID:
            self._open.append("skip" if skip else tag)

    def handle_endtag(self, tag: str) -> None:
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if "skip" not in self._open and data.strip():
            self.texts.append(data.strip())


def chinese_texts(page: str) -> Iterator[str]:
    """The texts of a Chinese *page*, without duplicates."""
    yield from dict.fromkeys(ShownTexts(page).texts)


@cache
def _packages() -> frozenset[str]:
    """All package names, and their short forms in layer titles: `cuda-cupti` for `nvidia-cuda-cupti-cu12`."""
    found = {package.name for image in listed().images for package in image.packages}
    return frozenset(found | {re.sub(r"-cu\d+$", "", name.removeprefix("nvidia-")) for name in found})


@cache
def _gpus() -> tuple[str, ...]:
    """The names of GPUs, the longest first."""
    names = {name for kind in tables()[1].gpus for name in kind.names}
    names |= {run.gpus.partition(" × ")[2] or run.gpus for image in listed().images for run in image.runs}
    return tuple(sorted(filter(None, names), key=len, reverse=True))


@cache
def _names() -> frozenset[str]:
    """Texts that are only a name: of a package, version, check, alias, report file or repository."""
    images = listed().images
    found = {package.name for image in images for package in image.packages}
    found |= {package.version for image in images for package in image.packages}
    found |= {check.id for check in load_suite().checks} | {listed().repository}
    aliases = [image.aliases for image in images]
    found |= {between.join(names) for names in aliases for between in (" · ", "、")}
    return frozenset(found | {run.file for image in images for run in image.runs})
