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
from torchkiln.wheel.install import Row, Scheme, WheelName, parse_name

SCHEME = Scheme(prefix="/opt/venv", python="3.11")
WHEEL = parse_name("Some_Thing-1.0-py3-none-any.whl")
SITE = "opt/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("some/x.py", f"{SITE}/some/x.py"),
        ("x.data", f"{SITE}/x.data"),
        ("Some_Thing-1.0.data/purelib/a/b.py", f"{SITE}/a/b.py"),
        ("Some_Thing-1.0.data/platlib/b.so", f"{SITE}/b.so"),
        ("Some_Thing-1.0.data/scripts/run", "opt/venv/bin/run"),
        ("Some_Thing-1.0.data/data/share/x", "opt/venv/share/x"),
        ("Some_Thing-1.0.data/data/bin/python-config", "opt/venv/bin/python-config"),
        ("Some_Thing-1.0.data/scripts/activate-tool", "opt/venv/bin/activate-tool"),
        ("Some_Thing-1.0.data/data/lib64x", "opt/venv/lib64x"),
        ("Some_Thing-1.0.data/headers/x.h", "opt/venv/include/site/python3.11/some-thing/x.h"),
    ],
)
def test_destination(name: str, place: str) -> None:
    """Files at the top of the wheel go to site-packages, those in `.data` to the scheme of their key."""
    assert install.destination(name, WHEEL, SCHEME) == place


@pytest.mark.parametrize(
    "name",
    [
        "a-1.0.tar.gz",
        "a.whl",
        "a-1.0.whl",
        "a-1-py3-none.whl",
        "-1-py3-none-any.whl",
        "a-x!-py3-none-any.whl",
    ],
)
def test_an_invalid_wheel_file_name_is_refused(name: str) -> None:
    """Name, version and tags are checked."""
    with pytest.raises(BadWheel, match="not a valid wheel filename"):
        parse_name(name)


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


@pytest.mark.parametrize(
    ("script", "made"),
    [
        (b"#!python\nx", b"#!/opt/venv/bin/python\nx"),
        (b"#!pythonw -E\r\nx\n", b"#!/opt/venv/bin/python\nx\n"),
        (b"#!python", b"#!/opt/venv/bin/python\n"),
        (b"#!/usr/bin/python\nx", b"#!/usr/bin/python\nx"),
        (b"# !python\n", b"# !python\n"),
        (b"\x7fELF\0", b"\x7fELF\0"),
        (b"", b""),
    ],
)
def test_with_interpreter(script: bytes, made: bytes) -> None:
    """Only a first line that begins with `#!python` is rewritten."""
    assert install.with_interpreter(script, SCHEME) == made


@pytest.mark.parametrize(
    ("entry", "is_it"),
    [
        ("a-1.data/scripts/x", True),
        ("a-1.data/scripts/deep/x", True),
        ("a-1.data/data/scripts/x", False),
        ("scripts/x/y", False),
        ("a-1.data/scripts", False),
    ],
)
def test_is_script(entry: str, is_it: bool) -> None:
    """A script is a file in the scheme `scripts`, also in a subfolder."""
    assert install.is_script(entry) is is_it


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


@pytest.mark.parametrize(
    "line",
    [
        "a = p:",
        "a = p:m()",
        "a = p import os\nx:m",
        "= p:m",
        "a\\b = p:m",
        "a = p\u00fc:m",
        "no entry",
        "a = p : m",
    ],
)
def test_an_invalid_entry_point_is_refused(line: str) -> None:
    """Its name becomes a path, and its object reference becomes code. tests/hostile has more of them."""
    with pytest.raises(BadWheel, match=r"^Some_Thing-1.0-py3-none-any.whl: "):
        install.launchers(f"[console_scripts]\n{line}\n".encode(), WHEEL, SCHEME)


@pytest.mark.parametrize(
    ("path", "escaped"),
    [
        (f"{SITE}/a/b.py", "a/b.py"),
        (f"{SITE}/a", "a"),
        ("opt/venv/bin/x", "../../../bin/x"),
        ("opt/venv/include/site/python3.11/x/y.h", "../../../include/site/python3.11/x/y.h"),
        ("opt/venv/lib/python3.11/x", "../x"),
        ("opt/venv/lib/x", "../../x"),
        ("opt/venv/lib", "../../../lib"),
    ],
)
def test_record_path(path: str, escaped: str) -> None:
    """Paths in RECORD are relative to site-packages, as os.path.relpath computes them."""
    assert install.record_path(path, SCHEME) == escaped
    assert Path(f"/{SITE}/{escaped}").resolve() == Path(f"/{path}")


def test_record_is_sorted_and_quoted_like_by_pip() -> None:
    """Lines end in CRLF; quotes are doubled, fields with commas are quoted, and some files have no hash."""
    rows = [Row(path='b,"c"', hash="sha256=x", size="1"), Row(path="a", hash="", size="")]
    assert install.record(rows) == b'a,,\r\n"b,""c""",sha256=x,1\r\n'


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


def test_launchers_of_the_wheel_are_replaced() -> None:
    """tool.exe, tool-script.py, tool.pya and tool are replaced by the launcher of `tool`; nothing else is."""
    names = install.launcher_names(
        b"[console_scripts]\ntool = p:m\n[gui_scripts]\nwin = p:m\n[x]\nz = p:m\n", WHEEL
    )
    scripts = (
        "tool",
        "tool.exe",
        "tool.EXE",
        "tool-script.py",
        "tool.pya",
        "deep/win",
        "z",
        "tool.py",
        "Tool",
    )

    assert names == {"tool", "win"}
    assert [name for name in scripts if not install.is_old_launcher(f"bin/{name}", names)] == [
        "z",
        "tool.py",
        "Tool",
    ]


def test_the_name_keeps_its_spelling() -> None:
    """Names are normalized only when they are compared."""
    assert parse_name("A.B_c-1.0.0-py3-none-any.whl") == WheelName(
        filename="A.B_c-1.0.0-py3-none-any.whl",
        distribution="A.B_c",
        version=parse_name("a-1.0.0-py3-none-any.whl").version,
        tags=parse_name("a-1.0.0-py3-none-any.whl").tags,
    )
