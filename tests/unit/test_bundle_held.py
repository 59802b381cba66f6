"""The list of the layers that a GPU host has, and how a bundle takes them from earlier bundles."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.oci_samples import BlobFolder, digest, files, plan, tar_of
from torchkiln.cli import bundle_run
from torchkiln.cli.bundle_layers import list_layers, take_layers
from torchkiln.errors import BuildFailed, ConfigError, VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.oci.layout import ImageOnDisk, open_layout, write_image
from torchkiln.smoke.bundle import held as held_list
from torchkiln.smoke.bundle.earlier import bundles_beside, complete, missing_layers
from torchkiln.smoke.bundle.held import (
    HeldLayer,
    held_from_json,
    held_lines,
    held_of,
    held_to_json,
    parse_held,
    read_held,
)

A, B = digest(b"a"), digest(b"b")

# --- the list ---------------------------------------------------------------------------------------


def test_a_list_has_digests_tags_and_comments() -> None:
    text = f"# of a host\n\n{A} 2.7.1-cuda12.1-cudnn9-runtime\r\n  {B}\t\n{A} another\n"
    assert parse_held(text.encode()) == {A: "2.7.1-cuda12.1-cudnn9-runtime", B: ""}
    assert parse_held(b"") == {}


def test_what_is_written_is_read() -> None:
    held = {A: "2.7.1", B: ""}
    assert parse_held("\n".join(held_lines(held)).encode()) == held
    assert parse_held("\n".join(held_lines({A: "two words\nand a line", B: "x" * 129})).encode()) == {
        A: "",
        B: "",
    }


@pytest.mark.parametrize(
    "line",
    [
        A.removeprefix("sha256:"),
        A[:-1],
        A.upper().replace("SHA256", "sha256"),
        f"{A}0",
        f"{A} tag more",
        f"{A} /etc/passwd",
        f"{A} {'x' * 129}",
        f"{A}\x00",
        f"{A} \u202e",
        "sha512:" + "0" * 128,
        "../../etc/passwd",
        '{"layers": []}',
    ],
)
def test_a_malformed_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"^line 2: not a sha256 digest: "):
        parse_held(f"{B}\n{line}\n{B}".encode())


def test_all_malformed_lines_are_named_up_to_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "have.txt"
    file.write_bytes(b"\x1b[31mred\n" * 9)
    with pytest.raises(ConfigError) as caught:
        read_held(file)
    assert caught.value.message.splitlines() == [
        *(f"{file}: line {number}: not a sha256 digest: '\\x1b[31mred'" for number in range(1, 6)),
        f"{file}: and 4 more lines",
    ]
    assert "run.py --have" in caught.value.hint


def test_a_file_that_is_no_list_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a pipe would block, so a pipe is refused, too."""
    os.mkfifo(tmp_path / "pipe")
    for name, words in {
        "pipe": "is a pipe, not a file",
        "missing": "No such file",
        ".": "is a directory, not a file",
    }.items():
        with pytest.raises(ConfigError, match=words):
            read_held(tmp_path / name)
    monkeypatch.setattr(held_list, "LIMIT", 10)
    (tmp_path / "long").write_text(A)
    with pytest.raises(ConfigError, match="longer than 10 bytes"):
        read_held(tmp_path / "long")


def test_a_key_of_bundle_json_names_no_other_file() -> None:
    layers = (HeldLayer(digest=A, size=3, tag="x"),)
    assert held_from_json(held_to_json(layers)) == layers
    with pytest.raises(ValueError, match="not a sha256 digest"):
        held_from_json({"sha256:../../../x": {"size": 3, "tag": ""}})


# --- the layers -------------------------------------------------------------------------------------

TARS = [tar_of(files(**{f"etc__{name}": name.encode() * 999})) for name in ("one", "two", "three")]


def bundle(place: Path, *, without: Sequence[int] = (), tag: str = "first") -> ImageOnDisk:
    """The layout of a bundle at *place*, without some of its three layers."""
    blobs = BlobFolder(place.parent / "blobs-of-all")
    layers = [blobs.layer(f"layer {number}", tar) for number, tar in enumerate(TARS)]
    write_image(place / "layout", plan(tag=tag), layers, blobs.path)
    image = open_layout(place / "layout").image()
    for number, layer in enumerate(image.layers):
        if number in without:
            layer.path.unlink()
        else:  # a copy, not a hard link, as tar writes it
            data = layer.path.read_bytes()
            layer.path.unlink()
            layer.path.write_bytes(data)
    return image


