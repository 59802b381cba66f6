"""deploy/monitoring: the exporter with a fake driver, and Debian's Prometheus that scrapes it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.deploy_page import PAGE, blocks
from tests.engine.registry import free_port
from tests.engine.root import NoEngine, home, made
from tests.fake_driver import fake_driver
from tests.needs import give_up, needs_gcc, without_gpus
from tests.programs import run_program
from torchkiln.util.places import ROOT

KIT = ROOT / "deploy/monitoring"
EXPORTER = [sys.executable, "-I", "-W", "error", str(KIT / "exporter.py")]
_TIMEOUT, _LOOK = 300.0, 0.2  # seconds


def environ(**values: str) -> dict[str, str]:
    """An environment with the fake driver and its results."""
    return {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(fake_driver()), **values}


def once(env: dict[str, str]) -> tuple[dict[str, str], str]:
    """The samples of `exporter.py --once` by name and labels, and its messages."""
    done = run_program([*EXPORTER, "--once"], env=env, check=True)
    lines = [line.rpartition(" ") for line in done.stdout.splitlines() if not line.startswith("#")]
    return {name: value for name, _, value in lines}, done.stderr


@without_gpus
def test_without_a_driver_it_says_so() -> None:
    samples, messages = once({"PATH": "/bin"})

    assert samples == {"torchkiln_nvml_up": "0", "torchkiln_gpus": "0"}
    assert re.fullmatch(r"exporter: no NVIDIA driver: libnvidia-ml\.so\.1: .*\n", messages)


@needs_gcc
def test_every_value_of_two_gpus() -> None:
    samples, messages = once(environ(FAKE_GPUS="2", FAKE_FREE_MIB="1024", FAKE_NAME='a "b"\\c'))
    name = '"a \\"b\\"\\\\c"'

    assert messages == ""
    assert samples == {
        "torchkiln_nvml_up": "1",
        "torchkiln_gpus": "2",
        f'torchkiln_gpu_info{{gpu="0",name={name},uuid="GPU-0",driver="580.159.04"}}': "1",
        f'torchkiln_gpu_info{{gpu="1",name={name},uuid="GPU-1",driver="580.159.04"}}': "1",
        'torchkiln_gpu_utilization_ratio{gpu="0"}': "0.75",
        'torchkiln_gpu_utilization_ratio{gpu="1"}': "0.75",
        'torchkiln_gpu_memory_total_bytes{gpu="0"}': str(81920 << 20),
        'torchkiln_gpu_memory_total_bytes{gpu="1"}': str(81920 << 20),
        'torchkiln_gpu_memory_used_bytes{gpu="0"}': str(1920 << 20),
        'torchkiln_gpu_memory_used_bytes{gpu="1"}': str((81920 - 1024) << 20),
        'torchkiln_gpu_power_watts{gpu="0"}': "312.5",
        'torchkiln_gpu_power_watts{gpu="1"}': "312.5",
        'torchkiln_gpu_power_limit_watts{gpu="0"}': "700.0",
        'torchkiln_gpu_power_limit_watts{gpu="1"}': "700.0",
        'torchkiln_gpu_temperature_celsius{gpu="0"}': "60",
        'torchkiln_gpu_temperature_celsius{gpu="1"}': "61",
    }


@needs_gcc
def test_a_value_that_a_gpu_does_not_have_is_left_out() -> None:
    """For example, a MIG instance has no utilization. 3 is NVML_ERROR_NOT_SUPPORTED."""
    samples, _ = once(environ(FAKE_USE="3"))

    assert 'torchkiln_gpu_power_watts{gpu="0"}' in samples
    assert not any(name.startswith("torchkiln_gpu_utilization") for name in samples)


@needs_gcc
@pytest.mark.parametrize(
    ("fault", "name"), [("FAKE_NVML", "nvmlInit_v2"), ("FAKE_COUNT", "nvmlDeviceGetCount_v2")]
)
def test_a_driver_that_fails_is_named(fault: str, name: str) -> None:
    samples, messages = once(environ(**{fault: "9"}))

    assert samples == {"torchkiln_nvml_up": "0", "torchkiln_gpus": "0"}
    assert messages == f"exporter: {name} returned 9\n"


STEP = "step {:5}  loss 8.5000  scale 65536  16.80 GiB  423 samples/s\n"
WARNING = "host:1:2 [0] NCCL WARN socketProgress: Connection closed\n"


def of_logs(address: str) -> dict[str, str]:
    """The values of the logs by metric."""
    text = fetched(f"http://{address}/metrics").decode()
    return dict(re.findall(r"^torchkiln_(training_\w+|nccl_\w+)\{log=.*\} (\S+)$", text, re.MULTILINE))


def test_the_log_of_a_training_run(tmp_path: Path) -> None:
    """At first the log is missing, then its last line is incomplete, then another run's log replaces it."""
    log = tmp_path / "log"
    with serving({"PATH": "/bin"}, "--log", str(log)) as address:
        assert of_logs(address) == {}
        log.write_text(f"loading\n{STEP.format(10)}{WARNING}{STEP.format(20)[:15]}")
        os.utime(log, (time.time() - 4000,) * 2)
        found = of_logs(address)
        with log.open("a") as file:
            file.write(STEP.format(20)[15:] + WARNING)
        later = of_logs(address)
        (tmp_path / "next").write_text("loading\n")
        (tmp_path / "next").replace(log)
        replaced = of_logs(address)

    # A hung or killed run leaves its last line; a running one is younger.
    ages = [float(each.pop("training_step_age_seconds")) for each in (found, later)]
    assert ages[0] > 3600 > 60 > ages[1]
    assert found == {
        "training_step": "10.0",
        "training_loss": "8.5",
        "training_loss_scale": "65536.0",
        "training_samples_per_second": "423.0",
        "nccl_warnings_total": "1",
    }
    assert later == {**found, "training_step": "20.0", "nccl_warnings_total": "2"}
    assert replaced == {"nccl_warnings_total": "2"}


