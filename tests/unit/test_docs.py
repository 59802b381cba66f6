"""The documents: links, commands, exit codes and tables are correct, and generated parts are up to date."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from smoke_tests.catalogue import catalogue
from smoke_tests.gpus import lacking
from tests.commands import demand_parses
from tests.integration.test_jupyter import NGINX
from tests.smoke_suites import SUITE
from tools import readme
from torchkiln import errors
from torchkiln.cli import INTERRUPTED
from torchkiln.matrix.facts import load
from torchkiln.smoke.verdict import HOST_FAULTS
from torchkiln.util.places import ROOT

REFERENCE, IMAGE = ((ROOT / "docs" / page).read_text() for page in ("reference.md", "image.md"))
DOCUMENTS = sorted(
    (
        *ROOT.glob("*.md"),
        *(page for top in ("docs", "deploy", "examples") for page in (ROOT / top).rglob("*.md")),
    )
)

_LINK = re.compile(r"\[[^\]]*\]\((?!https?://|mailto:)(?P<target>[^)#\s]*)(#(?P<anchor>[^)\s]+))?\)")
_COMMAND = re.compile(r"^\s*(?:\$ )?(?:\.venv/bin/)?(?:python build\.py|torchkiln)\s+(?P<arguments>.*)$")
_OURS = re.compile(r"\bTORCHKILN_[A-Z_]*[A-Z]\b(?!_)")
_READ = re.compile(r"(?:environ(?:\.get\(|\[)|\breader\.\w+\()\s*\"(?P<name>[A-Za-z_]+)\"")
_OF_A_TOOL = re.compile(r"\b(?:UV|PIP|SSL|SSH|JUPYTER|TENSORBOARD)_[A-Z_]+\b")


def _tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False).stdout
    return [path for name in listed.decode().split("\0") if name and (path := ROOT / name).is_file()]


def _blocks(text: str) -> Iterator[str]:
    """The lines of fenced and indented code, and the code between backticks."""
    fenced = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield line
        else:
            yield from re.findall(r"`([^`]+)`", line)


def _commands() -> list[tuple[str, str]]:
    return [
        (document.name, found["arguments"])
        for document in DOCUMENTS
        for line in _blocks(document.read_text())
        if (found := _COMMAND.match(line))
    ]


def _slug(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    broken = []
    for found in _LINK.finditer(document.read_text()):
        target = (document.parent / found["target"]).resolve() if found["target"] else document
        if not target.exists():
            broken.append(found[0])
        elif found["anchor"]:
            titles = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            broken += [] if found["anchor"] in map(_slug, titles) else [found[0]]

    assert broken == []


def test_documents_show_commands() -> None:
    """Otherwise the next test would pass without checking a command."""
    assert len(_commands()) >= 12


@pytest.mark.parametrize(
    ("document", "arguments"), sorted(set(_commands())), ids=lambda value: str(value)[:60]
)
def test_every_command_in_the_documents_parses(document: str, arguments: str) -> None:
    """Each word is a command or an option that exists, with a value where it takes one."""
    words = shlex.split(arguments.replace("…", ""), comments=True)
    if words == ["X"]:
        return  # `...` stands for any command
    demand_parses(words)


def test_exit_codes_are_those_of_the_code() -> None:
    """The table has one row for each exit code in the code, and no other row."""
    table = REFERENCE.split("| exit code | |")[1].split("\n\n")[0]
    listed = [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)]
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    raised = {kind.exit_code for kind in kinds if issubclass(kind, errors.KilnError)}

    assert listed == sorted({0, INTERRUPTED} | raised)


HERE = ("torchkiln", "smoke_tests", "tests/smoke_mutants", "tools", "build.py", ".github")
_OPT = ("account", "guard", "entrypoint", "healthcheck", "workplace")
INSIDE = ("rootfs/etc", *(f"rootfs/opt/torchkiln/{name}" for name in _OPT))


def _sources(*places: str) -> str:
    """The text of all files in *places*; by default, of all code that reads documented settings."""
    tops = [ROOT / place for place in places or (*HERE, *INSIDE)]
    files = [file for top in tops for file in (top, *top.rglob("*")) if file.is_file()]
    return "\n".join(file.read_text(errors="replace") for file in files if "__pycache__" not in file.parts)


def test_our_variables_are_documented_and_documented_ones_exist() -> None:
    documents = "\n".join(document.read_text() for document in DOCUMENTS)

    assert set(_OURS.findall(documents)) == set(_OURS.findall(_sources()))


@pytest.mark.parametrize("page", [REFERENCE, IMAGE], ids=["docs/reference.md", "docs/image.md"])
def test_documented_variables_of_other_programs_are_read(page: str) -> None:
    """They are UV_*, PIP_* and SSL_*, and in the container SSH_*, JUPYTER_* and TENSORBOARD_*."""
    code = _sources()

    assert [name for name in sorted(set(_OF_A_TOOL.findall(page))) if name not in code] == []


@pytest.mark.parametrize(("places", "page"), [(HERE, REFERENCE), (INSIDE, IMAGE)], ids=["here", "inside"])
def test_variables_that_the_code_reads_are_in_its_page(places: tuple[str, ...], page: str) -> None:
    """The exceptions are PATH, HOME, CUDA's variables, and variables that a check sets."""
    excluded = {"PATH", "HOME", "CUDA_VISIBLE_DEVICES", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}
    read = {found["name"] for found in _READ.finditer(_sources(*places))} - excluded

    assert len(read) > 5
    assert {name for name in read if f"`{name}`" not in page and not _OURS.match(name)} == set()


