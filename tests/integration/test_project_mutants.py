"""For a project's image, the gate refuses all known changes of files that the parent image has proved."""

from __future__ import annotations

import io
import tarfile

import pytest

from tests.project_gate import Scene, scene
from tests.project_mutants import ELSEWHERE, IN_APP, MUTANTS, adds, in_its_own_layer, in_the_code, with_label
from tests.projects import NAME, TAG
from torchkiln.model.project import PARENT_LABEL, PROJECT_JSON
from torchkiln.oci.opening import open_layer


@pytest.fixture(scope="module", name="there")
def a_scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return scene(tmp_path_factory.mktemp("mutants"))


# The gate compares only the diff_id of such a layer, so these stand for any other.
ALONE = ("a file of torch", "torch is emptied", "a second libcudart", "a folder with another mode")


def test_the_image_itself_is_cleared(there: Scene) -> None:
    """It is also cleared with more harmless code: the gate does not refuse every change."""
    assert there.judged(there.image)[0] == 0
    code, _, messages = there.judged(in_the_code(there, adds("app/lib/more.py")))
    assert code == 0, messages


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_refused(there: Scene, name: str) -> None:
    make, fault = MUTANTS[name]

    code, out, messages = there.judged(make(there))

    assert (code, out) == (7, ""), messages
    assert f"  {fault}" in messages, messages


@pytest.mark.parametrize("name", ALONE)
def test_a_layer_that_no_build_made_is_refused(there: Scene, name: str) -> None:
    image = in_its_own_layer(there, ELSEWHERE[name])

    code, out, messages = there.judged(image)

    number, added = len(image.layers) - 1, image.layers[-2].diff_id
    assert (code, out) == (7, ""), messages
    assert (
        f"  layers: layer {number} is {added[:19]}; in the image that this machine built, it does not exist"
        in messages
    ), messages


@pytest.mark.parametrize("name", IN_APP)
def test_code_is_refused(there: Scene, name: str) -> None:
    layer, fault = IN_APP[name]

    code, out, messages = there.judged(in_the_code(there, layer))

    assert (code, out) == (7, ""), messages
    assert f"  layers: {fault}" in messages, messages
    assert "this machine" not in messages.partition("build the project again")[0], messages


@pytest.mark.parametrize("name", ELSEWHERE)
def test_entries_outside_of_the_code_are_refused(there: Scene, name: str) -> None:
    with tarfile.open(fileobj=io.BytesIO(ELSEWHERE[name])) as tar:
        path = tar.getnames()[-1]

    code, out, messages = there.judged(in_the_code(there, ELSEWHERE[name]))

    assert (code, out) == (7, ""), messages
    [line] = {line for line in messages.splitlines() if line.startswith(f"  layers: {path}: ")}
    reasons = ("outside of /app", "a whiteout: code cannot", "belongs to 1000:0", "is a folder with the mode")
    assert line.partition(f"{path}: ")[2].startswith(reasons)


def test_a_label_that_names_another_parent_image(there: Scene) -> None:
    """The label and project.json name different parent images."""
    image = with_label(PARENT_LABEL, f"{TAG}@{there.image.manifest}")(there)

    code, out, messages = there.judged(image)

    assert (code, out) == (12, "")
    assert (
        f"mutant: the label {PARENT_LABEL} is '{TAG}@{there.image.manifest}', but /{PROJECT_JSON}" in messages
    )


def test_label_and_project_json_that_name_another_parent_image(there: Scene) -> None:
    """Both name another parent image, but the lowest layers are not those of that image."""
    other = there.mutant(config=lambda document: document["config"]["Labels"].update({PARENT_LABEL: ""}))
    with open_layer(there.image.layers[-1].path) as stream:
        top = stream.read()
    # The digests have the same length, so the tar headers remain valid.
    top = top.replace(there.parent.manifest.encode(), other.manifest.encode())
    layout = there.small.layout
    named = (layout / "index.json").read_text().replace('"mutant"', '"other"')
    (layout / "index.json").write_text(named)
    image = there.mutant(
        top,
        order=lambda rows: [*rows[:-2], rows[-1]],
        config=lambda document: document["config"]["Labels"].update(
            {PARENT_LABEL: f"{TAG}@{other.manifest}"}
        ),
    )

    code, out, messages = there.judged(image)

    assert out == ""
    assert code in (7, 12), messages
    assert f"the parent image is {NAME}, not {TAG}" in messages, messages


def test_damaged_blobs(there: Scene) -> None:
    image = there.mutant(adds("app/damaged.py"), order=lambda rows: [*rows[:-2], rows[-1], rows[-2]])
    blob = image.layers[-2].path
    data = blob.read_bytes()
    try:
        blob.write_bytes(data + b"\0")
        code, out, messages = there.judged(image)
    finally:
        blob.write_bytes(data)

    assert (code, out) == (12, "")
    assert "digest mismatch" in messages
