"""Config and manifest: the fields that engines read, and that nothing else goes in."""

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st

from tests.oci_samples import ZERO, digest, plan
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob, ImageLayer
from torchkiln.oci.image import canonical_json, describe

LAYERS = (
    ImageLayer(title="base", blob=Blob(digest=digest(b"b"), diff_id=digest(b"B"), size=11, unpacked=33)),
    ImageLayer(
        title="torch 2.7.1", blob=Blob(digest=digest(b"t"), diff_id=digest(b"T"), size=22, unpacked=44)
    ),
)


def test_the_config_says_what_the_plan_says() -> None:
    """Every field, in the words of the specification and, for the health check, Docker's nanoseconds."""
    found = json.loads(describe(plan(titles=("base", "torch 2.7.1")), LAYERS).config)

    assert found == {
        "architecture": "amd64",
        "os": "linux",
        "created": "2025-06-15T15:06:40Z",
        "config": {
            "Env": ["PATH=/opt/venv/bin:/usr/bin", "LANG=C.UTF-8"],
            "Entrypoint": ["/usr/bin/tini", "--", "/usr/local/bin/entrypoint"],
            "WorkingDir": "/workspace",
            "ExposedPorts": {"8888/tcp": {}, "22/tcp": {}},
            "Volumes": {"/workspace": {}},
            "Labels": {"org.opencontainers.image.version": "2.7.1", "torchkiln.status": "minor-compat"},
            "StopSignal": "SIGTERM",
            "Healthcheck": {
                "Test": ["CMD", "/bin/true"],
                "Interval": 30_000_000_000,
                "Timeout": 5_000_000_000,
                "StartPeriod": 10_000_000_000,
                "Retries": 3,
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(b"B"), digest(b"T")]},
        "history": [
            {"created": "2025-06-15T15:06:40Z", "created_by": "torchkiln: base"},
            {"created": "2025-06-15T15:06:40Z", "created_by": "torchkiln: torch 2.7.1"},
        ],
    }


def test_the_manifest_names_config_and_layers() -> None:
    """By media type, digest and size; annotations are the date and the labels that registries show."""
    documents = describe(plan(), LAYERS)

    assert json.loads(documents.manifest) == {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": digest(documents.config),
            "size": len(documents.config),
        },
        "layers": [
            {
                "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
                "digest": layer.blob.digest,
                "size": layer.blob.size,
            }
            for layer in LAYERS
        ],
        "annotations": {
            "org.opencontainers.image.created": "2025-06-15T15:06:40Z",
            "org.opencontainers.image.version": "2.7.1",
        },
    }
    assert documents.manifest_digest == digest(documents.manifest)


def test_the_digest_is_a_golden() -> None:
    """Whoever changes a byte of the form changes every image's digest: on purpose, with `recipe`."""
    golden = "sha256:7700b65129adf03fec1d5bf433c53852bd1d8d39098aaccf00099c0e47968550"

    assert describe(plan(), LAYERS).manifest_digest == golden


def test_names_are_not_in_the_image() -> None:
    """A re-tag, other aliases and the layers' unpacked sizes change no digest."""
    one = plan("a")
    other = dataclasses.replace(plan("b"), aliases=("latest",))

    assert describe(one, LAYERS) == describe(other, LAYERS)


def test_what_is_empty_is_left_out() -> None:
    """As engines do when they write a config back."""
    bare = plan(
        env=(),
        entrypoint=(),
        cmd=(),
        workdir="",
        ports=(),
        volumes=(),
        labels=(),
        stop_signal="",
        healthcheck=None,
    )

    found = json.loads(describe(bare, ()).config)

    assert found["config"] == {}
    assert found["rootfs"] == {"type": "layers", "diff_ids": []}


@given(epoch=st.integers(0, 4_000_000_000), size=st.integers(0, 1 << 40), title=st.text(max_size=20))
def test_documents_are_canonical(epoch: int, size: int, title: str) -> None:
    """What was written, read and written again is the same bytes."""
    layer = ImageLayer(
        title=title, blob=Blob(digest=Digest(ZERO), diff_id=Digest(ZERO), size=size, unpacked=size)
    )
    documents = describe(dataclasses.replace(plan(), epoch=epoch), (layer,))

    for document in (documents.config, documents.manifest):
        assert canonical_json(json.loads(document)) == document
