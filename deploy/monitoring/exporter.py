#!/usr/bin/env python3
"""Serves the use, memory, power and temperature of this machine's NVIDIA GPUs for Prometheus, by NVML.

Needs Python 3.8 and the driver, no packages. Without a GPU it prints the reason to stderr, and
`torchkiln_nvml_up` is 0. A value that a GPU does not have, such as the use of a MIG instance, is left out.
"""

import argparse
import ctypes
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LIBRARY = "libnvidia-ml.so.1"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TEXT = 96  # bytes; longer than any text of NVML
# Name, help; each is a gauge.
METRICS = {
    "torchkiln_nvml_up": "1 if the driver answers",
    "torchkiln_gpus": "GPUs of this machine, or of this container",
    "torchkiln_gpu_info": "name, UUID and driver of a GPU; always 1",
    "torchkiln_gpu_utilization_ratio": "part of the last sample in which a kernel ran",
    "torchkiln_gpu_memory_total_bytes": "memory of the GPU",
    "torchkiln_gpu_memory_used_bytes": "memory in use, with that of the driver",
    "torchkiln_gpu_power_watts": "power now",
    "torchkiln_gpu_power_limit_watts": "power limit in force",
    "torchkiln_gpu_temperature_celsius": "temperature of the chip",
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
        """Call a function.

        :raises NoAnswer: it fails, or this driver does not have it.
        """
        try:
            code = getattr(self._library, name)(*arguments)
        except AttributeError:
            raise NoAnswer(f"{name}: not in this driver") from None
        if code:
            raise NoAnswer(f"{name} returned {code}")

    def value(self, name, kind, *arguments):
        """What a function writes to its last argument; None if it fails."""
        result = kind()
        try:
            self.call(name, *arguments, ctypes.byref(result))
        except NoAnswer:
            return None
        return result

    def text(self, name, *arguments):
        """The text that a function writes; empty if it fails."""
        buffer = ctypes.create_string_buffer(_TEXT)
        try:
            self.call(name, *arguments, buffer, ctypes.c_uint(_TEXT))
        except NoAnswer:
            return ""
        return buffer.value.decode("utf-8", "replace")


def samples(nvml):
    """The samples of all GPUs: name of the metric, labels, value.

    :raises NoAnswer: the driver does not answer any more.
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
    """Samples in Prometheus' text format, sorted by metric."""
    lines = []
    for metric, meaning in METRICS.items():
        values = [(labels, value) for name, labels, value in found if name == metric]
        if values:
            lines += [f"# HELP {metric} {meaning}", f"# TYPE {metric} gauge"]
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


class Source:
    """Reads the GPUs; loads the driver's library again after it failed. One thread at a time."""

    def __init__(self, say):
        self._nvml, self._say, self._fault, self._lock = None, say, None, threading.Lock()

    def read(self):
        """The page of this moment."""
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
            return page(found)


def handler(source):
    """A handler of HTTP requests that serves /metrics."""

    class Handler(BaseHTTPRequestHandler):
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
    parser.add_argument("--address", default="127.0.0.1", help="0.0.0.0: all (default: %(default)s)")
    parser.add_argument("--port", type=int, default=9400, help="default: %(default)s")
    parser.add_argument("--once", action="store_true", help="print the page instead of serving it")
    options = parser.parse_args()
    source = Source(lambda text: print(f"exporter: {text}", file=sys.stderr, flush=True))
    if options.once:
        sys.stdout.write(source.read())
        return
    try:
        server = ThreadingHTTPServer((options.address, options.port), handler(source))
    except (OSError, OverflowError) as error:
        parser.error(f"cannot listen on {options.address}:{options.port}: {error}")
    source.read()  # reports at once if there is no GPU
    address, port = server.server_address[:2]
    print(f"exporter: http://{address}:{port}/metrics", file=sys.stderr, flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
