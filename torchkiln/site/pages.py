"""Renders the catalogue to the files of a folder: pages in each language, JSON, and the reports.

Each page contains its style and its scripts, so that it works as a local file. Its Content-Security-Policy
allows only these, by their hashes. Values from locks, reports and the matrix are text: the templates escape
them, and the script sets them only as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

from torchkiln.matrix import explain, pick
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.gpu_archs import how_served, is_kept_for
from torchkiln.model.cell import Source
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.model.report import Finding
from torchkiln.publishing.warnings import WARNINGS
from torchkiln.site.catalogue import Catalogue, ListedImage
from torchkiln.site.documents import commands, image_json, index_json
from torchkiln.util.files import pretty_json
from torchkiln.util.sentences import Texts, Value, said
from torchkiln.util.sizes import size
from torchkiln.util.versions import major_of, numbers

TEMPLATES = Path(__file__).with_name("templates")
_TEXTS = Path(__file__).with_name("texts.yaml")
_POLICY = (
    "default-src 'none'; img-src data:; style-src {style}; script-src {theme} {script}; base-uri 'none';"
    " form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
# The texts that the script uses, by page.
_OF_SEARCH = "found found_none comma"
_OF_PICKER = "not_a_driver runs runs_none pick_order no_conditions fails comma semicolon"
_OF_COMPARISON = (
    "kind kind_python kind_os kind_toolkit name compare_same changed_packages other_files layers"
    " shared_layers only_in unknown_more comma colon"
)
_OF_IMAGE = "copy copied"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """A text of a page."""

    text: str
    lang: str = ""  # "en": an English message of a program; empty: the language of the page


@dataclass(frozen=True, kw_only=True, slots=True)
class Language:
    """A language of the pages, and the texts by name."""

    code: str  # as in HTML's `lang`
    folder: str  # of its pages, with a slash at its end; empty: the root
    texts: Texts

    @property
    def is_english(self) -> bool:
        """Whether messages of programs, which are English, are in the language of the page."""
        return self.code == "en"

    def said(self, value: Value) -> str:
        return said(value, self.texts)

    def notice(self, value: Value) -> Shown:
        """A warning about an image: a sentence, or an English message about invalid statements."""
        return self._quoted(value) if isinstance(value, str) else Shown(text=self.said(value))

    def reason(self, finding: Finding) -> Shown:
        """Why a check does not apply, was skipped or failed; it is empty if the check passed."""
        if finding.outcome == "not-applicable":
            names = (f"{table}.{finding.message}" for table in ("checks", "traps"))
            if name := next((name for name in names if name in self.texts), None):
                return Shown(text=self.texts[name])
        return self._quoted(finding.message)

    def _quoted(self, text: str) -> Shown:
        return Shown(text=text, lang="en" if text and not self.is_english else "")


def languages(facts: Facts) -> tuple[Language, ...]:
    """The languages of the site, English first; *facts* has the English sentences of limits."""
    pairs = _pairs()
    english = {name: text for name, (text, _) in pairs.items() if text}
    limits = {f"checks.{name}": text for name, text in facts.checks.items()} | dict(facts.limit_texts)
    tables: tuple[Texts, ...] = (pick.SENTENCES, explain.SENTENCES, WARNINGS, limits)
    for table in tables:
        english |= table
    chinese = {name: text for name, (_, text) in pairs.items()}
    of = Language
    return of(code="en", folder="", texts=english), of(code="zh-Hans", folder="zh/", texts=chinese)


@cache
def _pairs() -> Mapping[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = yaml.safe_load(_TEXTS.read_text("utf-8"))
    return found


def render(catalogue: Catalogue, facts: Facts, reports: Mapping[str, bytes]) -> dict[str, bytes]:
    """Every file by its path in the folder.

    :param reports: the files of the reports, and of their keys, by name.
    """
    english, *_ = both = languages(facts)
    data = {"pick": picker_data(catalogue.images, facts), "compare": packed(catalogue.images)}
    files = {f"reports/{name}": content for name, content in reports.items()}
    files |= {"index.json": pretty_json(index_json(catalogue, english.texts))}
    files |= {f"{name}.json": pretty_json(value) for name, value in data.items()}
    for image in catalogue.images:
        files[f"tags/{image.tag}.json"] = pretty_json(image_json(image, catalogue, english.texts))
    for language, other in (both, reversed(both)):
        files |= {path: text.encode() for path, text in _pages(catalogue, data, language, other)}
    return files


def _pages(
    catalogue: Catalogue, data: Mapping[str, Any], language: Language, other: Language
) -> Iterator[tuple[str, str]]:
    """The pages of one language, by path; each leads to the same page in the *other*."""
    environment = _environment()
    inside = {name: (TEMPLATES / name).read_text("utf-8") for name in ("site.css", "theme.js", "site.js")}
    style, theme, script = map(_source, inside.values())
    releases = sorted({image.resolution.cell.torch for image in catalogue.images}, key=numbers)
    shared = {
        "catalogue": catalogue,
        "t": language.texts,
        "language": language,
        "other": other,
        "inside": inside,
        "policy": _POLICY.format(style=style, theme=theme, script=script),
        "releases": "–".join(dict.fromkeys((releases[0], releases[-1]))),
    }

    def page(template: str, name: str, **values: Any) -> tuple[str, str]:
        place = f"{language.folder}{name}"
        up = "../" * place.count("/")
        found = environment.get_template(template).render(**shared, **values, name=name, up=up)
        return place, found

    def texts(names: str) -> dict[str, str]:
        return {name: language.texts[name] for name in names.split()}

    table = data["compare"]
    yield page("index.html.j2", "index.html", data={"texts": texts(_OF_SEARCH), "packed": table})
    picker = {**data["pick"], "sentences": {name: language.texts[name] for name in pick.SENTENCES}}
    in_language = {"texts": texts(_OF_PICKER), "pick-data": picker}
    yield page("pick.html.j2", "pick.html", data=in_language)
    yield page("compare.html.j2", "compare.html", data={"texts": texts(_OF_COMPARISON), "packed": table})
    for image in catalogue.images:
        yield page(
            "image.html.j2",
            f"tags/{image.tag}.html",
            image=image,
            commands=commands(image, catalogue),
            data={"texts": texts(_OF_IMAGE)},
        )


def _environment() -> Any:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["bytes"] = size
    environment.filters["fill"] = lambda text, **values: text.format(**values)
    environment.filters["data"] = lambda value: Markup(_inert(value))
    return environment


def _inert(value: Any) -> str:
    """*value* as JSON that cannot end the script element in which it is."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _source(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


