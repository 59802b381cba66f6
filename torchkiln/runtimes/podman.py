"""A container with GPUs in Podman, by CDI: its socket passes over Docker's request for devices.

Podman's own way of creating one is asked for at the same socket; what follows is Docker's way again. Podman
4.3 and issue 19338 of containers/podman are what this rests on.
"""

from __future__ import annotations

from typing import Any

from torchkiln.runtimes.docker_args import Container, cdi_devices

_CREATE = "/v4.0.0/libpod/containers/create"  # the oldest with CDI; newer ones answer it too


def create(api: Any, container: Container, ports: dict[str, Any], *, reads: bool) -> str:
    """Create *container* by the SDK's client *api*; its id.

    :param ports: as the SDK has them, "8888/tcp" → places on the host, None where any will do.
    :raises APIError: Podman refuses.
    """
    spec = {
        "image": container.image,
        "command": list(container.command) or None,
        "env": dict(line.partition("=")[::2] for line in container.env),
        "user": container.user,
        "work_dir": container.workdir,
        "mounts": [
            {
                "type": "bind",
                "source": str(bind.source.absolute()),
                "destination": bind.target,
                "options": ["rbind", "rw" if bind.writable else "ro"],
            }
            for bind in container.binds
        ],
        "portmappings": [_mapping(inside, place) for inside, places in ports.items() for place in places],
        "publish_image_ports": False,
        "devices": [{"path": name} for name in cdi_devices(container.gpus)],
        "shm_size": container.shm_size,
        "stdin": reads,
        "remove": True,
    }
    if not container.entrypoint:
        spec["entrypoint"] = [""]
    wanted = {name: value for name, value in spec.items() if value is not None}
    answer = api.post(f"{api.base_url}{_CREATE}", json=wanted, timeout=api.timeout)
    api._raise_for_status(answer)
    return str(answer.json()["Id"])


def _mapping(inside: str, place: Any) -> dict[str, Any]:
    """One of `portmappings`; *place* is None, "8888", or ("127.0.0.1", "8888")."""
    number, _, protocol = inside.partition("/")
    address, port = place if isinstance(place, tuple) else ("", place)
    told: dict[str, Any] = {"container_port": int(number), "protocol": protocol or "tcp"}
    return told | ({"host_port": int(port)} if port else {}) | ({"host_ip": address} if address else {})
