"""The wheel specification as pure functions: destinations, launchers, RECORD."""

import csv
import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.programs import run_program
from torchkiln.errors import BadWheel
from torchkiln.wheel import install
from torchkiln.wheel.install import Row, Scheme, parse_name

SCHEME = Scheme(prefix="/opt/venv", python="3.11")
WHEEL = parse_name("Some_Thing-1.0-py3-none-any.whl")


@pytest.mark.parametrize(
    "path",
    ["bin/python", "bin/python3.11", "bin/activate", "bin/Activate.ps1", "pyvenv.cfg", "lib64", "lib64/x"],
)
def test_files_of_the_environment_cannot_be_replaced(path: str) -> None:
    """Neither a file of a scheme nor a launcher may replace a file of the environment."""
    with pytest.raises(BadWheel, match=f"would replace /opt/venv/{path} of the virtual environment"):
        install.destination(f"a-1.data/data/{path}", WHEEL, SCHEME)
    if path.startswith("bin/"):
        with pytest.raises(BadWheel, match="too long, or would replace a file of the virtual environment"):
            install.launchers(f"[console_scripts]\n{path[4:]} = a:b\n".encode(), WHEEL, SCHEME)


def test_a_launcher_runs_its_function(tmp_path: Path) -> None:
    """A launcher is a program that imports and calls a function, and returns its result as exit code."""
    made = install.launchers(b"[console_scripts]\nrun = pack.age:Class.main [extra]\n", WHEEL, SCHEME)
    assert list(made) == ["opt/venv/bin/run"]
    script = tmp_path / "run"
    script.write_bytes(made["opt/venv/bin/run"])
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "age.py").write_text(
        "import sys\nclass Class:\n    @staticmethod\n    def main():\n        print(sys.argv[1]); return 7\n"
    )
    done = run_program([sys.executable, str(script), "argument"], cwd=tmp_path)
    assert (done.stdout, done.returncode, done.stderr) == ("argument\n", 7, "")
    assert script.read_bytes().startswith(b"#!/opt/venv/bin/python\n")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (b"", []),
        (b"[other]\nx = y\n", []),
        (b"; remark\n# remark\n\n[console_scripts]\na=p:m\n[gui_scripts]\nb = p:m\n", ["a", "b"]),
        (b"[console_scripts]\r\nTool.x-y_z = p:m\r\n", ["Tool.x-y_z"]),
        (b"[console_scripts]\na = p:m\na = p:other\n", ["a"]),
        (
            b"[console_scripts]\npip = p:m\npip3.9 = p:m\npip4 = p:m\npipx = p:m\n",
            ["pip", "pip3", "pip3.11", "pipx"],
        ),
        (b"[console_scripts]\npip3 = p:m\n", ["pip3"]),
        (
            b"[console_scripts]\neasy_install = p:m\neasy_install-3.6 = p:m\n",
            ["easy_install", "easy_install-3.11"],
        ),
    ],
)
def test_launchers(text: bytes, names: list[str]) -> None:
    """Console and GUI scripts have launchers. pip's is named after the image's Python, not the builder's."""
    assert sorted(install.launchers(text, WHEEL, SCHEME)) == [f"opt/venv/bin/{name}" for name in names]


@given(
    paths=st.lists(
        st.text(
            st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters="/"), min_size=1
        ).filter(lambda path: path != ".."),
        unique=True,
    )
)
def test_a_written_record_reads_back(paths: list[str]) -> None:
    """torchkiln's reader and Python's csv module read the same fields."""
    text = install.record(Row(path=path, hash="sha256=x", size="3") for path in paths)
    assert install.parse_record(text, WHEEL) == dict.fromkeys(paths, ("sha256=x", "3"))
    read = list(csv.reader(io.StringIO(text.decode(), newline="")))
    assert [row[0] for row in read] == sorted(paths)


@pytest.mark.parametrize(
    "folder",
    [
        "Some_Thing-1.0.dist-info",
        "some.thing-1.0.dist-info",
        "some_thing-1.dist-info",
        "some_thing-1.0+cu126.dist-info",
    ],
)
def test_dist_info(folder: str) -> None:
    """Names are compared normalized, versions by value; refused folders are in tests/hostile."""
    assert install.dist_info(["a/x.py", f"{folder}/RECORD"], WHEEL) == folder
    with pytest.raises(BadWheel):
        install.dist_info(["some_thing.dist-info/RECORD"], WHEEL)
