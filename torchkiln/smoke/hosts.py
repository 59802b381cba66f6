"""A report's host, as the runner told it inside -> its GPUs, and what people read of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torchkiln.util.schema import shipped, violations

_GIB = 1 << 30


def fits(host: Any) -> bool:
    """Whether *host* is what host.schema.json calls one; an image may tell anything."""
    return not violations(host, shipped("host"))


def gpus(host: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The GPUs that *host* tells of; none where it tells nothing."""
    found: list[dict[str, Any]] = _driver(host).get("gpus", [])
    return found


def capability(host: Mapping[str, Any]) -> tuple[int, int] | None:
    """The lowest compute capability among its GPUs; None: it has none."""
    return min(((gpu["capability"][0], gpu["capability"][1]) for gpu in gpus(host)), default=None)


def lines(host: Mapping[str, Any]) -> list[str]:
    """Machine, GPUs with driver, and what lies between them: a line each, of what is known."""
    machine = _machine(host)
    found = [f"host     {machine}"] if machine else []
    if "driver" in host:
        found.append(f"GPUs     {_gpus(host)}")
    if len(gpus(host)) > 1:
        found.append(f"links    {_topology(host)}")
    return found


def kinds(host: Mapping[str, Any]) -> str:
    """The GPUs by name, `2 × NVIDIA H200`; empty where there is none."""
    counted = Counter(gpu["name"] for gpu in gpus(host))
    return ", ".join(f"{count} × {name}" if count > 1 else name for name, count in counted.items())


def _driver(host: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = host.get("driver", {})
    return found


def _machine(host: Mapping[str, Any]) -> str:
    told = [f"Linux {host['kernel']}"] if "kernel" in host else []
    told += [f"{host['cores']} cores"] if "cores" in host else []
    told += [f"{host['memory'] / _GIB:.0f} GiB"] if "memory" in host else []
    told += [f"/dev/shm {host['shm'] / _GIB:.3g} GiB"] if "shm" in host else []
    return ", ".join(told)


def _gpus(host: Mapping[str, Any]) -> str:
    driver = _driver(host)
    served = f"driver {driver.get('driver') or 'of unknown version'}, CUDA {driver.get('cuda') or '?'}"
    if not gpus(host):
        why = driver.get("fault") or driver.get("libcuda")
        return f"none ({why})" if why else f"none ({served})" if driver.get("driver") else "none"
    alike = Counter(
        (gpu["name"], ".".join(map(str, gpu["capability"])), round(gpu["memory"] / _GIB))
        for gpu in gpus(host)
    )
    told = (
        f"{count} × {name} ({number}, {size} GiB)" if count > 1 else f"{name} ({number}, {size} GiB)"
        for (name, number, size), count in alike.items()
    )
    return f"{', '.join(told)}; {served}"


def _topology(host: Mapping[str, Any]) -> str:
    """How many NVLinks are up, what lies between how many pairs, who reaches whose memory."""
    here, driver = gpus(host), _driver(host)
    directions = len(here) * (len(here) - 1)
    up = sorted({gpu["nvlinks"] for gpu in here if gpu.get("nvlinks") is not None})
    told = [f"NVLinks a GPU: {' or '.join(map(str, up))}"] if up else []
    ways = Counter(str(link[2]) for link in driver.get("links", ()))
    told += [f"{way} between {count} of {directions // 2} pairs" for way, count in ways.items()]
    told.append(f"peer access in {len(driver.get('peers', ()))} of {directions} directions")
    return "; ".join(told)
