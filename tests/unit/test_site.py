"""The pages of `ls --site` in both languages: links, content security policy, hostile texts, content."""

from __future__ import annotations

import base64
import hashlib
import json
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any
from urllib.parse import unquote, urlsplit

from tests import site_scene
from tests.site_scene import HOSTILE, Page, files, listed, pages, records
from tools.kept import PROOFS, earlier_locks, tables
from torchkiln.gate.cell_state import record_of
from torchkiln.locks.file import lock_digest
from torchkiln.matrix.tags import tag_of
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.site import images
from torchkiln.site.catalogue import Catalogue, ListedImage, Published
from torchkiln.site.documents import commands
from torchkiln.site.images import ImageRecord
from torchkiln.smoke.suite import load_suite
from torchkiln.util.places import ROOT
from torchkiln.util.sentences import Sentence

PROVED = "2.7.1-cuda12.1-cudnn9-runtime"
EARLIER = "2.3.1-cuda12.1-cudnn8-runtime"  # its GPU runs are of an earlier image
THIN = "2.7.1-cuda12.1-cudnn9-runtime-sm90-ownuse"
NOT_BUILT = "2.7.1-cuda12.1-cudnn9-devel"
BY_RECORD = "2.2.2-cuda11.8-cudnn8-runtime"
OTHER = Digest("sha256:" + "cd" * 32)


def image(tag: str, shown: Catalogue | None = None) -> ListedImage:
    return next(image for image in (shown or listed()).images if image.tag == tag)


def document(tag: str) -> Any:
    return json.loads(files()[f"tags/{tag}.json"])


def page(name: str) -> str:
    """The text of the page, without tags and without repeated spaces."""
    bare = re.sub(r"<(style|script)\b.*?</\1>|<[^>]*>", " ", files()[name].decode(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", bare)


def test_every_link_leads_to_a_file_of_the_folder() -> None:
    known = {path: set(page.ids) for path, page in pages().items()}
    broken = []
    for path, found in pages().items():
        for link in found.links:
            parts = urlsplit(link)
            if link == "data:,":
                continue
            place = posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(parts.path)))
            target = place if parts.path else path
            anchored = parts.fragment and "=" not in parts.fragment  # others: input of the script
            if (
                parts.scheme
                or parts.netloc
                or target not in files()
                or (anchored and parts.fragment not in known[target])
            ):
                broken.append((path, link))
    assert broken == []
    assert len(known) == 2 * (len(listed().images) + 3)


def test_every_image_has_a_page_in_each_language_and_json() -> None:
    for tag in (image.tag for image in listed().images):
        assert {f"tags/{tag}.html", f"zh/tags/{tag}.html", f"tags/{tag}.json"} <= files().keys()
    locks = {path.parent.name for path in (ROOT / "images").glob("*/lock.json")}
    assert {image.tag for image in listed().images} == locks


def test_the_policy_allows_the_style_and_the_scripts_of_the_page_and_nothing_else() -> None:
    for path, found in pages().items():
        [style], [theme, script] = found.inside["style"], found.inside["script"]
        hashes = [
            base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            for text in (style, theme, script)
        ]
        assert found.policy == (
            f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}';"
            f" script-src 'sha256-{hashes[1]}' 'sha256-{hashes[2]}'; base-uri 'none'; form-action 'none';"
            " require-trusted-types-for 'script'; trusted-types 'none'"
        ), path
        assert not [name for name in found.attributes if name.startswith("on") or name in ("src", "style")]


#: Fields that contain no foreign text: their values were parsed strictly, or name texts of torchkiln.
CHECKED = {
    *("resolution", "locked", "tag", "state", "verdict", "outcome", "system"),
    *("file", "digest", "blob", "text", "between"),
}


