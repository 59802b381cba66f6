"""Creates a container with GPUs in Podman, by CDI.

Podman's Docker API ignores device requests (issue 19338 of containers/podman), so the container is created
with Podman's own API at the same socket; all other requests use Docker's API. Tested with Podman 4.3.
"""

from __future__ import annotations

from typing import Any

from torchkiln.runtimes.docker_args import Container, cdi_devices

_CREATE = "/v4.0.0/libpod/containers/create"  # the oldest API with CDI; newer versions support it too


def create(api: Any, container: Container, ports: dict[str, Any], *, open_stdin: bool) -> str:
    """Create *container* with the SDK's client *api*, and return its id.

    :param ports: in the SDK's form, such as "8888/tcp" → ports of the host; None: any free port.
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
        "portmappings": [_mapping(inside, host) for inside, hosts in ports.items() for host in hosts],
        "publish_image_ports": False,
        "devices": [{"path": name} for name in cdi_devices(container.gpus)],
        "shm_size": container.shm_size,
        "stdin": open_stdin,
        "remove": True,
    }
    if not container.entrypoint:
        spec["entrypoint"] = [""]
    body = {name: value for name, value in spec.items() if value is not None}
    response = api.post(f"{api.base_url}{_CREATE}", json=body, timeout=api.timeout)
    api._raise_for_status(response)
    return str(response.json()["Id"])


def _mapping(inside: str, host: Any) -> dict[str, Any]:
    """One of `portmappings` in Podman's API; *host* is None, "8888", or ("127.0.0.1", "8888")."""
    number, _, protocol = inside.partition("/")
    address, port = host if isinstance(host, tuple) else ("", host)
    mapping: dict[str, Any] = {"container_port": int(number), "protocol": protocol or "tcp"}
    return mapping | ({"host_port": int(port)} if port else {}) | ({"host_ip": address} if address else {})
