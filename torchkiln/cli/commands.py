"""Lists the commands, in the sections of --help."""

from __future__ import annotations

# section of --help → name → (module, attribute). Only the module of the command that runs is imported: then a
# build that changes nothing takes half a second.
SECTIONS = {
    "Choose": {
        "list": ("torchkiln.cli.grid", "list_command"),
        "explain": ("torchkiln.cli.grid", "explain"),
        "pick": ("torchkiln.cli.grid", "pick"),
        "plan": ("torchkiln.cli.plan", "plan"),
    },
    "Build": {
        "init": ("torchkiln.cli.init", "init"),
        "build": ("torchkiln.cli.build", "build"),
        "lock": ("torchkiln.cli.lock", "lock"),
        "project": ("torchkiln.cli.project", "project"),
        "refresh": ("torchkiln.cli.refresh", "refresh"),
        "render": ("torchkiln.cli.render", "render"),
        "base": ("torchkiln.cli.base", "base"),
        "vault": ("torchkiln.cli.vault", "vault"),
    },
    "Test": {
        "run": ("torchkiln.cli.run", "run"),
        "smoke": ("torchkiln.cli.smoke", "smoke"),
        "diff": ("torchkiln.cli.diff", "diff"),
        "sbom": ("torchkiln.cli.sbom", "sbom"),
        "gate": ("torchkiln.cli.gate", "gate"),
    },
    "Publish": {
        "publish": ("torchkiln.cli.publish", "publish"),
        "push": ("torchkiln.cli.push", "push"),
        "export": ("torchkiln.cli.export", "export"),
        "verify": ("torchkiln.cli.verify", "verify"),
        "ls": ("torchkiln.cli.repository", "ls"),
        "withdraw": ("torchkiln.cli.repository", "withdraw"),
    },
    "Maintain": {
        "matrix": ("torchkiln.cli.matrix", "matrix"),
        "ci": ("torchkiln.cli.ci", "ci"),
        "cache": ("torchkiln.cli.cache", "cache"),
        "doctor": ("torchkiln.cli.doctor", "doctor"),
        "completion": ("torchkiln.cli.completion", "completion"),
    },
}
COMMANDS = {name: place for section in SECTIONS.values() for name, place in section.items()}


def as_project(args: list[str]) -> list[str]:
    """`build --project DIR` as `project build DIR`, its present form; the next release removes this."""
    named = next((word for word in args if word.partition("=")[0] == "--project"), "")
    if not named or args[0] not in ("build", "lock", "smoke"):
        return args
    at, command, (_, equals, folder) = args.index(named), args[0], named.partition("=")
    words = ([folder] if equals else []) + args[at + 1 :] + args[1:at]
    rest = [word for word in words if (command, word) not in _NOT_OF_PROJECTS]
    if command == "build":
        to = any(word.partition("=")[0] == "--to" for word in rest)
        command = "watch" if "--watch" in args else "push" if to else "build"
    return ["project", command, *rest]


_NOT_OF_PROJECTS = {("build", "--watch"), ("smoke", "run")}
# Earlier names; the next release removes them.
EARLIER = {"catalog": ("ls",), "retract": ("withdraw",), "toolkit": ("plan", "toolkit")}
