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
from pathlib import Path
from typing import Any, TypeVar

from torchkiln.matrix.facts import Facts
from torchkiln.site.catalogue import Catalogue, ListedImage
from torchkiln.site.commands import commands
from torchkiln.site.documents import image_json, index_json
from torchkiln.site.picker import picker_data
from torchkiln.site.texts import Language, languages
from torchkiln.util.files import pretty_json
from torchkiln.util.sizes import size
from torchkiln.util.versions import numbers

TEMPLATES = Path(__file__).with_name("templates")
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

    table, sentences = _titled(data["compare"], language), {"sentences": language.sentences()}
    yield page("index.html.j2", "index.html", data={"texts": texts(_OF_SEARCH), "packed": table})
    in_language = {"texts": texts(_OF_PICKER), "pick-data": data["pick"] | sentences}
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


def _titled(table: Mapping[str, Any], language: Language) -> dict[str, Any]:
    """The packed *table* with the titles of layers in *language*."""
    return {**table, "layers": [(language.layer(title), *rest) for title, *rest in table["layers"]]}


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
