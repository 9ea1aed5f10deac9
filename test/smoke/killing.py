"""Ends a server as an operator may have to."""

import signal

import psutil

from sglang_cpu_testbed.server import Server

END_S = 60


def kill(server: Server) -> list[psutil.Process]:
    """Kill the process an operator sees; those of its children that outlive it."""
    processes = psutil.Process(server.process.pid).children(recursive=True)
    # The scheduler and the detokenizer.
    assert len(processes) >= 2
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    return psutil.wait_procs(processes, timeout=END_S)[1]