# /home/user exists in every image.
_PATH_OF_A_MACHINE = re.compile(r"(?<![\w.$}/-])/(?:home(?!/user/)|Users|mnt|media|work)/[a-z]\w*/")
_HOST = re.compile(r"https?://(?P<host>[A-Za-z0-9.-]+)")
# Hosts of specifications, the two public servers that a user may have to set, the snapshot services of the
# distributions, names reserved for examples (or without a dot), this machine, and issuers for CI jobs.
_FREE_HOSTS = re.compile(
    r"[a-z0-9-]+|(.*\.)?(example|test|invalid|localhost)(\.(com|org|net))?|127\.0\.0\.1|json-schema\.org"
    r"|keepachangelog\.com|www\.w3\.org|www\.apache\.org|in-toto\.io|slsa\.dev|sigstore\.dev|spdx\.dev"
    r"|cyclonedx\.org|git-lfs\.github\.com|download\.pytorch\.org|developer\.download\.nvidia\.com|token\.actions\.githubusercontent\.com"
    r"|snapshot\.debian\.org|snapshot\.ubuntu\.com"
)

# Public mirrors, only in the preset file and in pages and tests about it. Each also has subdomains.
_PUBLIC_MIRRORS = re.compile(
    r"(.*\.)?(tuna\.tsinghua\.edu\.cn|ustc\.edu\.cn|bfsu\.edu\.cn|aliyun\.com|cloud\.tencent\.com|daocloud\.io)"
)
_ABOUT_MIRRORS = {
    "torchkiln/data/mirrors.yaml",
    "docs/mirrors.zh-CN.md",
    "README.zh-CN.md",
    "tests/unit/test_mirrors.py",
}


def test_no_address_and_no_path_of_a_machine_is_committed() -> None:
    """No file may name the machine on which it was made, or a package index: users configure their own."""
    faults = []
    for file in _tracked():
        text = file.read_text(errors="replace")
        faults += [f"{file.relative_to(ROOT)}: {found}" for found in _PATH_OF_A_MACHINE.findall(text)]
        hosts = {found["host"].lower() for found in _HOST.finditer(text)}
        if str(file.relative_to(ROOT)) in _ABOUT_MIRRORS:
            hosts = {host for host in hosts if not _PUBLIC_MIRRORS.fullmatch(host)}
        faults += [f"{file.relative_to(ROOT)}: {host}" for host in hosts if not _FREE_HOSTS.fullmatch(host)]

    assert faults == []


def test_the_documented_proxy_is_the_tested_one() -> None:
    """The nginx of the tests has each setting of the snippet, except for the port."""
    (snippet,) = re.findall(r"```nginx\n(.*?)```", IMAGE, re.DOTALL)
    tested = NGINX.format(folder="", own=80, port=8888, host="$http_host").replace("127.0.0.1:80;", "80;")
    lines = {line.strip() for line in tested.splitlines()}

    assert "proxy_pass http://127.0.0.1:8888;" in snippet
    assert {line.strip() for line in snippet.splitlines()} - lines == set()


def _functions(module: str) -> set[str]:
    """The functions and classes that a module (or any module of a folder) of torchkiln defines."""
    place = ROOT / "torchkiln" / module
    files = place.rglob("*.py") if place.is_dir() else [place]
    return {name for file in files for name in re.findall(r"^(?:def|class) (\w+)", file.read_text(), re.M)}


def test_every_function_of_the_map_is_in_its_module() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## The map")[1].split("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line[:1] == "|"][2:]
    missing = [
        function
        for _, functions, _, places in rows
        for function in re.findall(r"`(\w+)`", functions)
        if not any(
            function in _functions(place)
            for place in re.findall(r"`([\w/]+(?:\.py|/))`", places)
            if "." in place
        )
    ]

    assert len(rows) > 10
    assert missing == []


