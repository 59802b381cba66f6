"""LockedCell -> what makes its micromamba a conda of the image: a layer of its own, and the variables.

Its prefix is /opt/conda, whose `base` is an environment without a Python: activated, it leads on to the
image's own, and so sees its torch. Only `condabin` is on PATH, and last, as conda itself has it: what is
installed into `base` stays out of the way of /opt/venv until it is activated.
"""

from __future__ import annotations

from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.plan import EnvironmentSettings, OverlayFile, OverlayLink, ProgramLayer

HOME = "/opt/conda"
_BIN = f"{HOME}/condabin"
# bash-completion reads the folder in every interactive bash. Nothing is started before it is wanted: the
# hook makes `activate` work, and takes a process of its own.
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
    """The layer of micromamba's *file*; `program_path` says where that goes."""
    return ProgramLayer(
        title=f"{file.name} {file.version}",
        program=file,
        files=(
            OverlayFile(path="etc/bash_completion.d/torchkiln-conda", mode=0o644, data=_HOOK.encode()),
            OverlayFile(path=f"{HOME.lstrip('/')}/conda-meta/history", mode=0o644, data=b""),  # `base`'s mark
        ),
        links=tuple(
            OverlayLink(path=f"{_BIN.lstrip('/')}/{name}", target=file.name) for name in ("conda", "mamba")
        ),
        # It makes environments nowhere else, whoever asks for one; what it fetches goes to the user's home.
        folders=((f"{HOME.lstrip('/')}/envs", 0o1777),),
    )


def program_path(file: LockedWheel) -> str:
    """Where the program lies, relative to /."""
    return f"{_BIN.lstrip('/')}/{file.name}"


def settings(locked: LockedCell) -> EnvironmentSettings:
    """Where shells find it, behind all else on PATH, and where it puts what it installs."""
    if any(component.program for component in locked.components):
        return EnvironmentSettings(programs=(_BIN,), env=(("MAMBA_ROOT_PREFIX", HOME),))
    return EnvironmentSettings()
