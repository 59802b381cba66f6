"""Read the reports of GPU runs in docs/proofs, for generated pages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.kept import is_earlier, on_gpus, proofs
from torchkiln.model.report import Finding, SmokeReport
from torchkiln.smoke import hosts
from torchkiln.smoke.report import from_json

_BUILT = re.compile(r"\b(TORCH|CUDA)_VERSION=([0-9][0-9.]*)")  # in torch.__config__.show()
PRECISIONS = {"fp32": "FP32", "tf32": "TF32", "fp16": "AMP FP16", "bf16": "AMP BF16"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A report, with the name of its file."""

    name: str
    report: SmokeReport
    file: str  # of a signed or an unsigned report
    earlier: bool = False  # whether the lock gives another image today

    @property
    def title(self) -> str:
        """The name of the report, with a mark if it is of an earlier image."""
        return f"{self.name} †" if self.earlier else self.name

    @property
    def gpus(self) -> str:
        """`2 × NVIDIA H200`."""
        return hosts.kinds(json.loads(self.report.host))

    @property
    def driver(self) -> str:
        """The driver's version and the newest CUDA that it supports."""
        driver = json.loads(self.report.host)["driver"]
        return f"driver {driver['driver']}, CUDA {driver['cuda']}"

    @property
    def torch(self) -> str:
        """The version of torch and the CUDA that it was built with, from a check or from torch's config."""
        for finding in self.report.findings:
            measured = json.loads(finding.measured)
            if "torch" in measured and "build_cuda" in measured:
                return f"torch {measured['torch']} for CUDA {measured['build_cuda']}"
        built = dict(_BUILT.findall(json.loads(self.report.host).get("torch_config") or ""))
        if built.keys() == {"TORCH", "CUDA"}:
            return f"torch {built['TORCH']} for CUDA {built['CUDA']}"
        return "unknown version of torch"

    def summary(self) -> str:
        """Device, driver and torch in one line."""
        return f"{self.gpus}; {self.driver}; {self.torch}"

    def finding(self, check: str) -> Finding | None:
        """The finding of *check*; None if it did not run."""
        return next((found for found in self.report.findings if found.id == check), None)

    def measured(self, check: str) -> dict[str, Any]:
        """The measured values of *check*; empty if it did not pass."""
        found = self.finding(check)
        values: dict[str, Any] = json.loads(found.measured) if found and found.outcome == "passed" else {}
        return values

    def bounds(self, check: str) -> dict[str, dict[str, float]]:
        """The bounds of *check* by value name."""
        found = self.finding(check)
        bounds: dict[str, dict[str, float]] = json.loads(found.threshold) if found else {}
        return bounds


def runs(folder: Path) -> list[Run]:
    """The reports in *folder* of machines with GPUs, signed by a key beside them or unsigned."""
    found = {signed.name: signed.report for signed in on_gpus(proofs(folder))}
    for path in folder.glob("*.json"):
        data = path.read_bytes()
        if json.loads(data).get("host", {}).get("driver", {}).get("gpus"):
            found[path.name] = from_json(data, where=path.name)
    return [
        Run(name=name, report=found[file], file=file, earlier=is_earlier(found[file]))
        for name, file in sorted(
            ((re.sub(r"(\.dsse)?\.json$", "", file), file) for file in found), key=_in_order
        )
    ]


def _in_order(named: tuple[str, str]) -> list[tuple[int, str]]:
    """A key that sorts 2.9.1 before 2.10.0."""
    return [(int(number or 0), text) for number, text in re.findall(r"(\d*)(\D*)", named[0])]


Benchmark = tuple[Run, Mapping[str, Any]]


def benchmarks(known: Iterable[Run]) -> list[Benchmark]:
    """The runs of *known* in which the check `benchmark` passed, each with its values."""
    return [(run, values) for run in known if (values := run.measured("benchmark"))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutants:
    """A record of `make gpu-mutants` (tools/gpu_mutants.py): the outcomes by module and test."""

    name: str
    gpus: str
    torch: str
    when: str
    tests: Mapping[str, Mapping[str, str]]


def mutants(folder: Path) -> list[Mutants]:
    """The records in *folder*."""
    found = []
    for path in sorted(folder.glob("*.mutants.json")):
        record = json.loads(path.read_bytes())
        found.append(
            Mutants(
                name=path.name.removesuffix(".json"),
                **{key: record[key] for key in ("gpus", "torch", "when", "tests")},
            )
        )
    return found


def lengths(benchmark: Mapping[str, Any]) -> list[int]:
    """The measured sentence lengths."""
    return sorted(int(name.rpartition("_")[2]) for name in benchmark if name.startswith("samples_per_s_"))


def timed_batches(benchmark: Mapping[str, Any]) -> dict[int, int]:
    """The number of sentences in a timed step, by their length; older reports have one number for all
    lengths."""
    timed = benchmark.get("timed_batch", {})
    return {length: timed.get(str(length), benchmark["batch"]) for length in lengths(benchmark)}


def joined(numbers: Iterable[int]) -> str:
    """The distinct *numbers* as text.

    >>> joined([64, 64]), joined([256, 64])
    ('64', '256 and 64')
    """
    return " and ".join(dict.fromkeys(map(str, numbers)))


def slowest_rank(busbw: Mapping[str, Any]) -> dict[int, float]:
    """GB/s of the slowest rank, by message size in bytes."""
    ranks = busbw.get("busbw_gb_s", [])
    return {int(count): min(rank[count] for rank in ranks) for count in (ranks[0] if ranks else ())}