def test_a_hung_run_and_a_killed_one_differ(tmp_path: Path) -> None:
    """Both stop at a step; only the killed one has no process that writes the log. Readers do not count."""
    log = tmp_path / "log"

    def writers() -> list[str]:
        page = fetched(f"http://{address}/metrics").decode()
        assert f'torchkiln_training_step{{log="{log}"}} 10.0\n' in page
        return re.findall(r"^torchkiln_log_writers\{.*\} (\d+)$", page, re.MULTILINE)

    with serving({"PATH": "/bin"}, "--log", str(log)) as address:
        log.write_text(STEP.format(10))
        with (tmp_path / "other").open("w"), log.open():
            assert writers() == ["0"]
        hung = "print('started', flush=True); input()"
        with (
            log.open("a") as file,
            subprocess.Popen([sys.executable, "-c", hung], stdin=subprocess.PIPE, stdout=file) as process,
        ):
            file.close()
            assert writers() == ["1"]
            process.kill()
            process.wait()
            assert writers() == ["0"]


@pytest.mark.parametrize(
    "line",
    [
        b"step 5  loss eight  scale 1  423 samples/s",
        b"step 5  loss 8.5  scale 1  423 samples/s, more",
        b"x" * (1 << 17) + b" step 5  loss 8.5  scale 1  423 samples/s",
        b"step " + b"9" * 40 + b"  loss 8.5  scale 1  423 samples/s",
        b"\xff\x00",
    ],
)
def test_other_lines_are_ignored(tmp_path: Path, line: bytes) -> None:
    log = tmp_path / "log"
    log.write_bytes(line + b"\n")
    done = run_program([*EXPORTER, "--once", "--log", str(log)], check=True)

    assert f'torchkiln_nccl_warnings_total{{log="{log}"}} 0\n' in done.stdout
    assert "torchkiln_training" not in done.stdout


def test_long_lines_take_little_time(tmp_path: Path) -> None:
    """Who writes the log may be another user, and the exporter serves no page while it reads."""
    log = tmp_path / "log"
    log.write_bytes((b"step 1  loss 1  scale 1  " * 2600 + b"\n") * 100 + STEP.format(10).encode())
    done = run_program([*EXPORTER, "--once", "--log", str(log)], check=True, timeout=30)
    assert f'torchkiln_training_step{{log="{log}"}} 10.0\n' in done.stdout


def test_a_folder_is_no_log(tmp_path: Path) -> None:
    done = run_program([*EXPORTER, "--once", "--log", str(tmp_path)], check=True)

    assert "log=" not in done.stdout


@contextmanager
def serving(env: dict[str, str], *words: str) -> Iterator[str]:
    """The address of a running exporter."""
    argv = [*EXPORTER, "--port", "0", *words]
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stderr or ():
                if found := re.search(r"http://(\S+)/metrics", line):
                    yield found[1]
                    return
            raise AssertionError("it ended")
        finally:
            process.kill()


def fetched(url: str) -> bytes:
    """GET it without a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=300) as answer:
        return bytes(answer.read())


@needs_gcc
def test_only_its_page_is_served() -> None:
    with serving(environ()) as address:
        assert b'torchkiln_gpu_power_watts{gpu="0"} 312.5\n' in fetched(f"http://{address}/metrics?a=b")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetched(f"http://{address}/")


def test_a_port_that_is_taken_is_named() -> None:
    with serving({"PATH": "/bin"}) as address:
        argv = [*EXPORTER, "--port", address.rpartition(":")[2]]
        done = run_program(argv)

    assert done.returncode == 2
    assert f"error: cannot listen on {address}: " in done.stderr


# --- Prometheus ------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder with Debian's prometheus and promtool (20 MB to download)."""
    try:
        found = made(home() / "prometheus", "bookworm", ["prometheus"], "--variant=extract") / "usr/bin"
    except NoEngine as error:
        give_up(str(error))
    if subprocess.run([found / "promtool", "--version"], capture_output=True).returncode:
        give_up("Debian's prometheus does not run on this host")
    return found


