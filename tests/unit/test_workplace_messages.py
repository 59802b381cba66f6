"""The messages in English and Chinese, and how a container chooses the language."""

from __future__ import annotations

import ast
import io
import json
import re
import unicodedata
from collections.abc import Iterator
from string import Formatter
from typing import Any

import pytest

from tests.fake_driver import fake_driver
from tests.inside import HOPPER, PACKAGE, Place, driver, image, machine, place
from tests.needs import needs_gcc
from workplace import checks, command, doctor, doctor_texts, greeting, helping, messages, report, start_texts
from workplace.driver import Gpu, ask
from workplace.machine import SMALL_SHM
from workplace.messages import TEXTS, language

__all__ = ["place"]

VOLTA = Gpu(name="Tesla V100", capability=(7, 0), memory=16 << 30)
# Keys of messages that the code composes from parts.
COMPOSED = re.compile(r"(state|about|setting|default|cuinit)\..+|problems\.[01]|help\..+")
# Options, variables and paths must be the same in both languages.
TYPED = re.compile(r"(?<!\w)--[a-z-]+|[A-Z_]{6,}|/[a-z]+/[a-z/_]+")


@pytest.fixture
def chinese() -> Iterator[None]:
    messages.use("zh")
    yield
    messages.use("en")


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def is_chinese(text: str) -> bool:
    return any(unicodedata.east_asian_width(letter) in "WF" for letter in text)


@pytest.mark.parametrize("key", TEXTS)
def test_both_languages_have_the_same_placeholders(key: str) -> None:
    english, chinese = TEXTS[key]

    assert placeholders(english) == placeholders(chinese)
    assert not is_chinese(english)
    assert is_chinese(chinese) or chinese in (english, "GPU")
    typed = sorted(TYPED.findall(chinese.replace("发布的端口", "PUBLISHED_PORT")))
    assert sorted(TYPED.findall(english)) == typed


def test_no_text_is_defined_twice() -> None:
    assert doctor_texts.TEXTS.keys() & start_texts.TEXTS.keys() == set()


def calls() -> Iterator[tuple[str, set[str]]]:
    """The key of each `message(...)` in the package, and the names of the values that the call gives."""
    for module in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "message":
                names = {keyword.arg or "" for keyword in node.keywords}
                for part in ast.walk(node.args[0]):
                    if isinstance(part, ast.Constant) and part.value in TEXTS:
                        yield part.value, names


def test_every_text_gets_its_values() -> None:
    """If a value were missing, printing the message would give a traceback."""
    assert [(key, names) for key, names in calls() if not placeholders(TEXTS[key][0]) <= names] == []


def test_every_text_is_used() -> None:
    source = "".join(path.read_text() for path in PACKAGE.glob("*.py") if "texts" not in path.name)

    assert [key for key in TEXTS if f'"{key}"' not in source and not COMPOSED.fullmatch(key)] == []


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "en"),
        ({"LANG": "C.UTF-8"}, "en"),
        ({"LANG": "C"}, "en"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.utf8"}, "zh"),
        ({"LANG": "zh_TW.UTF-8"}, "zh"),
        ({"LANG": "zh_CN"}, "zh"),
        ({"LANG": "zh"}, "zh"),
        ({"LANG": "zh_CN.GB18030"}, "en"),
        ({"LANG": "zh_CN.UTF-8@pinyin"}, "zh"),
        ({"LANG": "C.UTF-8", "LC_MESSAGES": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "C.UTF-8"}, "en"),
        ({"LANG": "C.UTF-8", "LC_MESSAGES": "C", "LC_ALL": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": ""}, "zh"),
    ],
)
def test_the_locale_decides(environ: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in gettext, LC_ALL comes before LC_MESSAGES and LANG. Without UTF-8, messages are in English."""
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), "utf-8"))

    assert language(environ) == expected


def test_output_in_another_encoding_is_english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))

    assert language({"LANG": "zh_CN.UTF-8"}) == "en"


def in_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    for name in ("LC_ALL", "LC_MESSAGES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(messages, "_used", 0)  # restored afterwards


@needs_gcc
def test_the_doctor_in_chinese(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words, columns and the number of problems are right. The JSON output is the same in both languages."""
    in_chinese(monkeypatch)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver()))
    monkeypatch.setenv("FAKE_DRIVER", "470.57.02")

    assert command.main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("正常     镜像       2.7.1-cuda12.1-cudnn9-runtime：torch 2.7.1+cu126")
    assert lines[1] == "问题     驱动       470.57.02，最高支持 CUDA 13.0；此镜像需要 525.60.13 或更新的驱动"
    assert lines[2] == " " * 20 + "升级主机驱动，或换用 CUDA 版本更低的镜像"
    assert lines[-1] == "1 个问题"

    assert command.main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not is_chinese(json.dumps(found, ensure_ascii=False))
    assert found["lines"][1]["about"] == "driver"
    assert "this image needs driver 525.60.13" in found["lines"][1]["found"]


