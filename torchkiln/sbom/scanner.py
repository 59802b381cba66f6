"""Runs Trivy or Grype on an image of a layout.

The scanner runs in an empty folder and without the user's settings: a `.trivyignore`, a `.grype.yaml` or a
variable could hide findings; only torchkiln's vulnerabilities.yaml may do that. Only the user's settings for
the vulnerability database are passed on.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchkiln.errors import ToolMissing, VerificationFailed
from torchkiln.index.settings import redact_text
from torchkiln.oci.archive import link_image
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.sbom.scanner_report import LIMIT, complete, read
from torchkiln.sbom.vulnerabilities import TOOLS, Scan, Tool
from torchkiln.util.scratch import scratch
from torchkiln.util.strict_json import read_file

# The scanners' variables that are passed on: where the database is, and whether it may be downloaded.
_PASS = re.compile(
    r"TRIVY_(CACHE_DIR|(SKIP_)?(JAVA_)?DB_(REPOSITORY|UPDATE)|OFFLINE_SCAN|INSECURE|USERNAME|PASSWORD)"
    r"|GRYPE_DB_[A-Z_]+"
)
_REMOVED = re.compile(r"(TRIVY|GRYPE|TORCHKILN)_")
# Passed with --config, so that Grype reads no other settings file.
_GRYPE_SETTINGS = "check-for-app-update: false\n"
_VERSION_TIMEOUT_S = 30.0
_TAIL = 12  # lines of stderr in a message


@dataclass(frozen=True, kw_only=True, slots=True)
class Scanner:
    """An installed scanner."""

    tool: Tool
    program: str

    def argv(self, timeout_s: float) -> list[str]:
        """The command line, for a working directory with the image in `image`."""
        if self.tool == "trivy":
            return [
                *(self.program, "image", "--input", "image", "--format", "json"),
                *("--scanners", "vuln", "--no-progress", "--timeout", f"{timeout_s:.0f}s"),
            ]
        return [self.program, "oci-dir:image", "-o", "json", "--config", "grype.yaml"]


def find(requested: Tool | None, environ: Mapping[str, str]) -> Scanner:
    """The scanner *requested*, or the first one on the PATH.

    :raises ToolMissing: there is none on the PATH.
    """
    tools = (requested,) if requested else TOOLS
    for tool in tools:
        if program := shutil.which(tool, path=environ.get("PATH", os.defpath)):
            return Scanner(tool=tool, program=os.path.abspath(program))
    raise ToolMissing(
        f"{' or '.join(tools)}: command not found",
        hint="install Trivy or Grype; or scan elsewhere and pass the scanner's JSON: --report FILE.json",
    )


def scan(image: ImageOnDisk, scanner: Scanner, environ: Mapping[str, str], *, timeout_s: float) -> Scan:
    """Scan *image* with *scanner*.

    :raises ToolMissing: it cannot be run, fails, or takes longer than *timeout_s* seconds.
    :raises VerificationFailed: its output is invalid.
    """
    with scratch("scan") as folder:
        link_image(image, folder / "image")
        (folder / "grype.yaml").write_text(_GRYPE_SETTINGS)
        env = {key: text for key, text in environ.items() if _PASS.fullmatch(key) or not _REMOVED.match(key)}
        _run(scanner.argv(timeout_s), folder, env, timeout_s)
        where = f"output of {scanner.tool}"
        try:
            found = read(read_file(folder / "stdout", LIMIT), where=where)
        except OSError as error:
            raise VerificationFailed(f"{where}: {error.strerror}") from None
        if scanner.tool == "trivy":
            with contextlib.suppress(ToolMissing, OSError):
                _run([scanner.program, "version", "--format", "json"], folder, env, _VERSION_TIMEOUT_S)
                return complete(found, read_file(folder / "stdout", LIMIT))
        return found


def _run(argv: Sequence[str], folder: Path, env: Mapping[str, str], timeout_s: float) -> None:
    """Run *argv* in *folder*, with its output in the files `stdout` and `stderr`.

    :raises ToolMissing: it cannot be started, fails, or takes too long; the message ends with its stderr.
    """
    tool = Path(argv[0]).name
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        try:
            # In a new session, so that it can be killed with all its child processes.
            process = subprocess.Popen(
                argv,
                cwd=folder,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            raise ToolMissing(f"{argv[0]}: {error.strerror or error}") from None
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ToolMissing(
                f"{tool} timed out after {timeout_s:g} seconds{_stderr_tail(folder)}",
                hint="pass a longer --timeout SECONDS; the first run also downloads the database",
            ) from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code:
        how = f"failed with exit code {code}" if code > 0 else f"was killed by signal {-code}"
        raise ToolMissing(
            f"{tool} {how}{_stderr_tail(folder)}",
            hint="fix the error above; or scan elsewhere and pass the scanner's JSON: --report FILE.json",
        )


def _stderr_tail(folder: Path) -> str:
    with (folder / "stderr").open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return "".join(f"\n  {redact_text(line)[:500]}" for line in lines[-_TAIL:])