def held(image: ImageOnDisk, *numbers: int) -> list[HeldLayer]:
    return list(held_of(image, {image.layers[number].digest: "first" for number in numbers}).values())


def blobs_of(place: Path) -> list[str]:
    """The names of all files in the folder of blobs, including temporary files."""
    return sorted(path.name for path in (place / "layout/blobs/sha256").iterdir())


def test_missing_layers_become_links_of_those_beside(tmp_path: Path) -> None:
    first, second = bundle(tmp_path / "first"), bundle(tmp_path / "second", without=(0, 2))
    lacking = held(second, 0, 1, 2)
    missing = missing_layers(tmp_path / "second", lacking)
    assert [layer.digest for layer in missing] == [second.layers[0].digest, second.layers[2].digest]

    complete(tmp_path / "second", "second", missing, bundles_beside(tmp_path / "second"))

    assert blobs_of(tmp_path / "second") == blobs_of(tmp_path / "first")
    for number, linked in enumerate((True, False, True)):
        assert first.layers[number].path.samefile(second.layers[number].path) is linked
    assert missing_layers(tmp_path / "second", lacking) == []


def test_they_are_copied_where_links_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    first, second = bundle(tmp_path / "first"), bundle(tmp_path / "second", without=(0, 1, 2))
    monkeypatch.setattr(os, "link", refused)
    complete(tmp_path / "second", "second", held(second, 0, 1, 2), [tmp_path / "first"])

    assert blobs_of(tmp_path / "second") == blobs_of(tmp_path / "first")
    for one, other in zip(first.layers, second.layers, strict=True):
        assert one.path.read_bytes() == other.path.read_bytes()
        assert not one.path.samefile(other.path)


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, the disk becomes full during the copy."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    bundle(tmp_path / "first")
    second = bundle(tmp_path / "second", without=(0,))
    before = blobs_of(tmp_path / "second")
    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(BuildFailed, match="No space left on device"):
        complete(tmp_path / "second", "second", held(second, 0), [tmp_path / "first"])
    assert blobs_of(tmp_path / "second") == before


def changed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)


def shortened(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


HARMS = {
    "checksum mismatch: got sha256:": changed,
    "size mismatch: expected": shortened,
    "is a symbolic link, not a file": a_link,
    "is a pipe, not a file": a_pipe,
    "not found": Path.unlink,
}


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize(("words", "harm"), HARMS.items(), ids=[harm.__name__ for harm in HARMS.values()])
def test_a_layer_that_is_damaged_or_missing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, harm: Callable[[Path], None], links: bool
) -> None:
    """The error names the layer and its image. It is raised after all other layers were taken."""
    if not links:
        monkeypatch.setattr("torchkiln.smoke.bundle.earlier._same_device", lambda *_: False)
    first, second = bundle(tmp_path / "first"), bundle(tmp_path / "second", without=(0, 1))
    harm(first.layers[0].path)
    before = blobs_of(tmp_path / "second")
    with pytest.raises(VerificationFailed) as caught:
        complete(tmp_path / "second", "2.8.0", held(second, 0, 1), [tmp_path / "first", tmp_path / "gone"])

    lost, taken = (layer.digest for layer in second.layers[:2])
    lines = caught.value.message.splitlines()
    assert lines[0] == "the bundle of 2.8.0 lacks layers: it was made for a host that has them"
    assert lines[1] == f"  layer {lost}, which the image first has:"
    assert words in lines[2]
    assert str(first.layers[0].path) in lines[2] or harm is Path.unlink
    assert len(lines) == 3
    assert f"searched: {tmp_path / 'first'}" in caught.value.hint
    assert "--from FOLDER" in caught.value.hint
    assert blobs_of(tmp_path / "second") == sorted([*before, taken.removeprefix("sha256:")])

    bundle(tmp_path / "third")
    complete(tmp_path / "second", "2.8.0", held(second, 0), [tmp_path / "first", tmp_path / "third"])
    assert missing_layers(tmp_path / "second", held(second, 0)) == []


