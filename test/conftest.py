"""One warm process for all suites: the engine is imported once, every test that
needs it runs in a forked child, so that a weave never outlives its test."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest


@pytest.fixture(scope="session")
def in_child():
    """Runs a function in a forked child of a process that has imported the engine."""
    from sglang_cpu_testbed.fork import fork, warm

    warm()
    import sglang.test.test_utils  # noqa: F401

    return fork
