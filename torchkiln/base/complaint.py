"""What mmdebstrap said last → BuildFailed: the lines that tell why, and what to do about it.

mmdebstrap passes on all that apt and dpkg say, and then what each program thinks of the failure of the one
below it. Whoever reads wants the cause alone. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torchkiln.errors import BuildFailed

_MOST = 3  # lines; the first are the cause, the others follow from it
_UNFETCHED = re.compile(
    r"E: Failed to fetch (?P<scheme>\w+://)(?:[^/@\s]*@)?(?P<archive>\S+?)/(?:dists|pool)/\S* +(?P<why>.+)"
)
# apt's words when it got no answer at all; an answer that it does not like is another matter.
_NO_ANSWER = re.compile(
    r"resolv|could not connect|unable to connect|cannot initiate the connection|connection (failed|timed out)"
    r"|network is unreachable|error reading from server|from proxy",
    re.IGNORECASE,
)
_FULL = re.compile(r"No space left on device|Disk quota exceeded|enough free space")
# apt calls a repository unsigned too whose signature it does not believe; why, stands in a line before.
_UNSIGNED = re.compile(
    r"E: The repository '(?P<scheme>\w+://)(?:[^/@\s]*@)?(?P<suite>\S+ \S+) (?:In)?Release' is not signed\."
)
_DISBELIEVED = re.compile(r"W: GPG error: \w+://(?:[^/@\s]*@)?(?P<suite>\S+ \S+) InRelease: (?P<why>.+)")
_HELD = re.compile(r"E: (Unable to correct problems|Unmet dependencies)")
_WANTS = re.compile(r" *\S+ : (Pre)?(Depends|Breaks|Conflicts): .+|  +(Depends|Breaks|Conflicts): .+")
# What says no more than that something failed.
_EMPTY = re.compile(
    r"E: (mmdebstrap failed to run|Some index files failed|(apt-get|env|chroot|run_\w+) .*failed)"
)


class Unsolvable(BuildFailed):
    """apt finds no packages that go together: those that are held are too old for those of the archive."""


def complaint(
    code: int, lines: Iterable[str], *, os_name: str, scratch: str, elsewhere: str, keys: str
) -> BuildFailed:
    """The error for an mmdebstrap that ended with *code* and said *lines* last.

    :param scratch: the folder in which it worked.
    :param elsewhere: how another archive is named; ends the hint.
    :param keys: where the archive's keys were looked for, and how others are named.
    """
    said = list(dict.fromkeys(lines))
    if any(_FULL.search(line) for line in said):
        return BuildFailed(
            f"no room is left in {scratch}, where the base of {os_name} is made",
            hint="make room there (it takes 800 MB), or set TMPDIR to another folder",
        )
    unfetched = [found for line in said if (found := _UNFETCHED.fullmatch(line))]
    if silent := [found for found in unfetched if _NO_ANSWER.search(found["why"])]:
        why = {found["scheme"] + found["archive"]: found["why"].strip(" :") for found in silent}
        return BuildFailed(
            "\n".join(
                (f"the archive of {os_name} cannot be reached:", *(f"  {at}: {why[at]}" for at in why))
            ),
            hint=f"look at the network, and at the proxy (http_proxy, or apt's own); {elsewhere}",
        )
    if unsigned := [found for line in said if (found := _UNSIGNED.match(line))]:
        doubts = {found["suite"]: found["why"] for line in said if (found := _DISBELIEVED.match(line))}
        told = (
            f"  {found['scheme']}{found['suite']}: {doubts.get(found['suite'], 'it has no signature')}"
            for found in unsigned
        )
        return BuildFailed(
            "\n".join((f"the archive of {os_name} is not signed by whom it should be:", *told)),
            hint=f"{keys}; {elsewhere}",
        )
    if any(_HELD.match(line) for line in said):
        wants = [line.strip() for line in said if _WANTS.fullmatch(line)] or ["it does not say which"]
        return Unsolvable(
            "\n".join(("apt finds no packages that go together:", *(f"  {line}" for line in wants[:_MOST]))),
            hint=elsewhere,
        )
    errors = [line for line in said if line.startswith(("E: ", "dpkg: error")) and not _EMPTY.match(line)]
    telling = errors[:_MOST] or said[-1:] or ["nothing"]
    return BuildFailed(
        "\n".join((f"mmdebstrap ended with code {code}; it said:", *(f"  {line}" for line in telling))),
        hint=elsewhere,
    )