def hostile(value: Any) -> Any:
    """*value*, with HOSTILE in place of each text from a report, the matrix or a registry."""
    if isinstance(value, Sentence):
        return replace(value, values=tuple((name, hostile(inner)) for name, inner in value.values))
    if is_dataclass(value) and not isinstance(value, type):
        changes = {
            each.name: hostile(getattr(value, each.name))
            for each in fields(value)
            if each.name not in CHECKED
        }
        return replace(value, **changes)
    if isinstance(value, tuple):
        return tuple(map(hostile, value))
    return HOSTILE if isinstance(value, str) else value


def hostile_site() -> Catalogue:
    bad = Published(digest=OTHER, notices=(HOSTILE,), retracted=False)
    shown = tuple(hostile(replace(image(tag), published=bad)) for tag in (PROVED, THIN, NOT_BUILT))
    return Catalogue(local=HOSTILE, registry=HOSTILE, images=shown)


def test_a_hostile_text_stays_text() -> None:
    """It is in titles, messages, names of packages and GPUs, aliases, warnings, and the repository."""
    sound = pages()
    for path, data in site_scene.rendered(hostile_site()).items():
        if not path.endswith(".html"):
            continue
        found, like = Page(data.decode()), sound[path]
        assert HOSTILE not in data.decode()
        assert len(found.inside["script"]) == 2
        assert "<" not in "".join(found.inside["json"])
        assert found.tags.count("script") == like.tags.count("script"), path
        assert found.tags.count("img") == 0
        assert found.inside["script"] == like.inside["script"]
        assert not [name for name in found.attributes if name.startswith("on")]


def test_the_same_records_give_the_same_bytes_in_any_order() -> None:
    again = images.catalogue(tuple(reversed(records())), *tables(), load_suite())
    assert site_scene.rendered(again) == files()


def test_an_image_that_was_built_has_its_own_size_and_another_that_of_its_files() -> None:
    built, other = document(PROVED), document(NOT_BUILT)
    assert built["compressed_bytes"] == sum(layer["compressed_bytes"] for layer in built["layers"])
    assert "3.4 GB compressed, recorded by a build; 6.4 GB unpacked" in page(f"tags/{PROVED}.html")
    assert other["compressed_bytes"] is None
    assert "No build recorded the layers" in page(f"tags/{NOT_BUILT}.html")
    assert (document(BY_RECORD)["compressed_bytes"], document(BY_RECORD)["locked_bytes"]) == (None, None)
    assert "not known: the lock has no size of some files" in page(f"tags/{BY_RECORD}.html")


def test_layers_name_the_images_that_share_them() -> None:
    torch = next(layer for layer in document(PROVED)["layers"] if layer["title"] == "torch 2.7.1")
    assert torch["shared_with"] == [NOT_BUILT]
    blobs = {
        image.tag: {layer["digest"] for layer in document(image.tag)["layers"]} for image in listed().images
    }
    for tag in blobs:
        for layer in document(tag)["layers"]:
            others = [other for other in blobs if other != tag and layer["digest"] in blobs[other]]
            assert layer["shared_with"] == (others if layer["digest"] else [])


def test_only_runs_of_the_present_image_are_its_own() -> None:
    """Then the lock is changed, so its runs are those of an earlier image, and are marked."""
    then = image(PROVED, site_scene.at_gpu_runs())
    assert then.tested_on == ("NVIDIA H200",)
    assert [run.gpus for run in then.runs if run.current] == [*then.tested_on * 3, ""]

    found, tested_on = shown(lambda locked: locked)
    runs = json.loads(found[f"tags/{PROVED}.json"])["reports"]
    assert [(run["current"], run["gpus"], run["same_gpu_stack"]) for run in runs] == [
        *[(False, "NVIDIA H200", True)] * 3,
        (False, "4 × NVIDIA H100 80GB HBM3", True),
        (False, "2 × NVIDIA H200", True),
        (False, None, True),
    ]
    assert "an earlier image with the same GPU stack" in found[f"tags/{PROVED}.html"].decode()
    assert tested_on == ("NVIDIA H200", "4 × NVIDIA H100 80GB HBM3", "2 × NVIDIA H200")

    found, tested_on = shown(lambda locked: replace(locked, base=replace(locked.base, packages=())))
    assert {run["same_gpu_stack"] for run in json.loads(found[f"tags/{PROVED}.json"])["reports"]} == {False}
    assert "an earlier image, " in found[f"tags/{PROVED}.html"].decode()
    assert tested_on == ()


