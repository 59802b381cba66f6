"""Puts manifests under a digest or a tag, and deletes tags."""

from __future__ import annotations

from torchkiln.oci.image import MANIFEST_TYPE, digest_of
from torchkiln.registry.messages import HttpRequest, HttpResponse
from torchkiln.registry.reference import Repository
from torchkiln.registry.session import Registry


def put(
    registry: Registry, repository: Repository, manifest: bytes, name: str, *, media_type: str = MANIFEST_TYPE
) -> HttpResponse:
    """Put *manifest* under *name*, its digest or a tag.

    :raises RegistryError: the request failed, or the registry reports another digest.
    """
    what = f"manifest {name[:19]}" if name.startswith("sha256:") else f"tag {name}"
    response = registry.request(
        HttpRequest(
            method="PUT",
            url=f"/v2/{repository.name}/manifests/{name}",
            what=what,
            scopes=(f"repository:{repository.name}:pull,push",),
            headers={"Content-Type": media_type},
            body=manifest,
        )
    )
    if response.status not in (200, 201, 202):
        raise registry.http_error(what, response)
    registry.check_digest(response, digest_of(manifest), what)
    return response


def delete_tag(registry: Registry, repository: Repository, tag: str) -> bool:
    """Delete *tag*; returns False if the registry does not support that.

    :raises RegistryError: access is denied, or the request failed.
    """
    response = registry.request(
        HttpRequest(
            method="DELETE",
            url=f"/v2/{repository.name}/manifests/{tag}",
            what=f"tag {tag}",
            scopes=(f"repository:{repository.name}:pull,push,delete",),
        )
    )
    if response.status in (401, 403):
        raise registry.http_error(f"tag {tag}", response)
    return response.status in (202, 200, 204, 404)
