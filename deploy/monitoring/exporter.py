#!/usr/bin/env python3
"""Serves the use, memory, power and temperature of this machine's NVIDIA GPUs for Prometheus, by NVML.

Needs Python 3.8 or newer and the driver, no packages. Without a driver it prints the reason to stderr, and
`torchkiln_nvml_up` is 0. A value that a GPU does not report, such as the use of a MIG instance, is left out.
With `--log FILE` it also serves the speed and loss in the output of a training run, and NCCL's warnings.
"""

import argparse
import contextlib
import ctypes
import glob
import os
import re
import stat
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LIBRARY = "libnvidia-ml.so.1"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TEXT = 96  # bytes; longer than any string that NVML returns
_MOST = 16 << 20  # bytes that are read from a log at a time
_LINE = 1 << 16  # bytes; the recipes print no longer line
# What the recipes print (/opt/torchkiln/examples/recipes/watch.py), and NCCL with NCCL_DEBUG=WARN.
_STEP = re.compile(
    rb"\bstep +(?P<step>\d{1,12})  loss (?P<loss>\S{1,24})  scale (?P<loss_scale>\S{1,24})  "
    rb".*?(?P<samples_per_second>\d{1,12}) samples/s\s*$"
)
_WARNING = re.compile(rb"\bNCCL WARN\b")
# Name and help of each metric. A name that ends with _total is a counter, any other a gauge.
METRICS = {
    "torchkiln_nvml_up": "1 if the driver answers",
    "torchkiln_gpus": "GPUs of this machine, or of this container",
    "torchkiln_gpu_info": "name, UUID and driver of a GPU; always 1",
    "torchkiln_gpu_utilization_ratio": "fraction of the last sample period in which a kernel ran",
    "torchkiln_gpu_memory_total_bytes": "memory of the GPU",
    "torchkiln_gpu_memory_used_bytes": "memory in use, including the driver's",
    "torchkiln_gpu_power_watts": "current power draw",
    "torchkiln_gpu_power_limit_watts": "power limit in force",
    "torchkiln_gpu_temperature_celsius": "temperature of the GPU chip",
    "torchkiln_training_step": "last step in the log",
    "torchkiln_training_step_age_seconds": "time since this step was written; grows if the run hangs or died",
    "torchkiln_training_loss": "loss of this step",
    "torchkiln_training_loss_scale": "loss scale of the gradient scaler at this step; 1 without a scaler",
    "torchkiln_training_samples_per_second": "samples per second of all processes",
    "torchkiln_log_writers": "processes that have the log open for writing; 0 if the run ended or was killed",
    "torchkiln_nccl_warnings_total": "NCCL's warnings and errors in the log",
}


class Memory(ctypes.Structure):
    """nvmlMemory_t, bytes."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Utilization(ctypes.Structure):
    """nvmlUtilization_t, percent."""

    _fields_ = [(name, ctypes.c_uint) for name in ("gpu", "memory")]


class NoAnswer(Exception):
    """Why NVML does not answer."""


class Nvml:
    """The driver's management library, initialised."""

    def __init__(self):
        """:raises NoAnswer: there is no driver, or it does not answer."""
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise NoAnswer(f"no NVIDIA driver: {error}") from None
        self.call("nvmlInit_v2")

    def call(self, name, *arguments):
        """Call the NVML function *name*.

        :raises NoAnswer: the function fails, or this driver does not have it.
        """
        try:
            code = getattr(self._library, name)(*arguments)
        except AttributeError:
            raise NoAnswer(f"{name}: not in this driver") from None
        if code:
            raise NoAnswer(f"{name} returned {code}")

    def value(self, name, kind, *arguments):
        """The *kind* that the NVML function *name* writes to its last argument; None if the call fails."""
        result = kind()
        try:
            self.call(name, *arguments, ctypes.byref(result))
        except NoAnswer:
            return None
        return result

    def text(self, name, *arguments):
        """The string that the NVML function *name* writes; empty if the call fails."""
        buffer = ctypes.create_string_buffer(_TEXT)
        try:
            self.call(name, *arguments, buffer, ctypes.c_uint(_TEXT))
        except NoAnswer:
            return ""
        return buffer.value.decode("utf-8", "replace")