def shown(changed: Callable[[LockedCell], LockedCell]) -> tuple[Mapping[str, bytes], tuple[str, ...]]:
    """The site and the GPUs of PROVED if its lock is changed; its image is another one, too."""
    kept_locks = earlier_locks(PROOFS) | {
        lock_digest(record.kept.locked): record.kept.locked for record in records()
    }
    changed_records = [
        replace(record, kept=record_of(changed(record.kept.locked), OTHER, record.kept.reports, kept_locks))
        if tag_of(record.resolution) == PROVED
        else record
        for record in records()
    ]
    listed_images = images.catalogue(changed_records, *tables(), load_suite())
    present = next(image for image in listed_images.images if image.tag == PROVED)
    return site_scene.rendered(replace(listed_images, images=(present,))), present.tested_on


def test_a_run_with_a_failed_check_has_not_passed() -> None:
    run = next(run for run in image(PROVED).runs if run.gpus)
    failed = replace(run.findings[0], outcome="failed")
    assert run.passed_on_gpus
    assert not replace(run, findings=(failed, *run.findings[1:])).passed_on_gpus
    assert not replace(run, gpus="").passed_on_gpus
    assert not replace(run, findings=tuple(one for one in run.findings if one.tier == 0)).passed_on_gpus


def with_signed_tier_0() -> Catalogue:
    """The catalogue as if a trusted key had signed all reports, with the suite of the earlier runs."""
    suite = load_suite()
    ran = {finding.id for run in image(EARLIER).runs if run.gpus for finding in run.findings}
    suite = replace(suite, checks=tuple(check for check in suite.checks if check.id in ran))

    def signed(record: ImageRecord) -> ImageRecord:
        reports = [replace(one, signers=one.signers or ("a key",)) for one in record.kept.reports]
        kept = record_of(record.kept.locked, record.kept.image, reports, earlier_locks(PROOFS))
        return replace(record, kept=kept)

    return images.catalogue(tuple(map(signed, records())), *tables(), suite)


def test_the_states_are_those_of_the_grid() -> None:
    """A signed report of tier 0 in the present image lets the runs in the earlier one count."""
    assert (image(PROVED).state, image(THIN).state) == ("built and proved", "built")
    assert image(EARLIER).state == "built"
    assert image(EARLIER, with_signed_tier_0()).state == "built and proved"
    assert (image(NOT_BUILT).state, image(BY_RECORD).state) == ("locked", "locked by public record")


def test_the_commands_are_those_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    *_, try_it, run = (command.line for command in commands(image(PROVED), listed()))
    assert run.replace(PROVED, "v2.7") in readme
    options = "--torch 2.7 --cuda 12.1"
    assert try_it.replace("torchkiln", "python build.py").replace(PROVED, options) in readme


def test_a_published_image_is_pulled_and_one_that_was_retracted_is_not() -> None:
    def shown(*, retracted: bool) -> list[str]:
        published = Published(digest=OTHER, notices=(), retracted=retracted)
        registry = replace(listed(), registry="registry.example/team/pytorch")
        found = commands(replace(image(PROVED), published=published), registry)
        return [command.line for command in found]

    readme = (ROOT / "README.md").read_text()
    pull, verify, run = shown(retracted=False)
    assert pull == f"docker pull registry.example/team/pytorch:{PROVED}@{OTHER}"
    assert verify.replace("torchkiln", "python build.py").replace(PROVED, "TAG") in readme
    assert run.endswith(f" registry.example/team/pytorch:{PROVED}")
    assert shown(retracted=True) == []
