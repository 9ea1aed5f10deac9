"""Runs a case in a forked child of a warm process: imports are paid once, and
each case still gets its own engine, environment and session. Separate from the
engine because a failing scheduler may take its process down."""

import os
import pickle
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from sglang_cpu_testbed.engine import prepare_environment

TIMEOUT_S = 60.0
EXIT_S = 5.0
LOG_TAIL = 4000
HEADER = 8


class CaseFailed(RuntimeError):
    """The child raised, died or hung. ``reason`` is one of these words,
    ``detail`` its traceback or exit status, ``log`` the end of what it printed."""

    def __init__(self, reason: str, detail: str, log: str):
        self.reason, self.detail, self.log = reason, detail, log
        super().__init__(f"the case {reason}: {detail}\n--- log of the case\n{log}")


def warm() -> None:
    """Import the engine here, without loading plugins, so that children start fast."""
    prepare_environment()
    import sglang.srt.managers.scheduler  # noqa: F401
    import sglang.srt.model_executor.model_runner  # noqa: F401


def fork(
    case: Callable[..., Any],
    *args,
    env: Mapping[str, str | None] | None = None,
    timeout_s: float = TIMEOUT_S,
    **kwargs,
) -> Any:
    """``case(*args, **kwargs)`` in a forked child; returns its picklable result.

    ``env`` is set in the child before the case starts, None unsets a variable.
    Raises CaseFailed when the child raises, dies or takes over ``timeout_s``.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as log:
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            _child(write_end, log.fileno(), env or {}, lambda: case(*args, **kwargs))
        os.close(write_end)
        payload = None
        try:
            payload = _receive(read_end, time.monotonic() + timeout_s)
        finally:
            os.close(read_end)
            status = end(pid, 0.0 if payload is None else EXIT_S)
        if payload is None:
            raise CaseFailed("hung", f"no result in {timeout_s:g} s", _tail(log))
        if not payload:
            raise CaseFailed("died", f"exit status {status}", _tail(log))
        returned, value = pickle.loads(payload)
        if not returned:
            raise CaseFailed("raised", value, _tail(log))
        return value


def _child(write_end: int, log: int, env: Mapping, case: Callable[[], Any]) -> None:
    """Never returns: the parent's stack must not unwind a second time."""
    status = 1
    try:
        # A failing scheduler signals its process group.
        os.setsid()
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(log, number)
            # The parent's object may write elsewhere, as pytest's does.
            setattr(sys, name, open(number, "w", buffering=1, closefd=False))
        for name, value in env.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        _send(write_end, _outcome(case))
        status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _outcome(case: Callable[[], Any]) -> bytes:
    try:
        return pickle.dumps((True, case()))
    except BaseException:
        return pickle.dumps((False, traceback.format_exc()))


def _send(write_end: int, payload: bytes) -> None:
    with os.fdopen(write_end, "wb") as pipe:
        pipe.write(len(payload).to_bytes(HEADER, "little") + payload)


def _receive(read_end: int, deadline: float) -> bytes | None:
    """The child's payload, b"" when it ended without one, None at the deadline."""
    buffer = b""
    while True:
        # The length is sent first: a grandchild may keep the pipe open.
        wanted = HEADER + int.from_bytes(buffer[:HEADER], "little")
        if len(buffer) >= HEADER and len(buffer) >= wanted:
            return buffer[HEADER:wanted]
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([read_end], [], [], left)[0]:
            return None
        part = os.read(read_end, 1 << 16)
        if not part:
            return b""
        buffer += part


def end(pid: int, patience_s: float) -> int:
    """Let the child exit, kill what is left of its session; its exit status."""
    exited = os.pidfd_open(pid)
    select.select([exited], [], [], patience_s)
    os.close(exited)
    # Not reaped yet, so the number cannot name another process.
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
            break
        except ProcessLookupError:
            continue
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _tail(log) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - LOG_TAIL))
    return log.read().decode(errors="replace")
