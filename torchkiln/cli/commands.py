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
# Earlier names; the next release removes them.
EARLIER = {
    "catalog": ("ls",),
    "retract": ("withdraw",),
    "toolkit": ("plan", "toolkit"),
}
