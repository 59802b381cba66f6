"""Manifest → the name under which a registry gives it out: its digest, or a tag."""

from __future__ import annotations

from torchkiln.oci.image import MANIFEST_TYPE, digest_of
from torchkiln.registry.answer import Answer
from torchkiln.registry.reference import Repository
from torchkiln.registry.request import HttpRequest
from torchkiln.registry.session import Registry


def put(
    registry: Registry, repository: Repository, manifest: bytes, name: str, *, media_type: str = MANIFEST_TYPE
) -> Answer:
    """Let *name* stand for *manifest*.

    :raises RegistryError: the registry refuses, cannot be reached, or says that it got another one.
    """
    what = f"manifest {name[:19]}" if name.startswith("sha256:") else f"tag {name}"
    answer = registry.persist(
        HttpRequest(
            method="PUT",
            url=f"/v2/{repository.name}/manifests/{name}",
            what=what,
            scopes=(f"repository:{repository.name}:pull,push",),
            headers={"Content-Type": media_type},
            body=manifest,
        )
    )
    if answer.status not in (200, 201, 202):
        raise registry.refused(what, answer)
    registry.demand_digest(answer, digest_of(manifest), what)
    return answer


def forget(registry: Registry, repository: Repository, tag: str) -> bool:
    """Let *tag* stand for nothing any more; False: this registry cannot do that.

    :raises RegistryError: the registry refuses us, or cannot be reached.
    """
    answer = registry.persist(
        HttpRequest(
            method="DELETE",
            url=f"/v2/{repository.name}/manifests/{tag}",
            what=f"tag {tag}",
            scopes=(f"repository:{repository.name}:pull,push,delete",),
        )
    )
    if answer.status in (401, 403):
        raise registry.refused(f"tag {tag}", answer)
    return answer.status in (202, 200, 204, 404)
