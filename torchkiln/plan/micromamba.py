"""Installs micromamba as the image's conda: its layer, and its environment variables.

Its prefix is /opt/conda, whose `base` environment has no Python: when it is activated, the image's Python and
its torch are used. Only `condabin` is on PATH, at the end, as in conda: programs installed into `base` do not
hide those of /opt/venv until it is activated.
"""

from __future__ import annotations

from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.plan import EnvironmentSettings, OverlayFile, OverlayLink, ProgramLayer

HOME = "/opt/conda"
_BIN = f"{HOME}/condabin"
# bash-completion reads the folder in every interactive bash. The hook, which `activate` needs, starts a
# process, so it is loaded at the first call.
_HOOK = f"""\
# conda, mamba and micromamba in an interactive bash: the first call loads micromamba's hook.
torchkiln_conda() {{
    unset -f conda mamba torchkiln_conda
    eval "$({_BIN}/micromamba shell hook --shell bash)"
    conda() {{ micromamba "$@"; }}
    mamba() {{ micromamba "$@"; }}
    micromamba "$@"
}}
conda() {{ torchkiln_conda "$@"; }}
mamba() {{ torchkiln_conda "$@"; }}
micromamba() {{ torchkiln_conda "$@"; }}
"""


def program_layer(file: LockedWheel) -> ProgramLayer:
    """The layer of micromamba's *file*, which is installed at `program_path`."""
    return ProgramLayer(
        title=f"{file.name} {file.version}",
        program=file,
        files=(
            OverlayFile(path="etc/bash_completion.d/torchkiln-conda", mode=0o644, data=_HOOK.encode()),
            OverlayFile(
                path=f"{HOME.lstrip('/')}/conda-meta/history", mode=0o644, data=b""
            ),  # marks `base` as an environment
        ),
        links=tuple(
            OverlayLink(path=f"{_BIN.lstrip('/')}/{name}", target=file.name) for name in ("conda", "mamba")
        ),
        # Every user creates environments here; downloads go to the user's home.
        folders=((f"{HOME.lstrip('/')}/envs", 0o1777),),
    )


def program_path(file: LockedWheel) -> str:
    """The path of the program relative to /."""
    return f"{_BIN.lstrip('/')}/{file.name}"


def settings(locked: LockedCell) -> EnvironmentSettings:
    """Its folder on PATH, which comes last, and its root prefix."""
    if any(component.program for component in locked.components):
        return EnvironmentSettings(programs=(_BIN,), env=(("MAMBA_ROOT_PREFIX", HOME),))
    return EnvironmentSettings()
