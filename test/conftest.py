"""One warm process for all suites: the engine is imported once, every test that
needs it runs in a forked child, so that a weave never outlives its test."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest


@pytest.fixture
def rogue_plugin(tmp_path):
    """Installs a plugin of that source, which loads before ours: its environment."""

    def install(source: str) -> dict[str, str]:
        (tmp_path / "rogue.py").write_text(source)
        dist = tmp_path / "rogue-1.0.dist-info"
        dist.mkdir()
        metadata = "Metadata-Version: 2.1\nName: rogue\nVersion: 1.0\n"
        (dist / "METADATA").write_text(metadata)
        entry = "[sglang.srt.plugins]\na_rogue = rogue:register\n"
        (dist / "entry_points.txt").write_text(entry)
        plugins = "a_rogue,mamba_boundary,cpu_testbed"
        return {"PYTHONPATH": str(tmp_path), "SGLANG_PLUGINS": plugins}

    return install


@pytest.fixture(scope="session")
def in_child():
    """Runs a function in a forked child of a process that has imported the engine."""
    from sglang_cpu_testbed.fork import fork, warm

    warm()
    import sglang.test.test_utils  # noqa: F401

    return fork
