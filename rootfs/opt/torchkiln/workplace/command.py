"""The commands: services, doctor, help, greeting, healthcheck, gpus."""

from __future__ import annotations

import os

from workplace import doctor, gpus, greeting, health, helping, image, messages, report, services
from workplace.messages import message
from workplace.settings import BadSettings, read

USAGE = 2  # exit code for wrong usage or settings


def main(arguments: list[str]) -> int:
    """Run the command that *arguments* name; return its exit code."""
    messages.use(messages.language(os.environ))
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
    if name == "gpus":
        return gpus.main(image.load(), os.environ)
    if name != "services":
        report.say(message("command.unknown", name=name))
        return USAGE
    try:
        settings = read(os.environ, root=os.getuid() == 0)
    except BadSettings as error:
        report.say(*error.faults, message("settings.help"))
        return USAGE
    this_image = image.load()
    if not settings.any_gpu and (refusal := gpus.refusal(this_image)):
        report.say(*refusal)
        return gpus.REFUSED
    return services.run(settings, this_image)
