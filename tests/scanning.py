"""`torchkiln scan` in a folder of a test's own: asking, reports, lists, and what a stand-in remembers."""

from __future__ import annotations

import json
import time
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from torchkiln.cli.scan import scan
from torchkiln.oci.layout import Layout


def today() -> date:
    return datetime.now(timezone.utc).date()


def ask(layout: Layout, *more: str, target: str = "a") -> Any:
    return CliRunner().invoke(scan, [target, "--output", str(layout.path), *more])


def reported(told: dict[str, Any]) -> tuple[str, str]:
    Path("scan.json").write_text(json.dumps(told))
    return ("--report", "scan.json")


def calls() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("bin/calls.jsonl").read_text().splitlines()]


def allow(*entries: dict[str, str], name: str = "vulnerabilities.yaml") -> str:
    Path(name).write_text(json.dumps(entries))
    return name


def entry(name: str, days: int = 30, **more: str) -> dict[str, str]:
    return {"id": name, "reason": "nobody can reach it", "until": str(today() + timedelta(days=days)), **more}


def is_gone(pid: str) -> bool:
    """Whether the process has ended or does so soon; whoever inherited it may be slow to bury it."""
    stat = Path("/proc", pid, "stat")
    for _ in range(100):
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in "ZX":
            return True
        time.sleep(0.05)
    return False