TROUBLES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {}, {}),
    "cut": ({"gpus": ("9.0",), "tag": "2.7.1-cuda12.1-cudnn9-runtime-sm90"}, {"gpus": (VOLTA, HOPPER)}, {}),
    "another torch": ({}, {"gpus": (VOLTA,)}, {}),
    "old driver": ({}, {"version": "470.57.02"}, {}),
    "no GPU": ({}, {"gpus": (), "links": ("NVLINK",)}, {}),
    "machine": ({}, {}, {"shm": SMALL_SHM, "closed": ("/root",), "limited": True, "writable": ()}),
}


@pytest.mark.usefixtures("chinese", "place")
@pytest.mark.parametrize("trouble", TROUBLES)
def test_every_line_is_chinese(trouble: str) -> None:
    """Lines of the doctor and of the start are tested, except for lines of values only, as "8.0 GiB"."""
    in_image, in_driver, in_machine = TROUBLES[trouble]
    found = (image(**in_image), driver(**in_driver), machine(**in_machine))
    lines = [*report.facts(*found[1:]), *report.warnings(*found)]
    for line in checks.run_all(*found):
        lines += [line.remedy] if line.remedy else []
        lines += [line.found] if line.about not in ("/dev/shm", "cuDNN", "compiler") or line.remedy else []

    assert [line for line in lines if not is_chinese(line)] == []
    assert [line for line in lines if re.search(r"\b(is|has|to|the|of|and|for|or|no|not)\b", line)] == []


@needs_gcc
@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize("init", ["100", "101", "222", "802", "803", "804", "999", "3", "crash", "exit1"])
def test_faults_of_the_driver_are_chinese(init: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver()))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("FAKE_INIT", init)
    found = ask()

    assert is_chinese(found.fault)
    assert is_chinese(found.remedy)


@pytest.mark.usefixtures("chinese")
def test_help_in_chinese() -> None:
    """Each setting has a line. Columns are aligned by the displayed width of characters."""
    text = helping.text(image())
    table = text.partition("设置（-e NAME=VALUE）：\n")[2].partition("\n\n")[0].splitlines()
    width = [sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in line) for line in text.splitlines()]

    assert text.startswith("2.7.1-cuda12.1-cudnn9-runtime：PyTorch 2.7.1+cu126，适用于 525.60.13")
    assert "  JUPYTER_TOKEN                 登录令牌，至少 16 个字符 [自动生成]" in table
    assert max(width) <= helping.WIDTH + 10
    assert [line for line in table if not is_chinese(line)] == []
    assert "启动：" in text
    assert "端口     8888 JupyterLab" in text


@pytest.mark.usefixtures("chinese")
def test_a_shell_starts_in_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting, "ask", lambda _limit: driver())
    first, gpus, *_, last = greeting.text(image()).splitlines()

    assert first.startswith("PyTorch 2.7.1+cu126，CUDA 12.1（以 12.6 构建）")
    assert gpus == "GPU：NVIDIA H100，驱动 580.159.04（CUDA 13.0）"
    assert last.startswith("更多信息")


def test_invalid_settings_in_chinese(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_chinese(monkeypatch)
    monkeypatch.setenv("SSH", "perhaps")

    assert command.main(["services"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "torchkiln: SSH='perhaps'：必须是 yes 或 no",
        "torchkiln: 没有启动任何程序；`docker run IMAGE help` 列出所有设置",
    ]


def test_doctor_is_formatted_by_the_width_of_characters() -> None:
    assert (doctor._padded("ok", 8), doctor._padded("正常", 8)) == ("ok      ", "正常    ")
