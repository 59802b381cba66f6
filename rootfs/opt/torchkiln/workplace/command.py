"""The commands: services, doctor, help, greeting, healthcheck."""

from __future__ import annotations

import os
import sys

from workplace import doctor, greeting, health, helping, image, services
from workplace.settings import BadSettings, read

USAGE = 2  # exit code for wrong usage or settings


def main(arguments: list[str]) -> int:
    """Run the command that *arguments* name; return its exit code."""
    name, *rest = arguments or ["services"]
    if name == "healthcheck":
        return health.main()
    if name == "doctor":
        return doctor.main(rest)
    if name == "help":
        print(helping.text(image.load()))
        return 0
    if name == "greeting":
        print(greeting.text(image.load()))
        return 0
    if name != "services":
        print(f"torchkiln: no such command: {name!r}; run `help` for a list", file=sys.stderr)
        return USAGE
    try:
        settings = read(os.environ, root=os.getuid() == 0)
    except BadSettings as error:
        for fault in error.faults:
            print(f"torchkiln: {fault}", file=sys.stderr)
        print("torchkiln: nothing was started; `docker run IMAGE help` lists the settings", file=sys.stderr)
        return USAGE
    return services.run(settings, image.load())