def samples(nvml):
    """The samples of all GPUs: name of the metric, labels, value.

    :raises NoAnswer: the driver no longer answers.
    """
    count = ctypes.c_uint()
    nvml.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
    yield "torchkiln_nvml_up", {}, 1
    yield "torchkiln_gpus", {}, count.value
    driver = nvml.text("nvmlSystemGetDriverVersion")
    for number in range(count.value):
        gpu = nvml.value("nvmlDeviceGetHandleByIndex_v2", ctypes.c_void_p, ctypes.c_uint(number))
        if gpu is not None:
            yield from _of_gpu(nvml, gpu, {"gpu": str(number)}, driver)


def _of_gpu(nvml, gpu, labels, driver):
    name, uuid = nvml.text("nvmlDeviceGetName", gpu), nvml.text("nvmlDeviceGetUUID", gpu)
    yield "torchkiln_gpu_info", {**labels, "name": name, "uuid": uuid, "driver": driver}, 1
    if use := nvml.value("nvmlDeviceGetUtilizationRates", Utilization, gpu):
        yield "torchkiln_gpu_utilization_ratio", labels, use.gpu / 100
    if memory := nvml.value("nvmlDeviceGetMemoryInfo", Memory, gpu):
        yield "torchkiln_gpu_memory_total_bytes", labels, memory.total
        yield "torchkiln_gpu_memory_used_bytes", labels, memory.used
    if power := nvml.value("nvmlDeviceGetPowerUsage", ctypes.c_uint, gpu):
        yield "torchkiln_gpu_power_watts", labels, power.value / 1000
    if limit := nvml.value("nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint, gpu):
        yield "torchkiln_gpu_power_limit_watts", labels, limit.value / 1000
    # 0: NVML_TEMPERATURE_GPU
    if degrees := nvml.value("nvmlDeviceGetTemperature", ctypes.c_uint, gpu, ctypes.c_uint(0)):
        yield "torchkiln_gpu_temperature_celsius", labels, degrees.value


def page(found):
    """The samples *found* in Prometheus' text format, in the order of METRICS."""
    lines = []
    for metric, meaning in METRICS.items():
        values = [(labels, value) for name, labels, value in found if name == metric]
        if values:
            kind = "counter" if metric.endswith("_total") else "gauge"
            lines += [f"# HELP {metric} {meaning}", f"# TYPE {metric} {kind}"]
            lines += [f"{metric}{_labels(labels)} {value}" for labels, value in values]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels):
    if not labels:
        return ""
    escaped = {
        name: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"


class TrainingLog:
    """The output of a training run in a file, which may be missing, grow, or be replaced."""

    def __init__(self, path):
        self.path, self._file, self._rest = path, None, b""
        self._last, self._warnings, self._written, self._changed = {}, 0, 0.0, 0.0

    def samples(self):
        """Read the new lines; the samples of the last step, and the number of warnings since the start."""
        for line in self._added():
            self._warnings += bool(_WARNING.search(line))
            if step := _step(line):
                self._last, self._written = step, self._changed
        age = (
            {"torchkiln_training_step_age_seconds": max(0.0, time.time() - self._written)}
            if self._last
            else {}
        )
        found = {**self._last, **age, "torchkiln_nccl_warnings_total": self._warnings}
        if self._file:
            found["torchkiln_log_writers"] = _writers(self.path, os.fstat(self._file.fileno()))
        return [(name, {"log": self.path}, value) for name, value in found.items()] if self._file else []

    def _added(self):
        """The complete lines that were added since the last call."""
        try:
            now = os.stat(self.path)
            self._changed = now.st_mtime
            if self._file and (
                not os.path.samestat(now, os.fstat(self._file.fileno())) or self._shorter(now)
            ):
                self._close()
            if not self._file and stat.S_ISREG(now.st_mode):
                descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe may have replaced it
                self._file = open(descriptor, "rb")  # noqa: SIM115 - open until the file is replaced
            data = self._rest + self._file.read(_MOST) if self._file else b""
        except OSError:
            self._close()
            return []
        *lines, rest = data.split(b"\n")
        self._rest = rest[-_LINE:]
        return [line for line in lines if len(line) <= _LINE]

    def _shorter(self, now):
        return now.st_size < self._file.tell()

    def _close(self):
        if self._file:
            self._file.close()
        self._file, self._rest, self._last = None, b"", {}


def _writers(path, log):
    """The number of visible processes that have *log*, the file at *path*, open for writing."""
    found = set()
    for place in glob.iglob("/proc/[0-9]*/fd/*"):
        with contextlib.suppress(OSError, ValueError):  # it ended, or belongs to another user
            # Names first: stat waits for a file of a server that does not answer.
            same = os.path.basename(os.readlink(place)) == os.path.basename(path)
            if same and os.path.samestat(os.stat(place), log):
                with open(place.replace("/fd/", "/fdinfo/")) as file:
                    flags = re.search(r"^flags:\s*(\d+)", file.read(), re.M)
                if flags and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY:
                    found.add(place.split("/")[2])
    return len(found)


def _step(line):
    """The values in a line that the recipes print; empty for any other line."""
    found = _STEP.match(line, max(line.rfind(b"step "), 0))  # once: a search tries each "step" of a long line
    if not found:
        return {}
    try:
        return {f"torchkiln_training_{name}": float(text) for name, text in found.groupdict().items()}
    except ValueError:
        return {}


class Source:
    """Reads the GPUs and logs, one thread at a time. After a failure it loads the driver's library again."""

    def __init__(self, say, logs=()):
        self._nvml, self._say, self._fault, self._lock = None, say, None, threading.Lock()
        self._logs = [TrainingLog(path) for path in logs]

    def read(self):
        """The page with the current values."""
        with self._lock:
            try:
                self._nvml = self._nvml or Nvml()
                found, fault = list(samples(self._nvml)), None
            except NoAnswer as error:
                self._nvml, fault = None, str(error)
                found = [("torchkiln_nvml_up", {}, 0), ("torchkiln_gpus", {}, 0)]
            if fault and fault != self._fault:
                self._say(fault)
            self._fault = fault
            for log in self._logs:
                found += log.samples()
            return page(found)


def handler(source):
    """A handler of HTTP requests that serves /metrics."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 60  # seconds in which a client must send its request

        def do_GET(self):
            found = self.path.split("?")[0] == "/metrics"
            body = (source.read() if found else "see /metrics\n").encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE if found else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments):
            """Log no requests."""

    return Handler


def main():
    """Serve until stopped, or print one page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--address",
        default="127.0.0.1",
        help="address to listen on; 0.0.0.0 for all interfaces (default: %(default)s)",
    )
    parser.add_argument("--port", type=int, default=9400, help="port to listen on (default: %(default)s)")
    parser.add_argument(
        "--log", action="append", default=[], metavar="FILE", help="output of a training run; repeatable"
    )
    parser.add_argument("--once", action="store_true", help="print the page instead of serving it")
    options = parser.parse_args()
    source = Source(lambda text: print(f"exporter: {text}", file=sys.stderr, flush=True), options.log)
    if options.once:
        sys.stdout.write(source.read())
        return
    try:
        server = ThreadingHTTPServer((options.address, options.port), handler(source))
    except (OSError, OverflowError) as error:
        parser.error(f"cannot listen on {options.address}:{options.port}: {error}")
    source.read()  # reports a missing driver at the start
    address, port = server.server_address[:2]
    print(f"exporter: http://{address}:{port}/metrics", file=sys.stderr, flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
