"""The settings of a project: their files, allowed values, and effect on the project's image."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.projects import bench
from torchkiln.errors import ConfigError
from torchkiln.projects.settings import ProjectSettings, read_settings, settings_of

COMMAND = 'command = ["python", "serve.py"]\n'


def project(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def refused(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_settings(folder)
    return caught.value.message


@pytest.mark.parametrize(
    "files",
    [
        {"torchkiln_toml": COMMAND},
        {"pyproject_toml": f"[tool.torchkiln]\n{COMMAND}"},
        {"torchkiln_toml": COMMAND, "pyproject_toml": "[tool.ruff]\nline-length = 80\n"},
    ],
)
def test_both_files_can_have_them(tmp_path: Path, files: dict[str, str]) -> None:
    assert read_settings(project(tmp_path, **files)) == ProjectSettings(command=("python", "serve.py"))


def test_without_settings_nothing_changes(tmp_path: Path) -> None:
    assert read_settings(project(tmp_path, pyproject_toml='[project]\nname = "x"\n')) == ProjectSettings()


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"torchkiln_toml": "comand = []"}, "torchkiln.toml: comand: unknown key; nearest valid: command"),
        ({"torchkiln_toml": "command = []"}, "torchkiln.toml: command: must not be empty"),
        ({"torchkiln_toml": "command = ['-c']"}, "torchkiln.toml: command: '-c' is an option, not a program"),
        ({"torchkiln_toml": "env = {A = 1}"}, "torchkiln.toml: env.A: must be text, not 1; put it in quotes"),
        ({"torchkiln_toml": "x = "}, "torchkiln.toml: not valid TOML: Invalid value (at end of document)"),
        (
            {"pyproject_toml": "tool.torchkiln = 3"},
            "pyproject.toml: [tool.torchkiln]: must be a mapping, not 3",
        ),
        (
            {"torchkiln_toml": "", "pyproject_toml": "[tool.torchkiln]\n"},
            "torchkiln.toml: pyproject.toml also has [tool.torchkiln]",
        ),
    ],
)
def test_invalid_settings_are_refused(tmp_path: Path, files: dict[str, str], fault: str) -> None:
    assert refused(project(tmp_path, **files)) == fault


def test_a_link_out_of_the_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.toml").write_text(COMMAND)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "torchkiln.toml").symlink_to("../elsewhere.toml")

    assert refused(folder) == "torchkiln.toml: not a file in the project's folder"


REFUSED = """LD_PRELOAD LD_LIBRARY_PATH PATH PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONWARNINGS OLD_PATH
    VIRTUAL_ENV NVIDIA_VISIBLE_DEVICES TORCHKILN_ANY_GPU BASH_ENV GLIBC_TUNABLES NVTX_INJECTION64_PATH
    CUDA_INJECTION64_PATH NCCL_ENV_PLUGIN NCCL_NET_PLUGIN RDMAV_DRIVERS GCONV_PATH OCL_ICD_VENDORS
    VK_ICD_FILENAMES MPLBACKEND TORCHINDUCTOR_CACHE_DIR RAY_RUNTIME_ENV_HOOK MAMBA_EXE WANDB__EXECUTABLE
    HF_MODULES_CACHE TZ=:/app/zone TZ=../zone CUBLAS_WORKSPACE_CONFIG=/app/x OMP_NUM_THREADS=/app/x"""
ACCEPTED = """HF_HOME=/data PYTHONUNBUFFERED=1 APP_PATH=/x:/y TZ=Europe/Berlin WANDB_PROJECT=x LOG_LEVEL=debug
    MAMBA_ROOT_PREFIX=/conda
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,roundup_power2_divisions:[256:1,>:8]
    CUBLAS_WORKSPACE_CONFIG=:4096:8 HF_HUB_ENABLE_HF_TRANSFER=1 CUDA_DEVICE_ORDER=PCI_BUS_ID"""


@pytest.mark.parametrize("line", REFUSED.split())
def test_variables_that_may_select_code(line: str) -> None:
    name, _, value = line.partition("=")
    with pytest.raises(ConfigError) as caught:
        settings_of("torchkiln.toml", {"env": {"APP_A": "1", name: value}})
    assert caught.value.message.startswith(f"torchkiln.toml: env: {name} cannot be set")


@pytest.mark.parametrize("line", ACCEPTED.split())
def test_other_variables(line: str) -> None:
    name, _, value = line.partition("=")
    assert settings_of("torchkiln.toml", {"env": {name: value}}).env == {name: value}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda part: st.lists(part) | st.dictionaries(st.text(), part),
    )
)
def test_any_document_is_read_or_refused(document: object) -> None:
    try:
        assert isinstance(settings_of("torchkiln.toml", document), ProjectSettings)
    except ConfigError as refusal:
        error = refusal
    else:
        return
    assert "torchkiln.toml" in error.message


def test_the_image_has_them(tmp_path: Path) -> None:
    small = bench(tmp_path)
    before = small.build(small.lock()).plan.config
    (small.project / "torchkiln.toml").write_text(COMMAND + 'env = {HF_HOME = "/data"}\n')
    after = small.build(small.lock()).plan.config

    assert (before.cmd, after.cmd) == ((), ("python", "serve.py"))
    assert [one for one in after.env if one not in before.env] == [("HF_HOME", "/data")]
    assert after.env[: len(before.env)] == before.env
    assert after.entrypoint == before.entrypoint