@pytest.mark.network  # downloads Prometheus if it is not installed
@pytest.mark.proof
@needs_gcc
@pytest.mark.parametrize("env", [{}, {"FAKE_GPUS": "2"}], ids=["none", "two"])
def test_promtool_accepts_the_page(programs: Path, env: dict[str, str]) -> None:
    settings = environ(**env) if env else {"PATH": "/bin"}
    text = subprocess.run([*EXPORTER, "--once"], env=settings, capture_output=True, check=True).stdout
    done = subprocess.run(
        [programs / "promtool", "check", "metrics"], input=text, capture_output=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.network  # as above
@pytest.mark.proof
def test_the_pages_commands(programs: Path) -> None:
    """The commands work, and the page names exactly the exporter's metrics."""
    script, _ = blocks("Prometheus")
    env = {"PATH": f"{programs}:{os.environ['PATH']}"}
    argv = ["sh", "-euc", script]
    done = run_program(argv, cwd=ROOT, env=env)
    source = (KIT / "exporter.py").read_text()
    metrics = set(re.findall(r'^    "(torchkiln_\w+)":', source, re.MULTILINE)) - {"torchkiln_gpus"}

    assert done.returncode == 0, done.stderr
    assert "torchkiln_nvml_up" in done.stdout
    assert "SUCCESS" in done.stdout
    assert set(re.findall(r"torchkiln_\w+", PAGE.read_text())) == metrics


@pytest.mark.network  # as above
@pytest.mark.proof
@needs_gcc
def test_prometheus_scrapes_it(programs: Path, tmp_path: Path) -> None:
    """With the kit's configuration (but another port and interval), and with all queries of the dashboard."""
    check = [programs / "promtool", "check", "config", KIT / "prometheus.yml"]
    assert subprocess.run(check, capture_output=True).returncode == 0
    own = f"127.0.0.1:{free_port()}"
    (tmp_path / "training").write_text(STEP.format(10) + WARNING)
    with serving(environ(FAKE_GPUS="2"), "--log", str(tmp_path / "training")) as address:
        text = (KIT / "prometheus.yml").read_text()
        changed = text.replace("127.0.0.1:9400", address).replace("15s", "1s")
        (tmp_path / "prometheus.yml").write_text(changed)
        argv = [str(programs / "prometheus"), f"--config.file={tmp_path / 'prometheus.yml'}"]
        argv += [f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address={own}"]
        with (tmp_path / "log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
            try:
                found = answers(own, "torchkiln_gpu_temperature_celsius", process)
                shown = {query: len(answers(own, query, process)) for query in queries()}
            finally:
                process.terminate()

    assert found == {"0": "60", "1": "61"}
    of_each = {query: 2 if query.startswith("torchkiln_gpu_") else 1 for query in queries()}
    assert shown == of_each


def test_the_example_of_the_manifests_prints_what_the_exporter_reads(tmp_path: Path) -> None:
    """The line of deploy/train/train.py, with values in place of its expressions."""
    [line] = re.findall(r'f"(step .*samples/s)"', (ROOT / "deploy/train/train.py").read_text())
    log = tmp_path / "log"
    log.write_text(re.sub(r"\{[^}]*\}", "7", line) + "\n")
    done = subprocess.run(
        [*EXPORTER, "--once", "--log", str(log)], capture_output=True, text=True, check=True
    )
    assert f'torchkiln_training_step{{log="{log}"}} 7.0\n' in done.stdout


def test_the_restarts_of_the_job_are_those_of_the_page() -> None:
    """`backoffLimit` counts failed pods, and one failure fails all of them."""
    job = yaml.safe_load((ROOT / "deploy/kubernetes/nodes/job.yaml").read_text())["spec"]
    assert job["backoffLimit"] == 4 * job["completions"] == 4 * job["parallelism"] == 8
    assert (
        "8 allows four restarts of two nodes; for N nodes write 4·N" in (ROOT / "docs/deploy.md").read_text()
    )


def queries() -> list[str]:
    """The queries of the kit's dashboard."""
    dashboard = json.loads((KIT / "dashboard.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def answers(own: str, query: str, process: subprocess.Popen[bytes]) -> dict[str, str]:
    """Wait until Prometheus has values for *query*; returns them by GPU, by log or by machine."""
    end = time.monotonic() + _TIMEOUT
    while time.monotonic() < end and process.poll() is None:
        try:
            address = f"http://{own}/api/v1/query?query={urllib.parse.quote(query)}"
            result = json.loads(fetched(address))["data"]["result"]
        except OSError:  # Prometheus is still starting
            result = []
        if result:
            return {
                next(labels[name] for name in ("gpu", "log", "instance") if name in labels): value
                for labels, (_, value) in ((sample["metric"], sample["value"]) for sample in result)
            }
        time.sleep(_LOOK)
    raise AssertionError(f"Prometheus has no {query}")
