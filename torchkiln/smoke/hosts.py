"""Read and format the description of the host in a report: machine, GPUs, driver, links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from torchkiln.util.schema import shipped, violations

_GIB = 1 << 30


def fits(host: Any) -> bool:
    """Whether *host*, which a program in the image wrote, matches host.schema.json."""
    return not violations(host, shipped("host"))


def gpus(host: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _driver(host).get("gpus", [])
    return found


def capability(host: Mapping[str, Any]) -> tuple[int, int] | None:
    """The lowest compute capability of the GPUs; None if there are none."""
    return min(((gpu["capability"][0], gpu["capability"][1]) for gpu in gpus(host)), default=None)


def contradictions(host: Mapping[str, Any]) -> Iterator[str]:
    """Contradictions in *host* between the GPUs, their pairs and the driver's state."""
    driver, count = _driver(host), len(gpus(host))
    if count and (driver.get("fault") or driver.get("libcuda") or driver.get("init") not in (0, None)):
        yield f"lists {count} GPUs, although the driver did not start"
    if count and not driver.get("cuda"):
        yield f"lists {count} GPUs, and no CUDA version of the driver"
    peers = [tuple(pair) for pair in driver.get("peers", ())]
    links = [tuple(link[:2]) for link in driver.get("links", ())]
    for name, pairs in (("peers", peers), ("links", links)):
        if len(set(pairs)) != len(pairs):
            yield f"lists a pair of GPUs twice in {name!r}"
        if any(not _is_pair(pair, count) for pair in pairs):
            yield f"lists an entry in {name!r} that is not a pair of its {count} GPUs"
    if any(isinstance(one, int) and isinstance(other, int) and one > other for one, other in links):
        yield "lists a pair in 'links' whose first GPU has the higher number"


def _is_pair(pair: tuple[Any, ...], count: int) -> bool:
    numbers = [number for number in pair if isinstance(number, int) and not isinstance(number, bool)]
    return len(numbers) == 2 and numbers[0] != numbers[1] and max(numbers) < count


def lines(host: Mapping[str, Any]) -> list[str]:
    """Up to three lines: machine, GPUs with driver, and links between them."""
    machine = _machine(host)
    found = [f"host     {machine}"] if machine else []
    if "driver" in host:
        found.append(f"GPUs     {_gpus(host)}")
    if len(gpus(host)) > 1:
        found.append(f"links    {_topology(host)}")
    return found


def kinds(host: Mapping[str, Any]) -> str:
    """The GPUs by name, `2 × NVIDIA H200`; empty if there are none."""
    counted = Counter(gpu["name"] for gpu in gpus(host))
    return ", ".join(f"{count} × {name}" if count > 1 else name for name, count in counted.items())


def _driver(host: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = host.get("driver", {})
    return found


def _machine(host: Mapping[str, Any]) -> str:
    parts = [f"Linux {host['kernel']}"] if "kernel" in host else []
    parts += [f"{host['cores']} cores"] if "cores" in host else []
    parts += [f"{host['memory'] / _GIB:.0f} GiB"] if "memory" in host else []
    parts += [f"/dev/shm {host['shm'] / _GIB:.3g} GiB"] if "shm" in host else []
    return ", ".join(parts)


def _gpus(host: Mapping[str, Any]) -> str:
    driver = _driver(host)
    versions = f"driver {driver.get('driver') or 'of unknown version'}, CUDA {driver.get('cuda') or '?'}"
    if not gpus(host):
        fault = driver.get("fault") or driver.get("libcuda")
        return f"none ({fault})" if fault else f"none ({versions})" if driver.get("driver") else "none"
    models = Counter(
        (gpu["name"], ".".join(map(str, gpu["capability"])), round(gpu["memory"] / _GIB))
        for gpu in gpus(host)
    )
    names = (
        f"{count} × {name} ({number}, {size} GiB)" if count > 1 else f"{name} ({number}, {size} GiB)"
        for (name, number, size), count in models.items()
    )
    return f"{', '.join(names)}; {versions}"


def _topology(host: Mapping[str, Any]) -> str:
    """The active NVLinks per GPU, the link types between pairs of GPUs, and peer access to GPU memory."""
    found, driver = gpus(host), _driver(host)
    directions = len(found) * (len(found) - 1)
    active = sorted({gpu["nvlinks"] for gpu in found if gpu.get("nvlinks") is not None})
    parts = [f"NVLinks per GPU: {' or '.join(map(str, active))}"] if active else []
    links = Counter(str(link[2]) for link in driver.get("links", ()))
    parts += [f"{link} between {count} of {directions // 2} pairs" for link, count in links.items()]
    parts.append(f"peer access in {len(driver.get('peers', ()))} of {directions} directions")
    return "; ".join(parts)
