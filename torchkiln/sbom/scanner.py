"""Image in a layout, a scanner on the PATH → Scan: the image alone in a folder, and the tool on that.

The tool works in a folder of ours and without settings of others: a `.trivyignore`, a `.grype.yaml` or a
variable could leave out findings, and only our own list does that. Where its knowledge comes from stays the
user's affair.
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

# Of the tools' own variables these pass: where the database is, and whether it may be fetched.
_PASS = re.compile(
    r"TRIVY_(CACHE_DIR|(SKIP_)?(JAVA_)?DB_(REPOSITORY|UPDATE)|OFFLINE_SCAN|INSECURE|USERNAME|PASSWORD)"
    r"|GRYPE_DB_[A-Z_]+"
)
_OURS = re.compile(r"(TRIVY|GRYPE|TORCHKILN)_")
# As a file that the command line names it is the only one of its kind that is read.
_GRYPE_SETTINGS = "check-for-app-update: false\n"
_ANSWER_S = 30.0  # for a version
_TAIL = 12  # lines of a tool's complaint


@dataclass(frozen=True, kw_only=True, slots=True)
class Scanner:
    """A tool that is there."""

    tool: Tool
    program: str

    def argv(self, timeout_s: float) -> list[str]:
        """The command line, in a folder in which the image is in `image`."""
        if self.tool == "trivy":
            return [
                *(self.program, "image", "--input", "image", "--format", "json"),
                *("--scanners", "vuln", "--no-progress", "--timeout", f"{timeout_s:.0f}s"),
            ]
        return [self.program, "oci-dir:image", "-o", "json", "--config", "grype.yaml"]


def find(wanted: Tool | None, environ: Mapping[str, str]) -> Scanner:
    """The scanner *wanted*, or the first that is on the PATH.

    :raises ToolMissing: none is.
    """
    tools = (wanted,) if wanted else TOOLS
    for tool in tools:
        if program := shutil.which(tool, path=environ.get("PATH", os.defpath)):
            return Scanner(tool=tool, program=os.path.abspath(program))
    raise ToolMissing(
        f"{' or '.join(tools)} is not on the PATH",
        hint="install Trivy or Grype; or scan elsewhere and give what it wrote: --report FILE.json",
    )


def scan(image: ImageOnDisk, scanner: Scanner, environ: Mapping[str, str], *, timeout_s: float) -> Scan:
    """What *scanner* finds in *image*.

    :raises ToolMissing: it cannot be run, fails, or takes longer than *timeout_s* seconds.
    :raises VerificationFailed: what it writes is no scan.
    """
    with scratch("scan") as folder:
        link_image(image, folder / "image")
        (folder / "grype.yaml").write_text(_GRYPE_SETTINGS)
        env = {key: value for key, value in environ.items() if _PASS.fullmatch(key) or not _OURS.match(key)}
        _run(scanner.argv(timeout_s), folder, env, timeout_s)
        told = f"what {scanner.tool} wrote"
        try:
            found = read(read_file(folder / "stdout", LIMIT), where=told)
        except OSError as error:
            raise VerificationFailed(f"{told}: {error.strerror}") from None
        if scanner.tool == "trivy":
            with contextlib.suppress(ToolMissing, OSError):
                _run([scanner.program, "version", "--format", "json"], folder, env, _ANSWER_S)
                return complete(found, read_file(folder / "stdout", LIMIT))
        return found


def _run(argv: Sequence[str], folder: Path, env: Mapping[str, str], timeout_s: float) -> None:
    """Run *argv* in *folder*, where `stdout` and `stderr` come to lie.

    :raises ToolMissing: it cannot be started, fails, or takes too long; with its last words.
    """
    tool = Path(argv[0]).name
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        try:
            # A session of its own: a tool that hangs is ended with all that it started.
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
                f"{tool} took longer than {timeout_s:g} seconds and was ended{_last_words(folder)}",
                hint="give it more: --timeout SECONDS; the first run also fetches its database",
            ) from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code:
        how = f"with exit code {code}" if code > 0 else f"by signal {-code}"
        raise ToolMissing(
            f"{tool} ended {how}{_last_words(folder)}",
            hint="mend what it complains of; or scan elsewhere and give what it wrote: --report FILE.json",
        )


def _last_words(folder: Path) -> str:
    with (folder / "stderr").open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return "".join(f"\n  {redact_text(line)[:500]}" for line in lines[-_TAIL:])
