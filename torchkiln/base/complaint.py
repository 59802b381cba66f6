"""Finds the cause of a failure in the output of mmdebstrap. Pure.

mmdebstrap prints the output of apt and dpkg. After a failure, each program in the chain of calls adds a
message of its own. The error reports only the cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torchkiln.errors import BuildFailed

LOGIN = re.compile(r"(?<=://)[^/@\s]*@")  # user and password of a mirror, which apt may print
_MAX_LINES = 3  # in a message; the first lines name the cause, later lines follow from it
_UNFETCHED = re.compile(
    r"E: Failed to fetch (?P<scheme>\w+://)(?P<archive>\S+?)/(?:dists|pool)/\S* +(?P<why>.+)"
)
# Messages of apt about connections that failed.
_NO_ANSWER = re.compile(
    r"resolv|could not connect|unable to connect|cannot initiate the connection|connection (failed|timed out)"
    r"|network is unreachable|error reading from server|from proxy",
    re.IGNORECASE,
)
_FULL = re.compile(r"No space left on device|Disk quota exceeded|enough free space")
_HELD = re.compile(r"E: (Unable to correct problems|Unmet dependencies)")
_DEPENDENCY = re.compile(r" *\S+ : (Pre)?(Depends|Breaks|Conflicts): .+|  +(Depends|Breaks|Conflicts): .+")
# apt also calls a repository "not signed" if it rejects the signature; an earlier line says why.
_UNSIGNED = re.compile(
    r"E: The repository '(?P<scheme>\w+://)(?P<suite>\S+ \S+) (?:In)?Release' is not signed\."
)
_GPG_ERROR = re.compile(r"W: GPG error: \w+://(?P<suite>\S+ \S+) InRelease: (?P<why>.+)")
# Messages that do not say why.
_GENERIC = re.compile(
    r"E: (mmdebstrap failed to run|Some index files failed|(apt-get|env|chroot|run_\w+) .*failed)"
)


class Unsolvable(BuildFailed):
    """apt cannot satisfy the dependencies: the pinned packages are too old for those of the archive."""


def complaint(
    code: int, lines: Iterable[str], *, os_name: str, scratch: str, elsewhere: str, keys: str
) -> BuildFailed:
    """The error if mmdebstrap exits with *code* after the output *lines*.

    :param scratch: its working folder.
    :param elsewhere: how to set another archive; the end of the hint.
    :param keys: where the archive's keys are expected.
    """
    output = list(dict.fromkeys(LOGIN.sub("", line) for line in lines))
    if any(_FULL.search(line) for line in output):
        return BuildFailed(
            f"no space left on device: {scratch}, where the base of {os_name} is built",
            hint="free disk space (800 MB are needed), or set TMPDIR to another folder",
        )
    unfetched = [found for line in output if (found := _UNFETCHED.fullmatch(line))]
    if unreachable := [found for found in unfetched if _NO_ANSWER.search(found["why"])]:
        why = {found["scheme"] + found["archive"]: found["why"].strip(" :") for found in unreachable}
        return BuildFailed(
            "\n".join(
                (f"the archive of {os_name} cannot be reached:", *(f"  {at}: {why[at]}" for at in why))
            ),
            hint=f"check the network and the proxy (http_proxy, or apt's configuration); {elsewhere}",
        )
    if any(_HELD.match(line) for line in output):
        dependencies = [line.strip() for line in output if _DEPENDENCY.fullmatch(line)] or [
            "(apt names no packages)"
        ]
        return Unsolvable(
            "\n".join(("unmet dependencies:", *(f"  {line}" for line in dependencies[:_MAX_LINES]))),
            hint=elsewhere,
        )
    if unsigned := [found for line in output if (found := _UNSIGNED.match(line))]:
        reasons = {found["suite"]: found["why"] for line in output if (found := _GPG_ERROR.match(line))}
        repositories = (
            f"  {found['scheme']}{found['suite']}: {reasons.get(found['suite'], 'it has no signature')}"
            for found in unsigned
        )
        return BuildFailed(
            "\n".join((f"the signature of the archive of {os_name} cannot be verified:", *repositories)),
            hint=f"{keys}; {elsewhere}",
        )
    errors = [line for line in output if line.startswith(("E: ", "dpkg: error")) and not _GENERIC.match(line)]
    shown = errors[:_MAX_LINES] or output[-1:] or ["no output"]
    return BuildFailed(
        "\n".join((f"mmdebstrap failed with exit status {code}:", *(f"  {line}" for line in shown))),
        hint=elsewhere,
    )
