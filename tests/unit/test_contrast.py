"""The comparison of two images by their layers: only differing packages, settings and layers are reported."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from torchkiln.compare.layers import PackageChange, contrast
from torchkiln.compare.packages import names_packages, packages_of
from torchkiln.model.contents import Layer, LayerContents, LayeredImage, Package

SITE = "opt/venv/lib/python3.11/site-packages"
NAMES = st.text("abc", min_size=1, max_size=2)


def layer(name: str, *, size: int | None = 10, **texts: str) -> Layer:
    contents = LayerContents(files=2, bytes=7, texts=texts, deleted=())
    return Layer(diff_id=f"sha256:{name}", title=name, size=size, contents=contents)


LAYERS = st.lists(NAMES, unique=True, max_size=4).map(lambda names: tuple(map(layer, names)))
PACKAGES = st.lists(
    st.builds(
        Package, system=st.sampled_from(["python", "os"]), place=st.just(""), name=NAMES, version=NAMES
    ),
    max_size=4,
    unique_by=lambda one: (one.system, one.name),
).map(tuple)
IMAGES = st.builds(
    LayeredImage,
    digest=NAMES,
    settings=st.dictionaries(NAMES, NAMES, max_size=3),
    layers=LAYERS,
    packages=PACKAGES,
)


@given(IMAGES)
def test_an_image_equals_itself_with_any_compression(image: LayeredImage) -> None:
    recompressed = replace(
        image, digest="another", layers=tuple(replace(item, size=3) for item in image.layers)
    )

    assert contrast(image, recompressed).same


@given(IMAGES, IMAGES)
def test_differences_are_symmetric(a: LayeredImage, b: LayeredImage) -> None:
    found, back = contrast(a, b), contrast(b, a)

    assert (
        found.same
        == back.same
        == (
            ([item.diff_id for item in a.layers], set(a.packages), a.settings)
            == ([item.diff_id for item in b.layers], set(b.packages), b.settings)
        )
    )
    assert (found.only_a, found.only_b) == (back.only_b, back.only_a)
    assert len(found.shared.layers) + len(found.only_a.layers) == len(a.layers)
    assert [(package.name, package.a, package.b) for package in found.packages] == [
        (package.name, package.b, package.a) for package in back.packages
    ]


@given(IMAGES, NAMES)
def test_one_package_of_another_version(image: LayeredImage, version: str) -> None:
    one = Package(system="python", place=SITE, name="torch", version=version)
    a = replace(image, packages=(*image.packages, one))
    newer = replace(one, version=version + "!", place=SITE.replace("3.11", "3.12"))
    b = replace(image, packages=(*image.packages, newer))

    place = SITE.replace("3.11", "3")
    change = PackageChange(system="python", name="torch", place=place, a=version, b=version + "!")
    assert contrast(a, b).packages == (change,)


def test_the_same_layers_in_another_order() -> None:
    a = LayeredImage(digest="", settings={}, layers=(layer("x"), layer("y")), packages=())
    found = contrast(a, replace(a, layers=a.layers[::-1]))

    assert (found.reordered, found.same, found.only_a.layers) == (True, False, ())


def test_sizes_are_summed_if_each_is_known() -> None:
    a = LayeredImage(digest="", settings={}, layers=(layer("x"), layer("y", size=None)), packages=())
    found = contrast(a, replace(a, layers=a.layers[:1]))

    assert (found.a.files, found.a.bytes, found.a.size) == (4, 14, None)
    assert (found.b.size, found.only_a.layers) == (10, a.layers[1:])


def metadata(name: str, version: str) -> str:
    """A METADATA file whose description also contains names and versions."""
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: x\n\nVersion: 9\nName: y\n"


def status(**packages: str) -> str:
    return "\n\n".join(
        f"Package: {name}\nStatus: install ok installed\nVersion: {version}"
        for name, version in packages.items()
    )


def contents(texts: dict[str, str], *deleted: str) -> LayerContents:
    return LayerContents(files=0, bytes=0, texts=texts, deleted=deleted)


def packages(*layers: LayerContents) -> list[tuple[str, str]]:
    """Name and version of each package that *layers* contain."""
    return [(item.name, item.version) for item in packages_of(layers)]


def test_packages_of_both_kinds() -> None:
    lower = contents(
        {
            f"{SITE}/Jinja_2-1.0.dist-info/METADATA": metadata("Jinja_2", "1.0"),
            "usr/lib/python3/dist-packages/six.egg-info": metadata("six", "1.16"),
            f"{SITE}/broken-1.dist-info/METADATA": "no header",
            "var/lib/dpkg/status": status(bash="5.2", nano="7"),
        }
    )
    assert all(map(names_packages, lower.texts))
    assert packages(lower) == [("bash", "5.2"), ("nano", "7"), ("jinja-2", "1.0"), ("six", "1.16")]


def test_upper_layers_replace_and_delete() -> None:
    lower = contents(
        {
            f"{SITE}/a-1.dist-info/METADATA": metadata("a", "1"),
            f"{SITE}/b-1.dist-info/METADATA": metadata("b", "1"),
            f"{SITE}/c-1.dist-info/METADATA": metadata("c", "1"),
            "var/lib/dpkg/status": status(bash="5.2", nano="7"),
        }
    )
    upper = contents(
        {f"{SITE}/b-2.dist-info/METADATA": metadata("b", "2"), "var/lib/dpkg/status": status(bash="5.3")},
        f"{SITE}/a-1.dist-info",
        f"{SITE}/b-1.dist-info/METADATA",
    )
    assert packages(lower, upper) == [("bash", "5.3"), ("b", "2"), ("c", "1")]
    assert packages(lower, contents({}, "opt/")) == [("bash", "5.2"), ("nano", "7")]