T = TypeVar("T", bound=Hashable)


def packed(images: Sequence[ListedImage]) -> dict[str, Any]:
    """Each package and each layer once; an image has their positions.

    A package is [system, name, version, sha256], a layer [title, key, bytes]. A layer's key is the
    digest of its blob, so it is the same in all images that share the layer; the key is empty if no build
    recorded the layer.
    """
    packages = {image.tag: _packages_of(image) for image in images}
    layers = {image.tag: _layers_of(image) for image in images}
    package_at, layer_at = _positions(packages.values()), _positions(layers.values())
    return {
        "packages": list(package_at),
        "layers": list(layer_at),
        "images": [
            {
                "tag": image.tag,
                "packages": [package_at[package] for package in packages[image.tag]],
                "layers": [layer_at[layer] for layer in layers[image.tag]],
            }
            for image in images
        ],
    }


def _packages_of(image: ListedImage) -> list[tuple[str, str, str, str]]:
    return [(package.system, package.name, package.version, package.sha256) for package in image.packages]


def _layers_of(image: ListedImage) -> list[tuple[str, str, int | None]]:
    return [
        (layer.title, layer.blob.digest, layer.blob.size) if layer.blob else (layer.title, "", None)
        for layer in image.layers
    ]


def _positions(lists: Iterable[Iterable[T]]) -> dict[T, int]:
    values = dict.fromkeys(value for each in lists for value in each)
    return {value: position for position, value in enumerate(values)}


def picker_data(images: Sequence[ListedImage], facts: Facts) -> dict[str, Any]:
    """The GPUs, and for each of *images* its drivers and how it serves each capability.

    `pick` in site.js applies the rules of `matrix.pick` to this data; a test compares both. It has only the
    images for the default platform.
    """
    images = [image for image in images if image.resolution.cell.platform == LINUX_AMD64.name]
    return {
        "machine": LINUX_AMD64.machine,
        "sentences": pick.SENTENCES,
        "torch": list(dict.fromkeys(image.resolution.cell.torch for image in images)),
        "gpus": list(_gpus(facts)),
        "images": [_image(image, images, facts) for image in images],
    }


def _gpus(facts: Facts) -> Iterator[dict[str, Any]]:
    for kind in facts.gpus:
        for name in (*kind.names, kind.capability):
            [gpu] = pick.parse_gpus([name], facts)
            yield {
                "name": gpu.name,
                "capability": kind.capability,
                "first": kind.first_branch,
                "last": kind.last_branch,
                "refused": pick.refused(gpu),
            }


def _image(image: ListedImage, images: Sequence[ListedImage], facts: Facts) -> dict[str, Any]:
    resolution = image.resolution
    cell, build = resolution.cell, resolution.build
    assert build is not None  # each image of the catalogue has a build of torch
    return {
        "tag": image.tag,
        "torch": cell.torch,
        "cuda": cell.cuda,
        "minimum": resolution.min_driver,
        "full": resolution.full_driver,
        "major": major_of(build.cuda),
        "build": build.version,
        "archs": " ".join(build.archs),
        "kept": ", ".join(cell.gpus),
        "default_index": build.source is Source.DEFAULT,
        "runtime": cell.flavor == "runtime",
        "torch_rank": _rank(cell.torch, [other.resolution.cell.torch for other in images]),
        "cuda_rank": _rank(cell.cuda, [other.resolution.cell.cuda for other in images]),
        "code": {kind.capability: _code(build.archs, kind.capability, cell.gpus) for kind in facts.gpus},
    }


def _code(archs: Sequence[str], capability: str, kept: Sequence[str]) -> str:
    """How the image supports *capability*: "cubin", "ptx", "none", or "cut" (thin image without its code)."""
    return how_served(archs, capability) or "none" if is_kept_for(capability, kept) else "cut"


def _rank(version: str, versions: Sequence[str]) -> int:
    return sorted(set(versions), key=numbers).index(version)
