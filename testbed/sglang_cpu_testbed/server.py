"""SGLang's own HTTP server on the testbed, as a process of its own."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping

from sglang_cpu_testbed import PLATFORM
from sglang_cpu_testbed.engine import DEFAULTS

READY_S = 300
POLL_S = 0.5


class ServerFailed(RuntimeError):
    """The server ended or was not ready in time; the message holds its log's end."""


class Server:
    """A server that answers at ``url``; ``log()`` is all it has printed."""

    def __init__(self, url: str, process: subprocess.Popen, log):
        self.url, self.process, self._log = url, process, log

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return answer.read().decode()

    def post(self, path: str, **body):
        request = urllib.request.Request(
            self.url + path,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)


@contextlib.contextmanager
def serve(
    env: Mapping[str, str | None] | None = None, **server_args
) -> Iterator[Server]:
    """A ready server, ended with all its processes on leaving.

    ``env`` is set on top of this process's environment, None unsets. Raises
    ServerFailed.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = server_args.get("port") or probe.getsockname()[1]
    settings = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "SGLANG_PLATFORM": PLATFORM,
        "SGLANG_EXTERNAL_MODEL_PACKAGE": "sglang_cpu_testbed.models",
        **(env or {}),
    }
    command = [sys.executable, "-W", "ignore", "-m", "sglang.launch_server"]
    command += _flags(
        {**DEFAULTS, "log_level": "info", "host": "127.0.0.1", "port": port}
        | server_args
    )
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            env={k: v for k, v in settings.items() if v is not None},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        server = Server(f"http://127.0.0.1:{port}", process, log)
        try:
            _wait_until_ready(server)
            yield server
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _flags(server_args: Mapping) -> list[str]:
    flags = []
    for name, value in server_args.items():
        if value is False:
            continue
        flags.append(f"--{name.replace('_', '-')}")
        if value is not True:
            flags.append(str(value))
    return flags


def _wait_until_ready(server: Server) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise ServerFailed(
                f"the server ended with {server.process.returncode} before it was "
                f"ready\n{server.log()[-4000:]}"
            )
        try:
            server.get("/health_generate")
            return
        except OSError:
            # A server under start offers nothing to wait for but its port.
            time.sleep(POLL_S)
    raise ServerFailed(f"not ready in {READY_S} s\n{server.log()[-4000:]}")