def test_a_file_that_is_replaced_after_it_was_hashed_is_not_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = bundle(tmp_path / "first"), bundle(tmp_path / "second", without=(0,))
    good, link = first.layers[0].path.read_bytes(), os.link

    def after_a_change(*arguments: object, **named: object) -> None:
        first.layers[0].path.unlink()
        first.layers[0].path.write_bytes(b"other")
        monkeypatch.setattr(os, "link", link)
        link(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", after_a_change)
    complete(tmp_path / "second", "second", held(second, 0), [tmp_path / "first"])
    assert second.layers[0].path.read_bytes() == good


# --- run.py -----------------------------------------------------------------------------------------


def test_the_layers_of_a_host_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The layers of this bundle and of bundles beside it are listed; damaged and missing layers are not."""
    first, second = bundle(tmp_path / "first"), bundle(tmp_path / "second", without=(0, 1, 2))
    changed(first.layers[1].path)
    assert list_layers(tmp_path / "second", []) == 0
    out, err = capsys.readouterr()
    assert list(parse_held(out.encode())) == [first.layers[0].digest, first.layers[2].digest]
    assert f"{first.layers[1].path}: left out: checksum mismatch" in err

    assert list_layers(tmp_path / "second", [str(tmp_path / "second")]) == 0
    assert parse_held(capsys.readouterr().out.encode()) == {}
    assert second.layers[0].digest == first.layers[0].digest


def test_a_bundle_beside_that_cannot_be_read_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle(tmp_path / "first")
    (tmp_path / "first/layout/index.json").write_text("{")
    image = bundle(tmp_path / "second")
    assert list_layers(tmp_path / "second", []) == 0
    out, err = capsys.readouterr()
    assert set(parse_held(out.encode())) == {layer.digest for layer in image.layers}
    assert f"{tmp_path / 'first'}: left out: " in err


def test_the_exit_code_and_the_message_are_those_of_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = bundle(tmp_path / "second", without=(0,))
    description = {"tag": "2.8.0", "held": held_to_json(held(second, 0))}
    assert take_layers(tmp_path / "second", description, []) == 12
    err = capsys.readouterr().err
    assert f"layer {second.layers[0].digest}, which the image first has:\n    not found\n" in err
    assert f"hint: searched: no other bundle in {tmp_path}" in err

    assert take_layers(tmp_path / "second", description, [str(tmp_path), "gone"]) == 2
    err = capsys.readouterr().err
    assert err.splitlines()[:2] == [
        f"error: --from {tmp_path}: not the folder of a bundle",
        "--from gone: not the folder of a bundle",
    ]


OWN = [
    ((), ([], False, [])),
    (("--only", "lock"), ([], False, ["--only", "lock"])),
    (("--from", "a", "--from=b", "--only", "lock"), (["a", "b"], False, ["--only", "lock"])),
    (("--have", "--from", "a"), (["a"], True, [])),
    (("--from", "a", "run", "--", "x", "--from", "b"), (["a"], False, ["run", "--", "x", "--from", "b"])),
]


@pytest.mark.parametrize(("arguments", "expected"), OWN)
def test_options_of_run_py_come_first(
    arguments: Sequence[str], expected: tuple[list[str], bool, list[str]]
) -> None:
    assert bundle_run.own_options(list(arguments)) == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--from"], "--from: write --have, or --from FOLDER"),
        (["--from="], "--from=: write --have, or --from FOLDER"),
        (["--have=x"], "--have=x: write --have, or --from FOLDER"),
        (["--have", "--tier", "2"], "--have runs nothing: --tier 2 cannot be used with it"),
        (["--tier", "2", "--from", "a"], "--have and --from come before the other options"),
    ],
)
def test_wrong_options_of_run_py_are_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        bundle_run.own_options(arguments)
    assert (caught.value.code, capsys.readouterr().err) == (2, f"error: {words}\n")


def test_digests_that_an_image_does_not_have_are_ignored(tmp_path: Path) -> None:
    image = bundle(tmp_path / "first")
    listed = {A: "x", image.layers[1].digest: "y", Digest(image.manifest): "z"}
    assert held_of(image, listed) == {
        image.layers[1].digest: HeldLayer(digest=image.layers[1].digest, size=image.layers[1].size, tag="y")
    }