def test_each_of_the_ten_changes_names_at_most_five_files_that_exist() -> None:
    """A path that contains NAME is a new file, whose folder must exist."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Ten changes")[1].split("\n## ")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ")][2:]
    files = [re.findall(r"`([\w./-]+\.\w+)`", row) for row in rows]

    assert [len(named) for named in files if not 1 <= len(named) <= 5] == []
    assert len(rows) == 10
    assert [name for named in files for name in named if not _there(name)] == []


def _there(name: str) -> bool:
    return (ROOT / name).parent.is_dir() if "NAME" in name else (ROOT / name).is_file()


PAGE = (SUITE.parent / "docs" / "smoke.md").read_text("utf-8")


def rows(title: str) -> list[list[str]]:
    """The cells of the table under the heading *title*."""
    part = re.split(r"^#+ ", PAGE.split(f"# {title}", 1)[1], maxsplit=1, flags=re.M)[0]
    found = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found[1:]]


TITLES = (
    "Tier 0: no GPU",
    "Tier 1: one GPU",
    "Tier 2: at least two GPUs; all GPUs are used",
    "Tier 3: the benchmark",
)


@pytest.mark.parametrize(("tier", "title"), [*enumerate(TITLES)])
def test_each_check_has_a_row_with_its_mutants(tier: int, title: str) -> None:
    table = rows(title)
    assert sorted(row[0] for row in table) == [check.id for check in catalogue(SUITE) if check.tier == tier]
    assert all(len(row) == 3 and row[2] for row in table)


def test_each_fault_of_a_host_that_is_known_by_its_text_has_a_row() -> None:
    assert [row[0] for row in rows("Failures of the host")] == [fault for _, fault in HOST_FAULTS]


def test_the_documented_message_for_torch_2_0_is_current() -> None:
    gpu = {"capability": [9, 0], "memory": 80 << 30, "free": None}
    driver = {"libcuda": None, "init": 0, "visible": None, "gpus": [gpu], "driver": None, "cuda": "13.0"}
    archs = load().releases["2.0.1"].variant("cu117").archs
    message = lacking(1, {"driver": driver}, {"archs": archs, "wheel_cuda": "11.7"})
    assert f"\n    {message}\n" in PAGE


# --- generated parts -------------------------------------------------------------------------------


PART = "before\n<!-- generated: switches -->\n{}<!-- end -->\nbehind\n"


def test_the_variables_are_those_of_the_image() -> None:
    """Only the text between the marks is generated; a second run changes nothing."""
    once = readme.filled(PART.format("stale\n"))

    assert once.startswith("before\n<!-- generated: switches -->\n| variable |")
    assert "| `TENSORBOARD_LOGDIR` |" in once
    assert once.endswith("<!-- end -->\nbehind\n")
    assert readme.filled(once) == once


def test_an_unknown_generated_part() -> None:
    with pytest.raises(SystemExit, match="'swiches'"):
        readme.filled("<!-- generated: swiches -->\n<!-- end -->\n")


def test_a_stale_page_is_named_and_updated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--check` names a stale page and does not update it; an up-to-date page is never written."""
    fresh, stale = tmp_path / "fresh.md", tmp_path / "stale.md"
    fresh.write_text(readme.filled(PART.format("")))
    stale.write_text(PART.format("stale\n"))
    before = fresh.stat().st_ino
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    monkeypatch.setattr(readme, "PAGES", (fresh, stale))

    monkeypatch.setattr("sys.argv", ["readme.py", "--check"])
    assert readme.main() == 5
    assert capsys.readouterr().err.startswith("stale.md: generated parts are stale\nhint: ")
    assert stale.read_text() == PART.format("stale\n")

    monkeypatch.setattr("sys.argv", ["readme.py"])
    assert readme.main() == 0
    assert stale.read_text() == fresh.read_text()
    assert fresh.stat().st_ino == before
    monkeypatch.setattr("sys.argv", ["readme.py", "--check"])
    assert readme.main() == 0


def test_the_readmes_matrix_has_the_programs_of_the_published_ports() -> None:
    """Every image exposes the ports of JupyterLab and TensorBoard."""
    for page in ("README.md", "README.zh-CN.md"):
        (packages,) = re.findall(r"^packages: \[(.*)\]$", (ROOT / page).read_text(), re.MULTILINE)
        assert {"jupyterlab", "tensorboard"} <= set(packages.split(", ")), page
