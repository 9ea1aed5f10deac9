import pytest
import scratch


@pytest.fixture(scope="session")
def _sources(tmp_path_factory):
    tree = tmp_path_factory.mktemp("sources")
    return scratch.copy_sources(scratch.installed(), tree)


@pytest.fixture
def folder(_sources, tmp_path):
    """Sources in upstream's layout, without git; a test may edit them."""
    return scratch.copy_sources(_sources / "python", tmp_path / "sglang-checkout")


@pytest.fixture
def checkout(folder):
    """The same as a git repository with one commit."""
    return scratch.make_repository(folder)


@pytest.fixture
def wheel(_sources, tmp_path):
    """Sources as an unpacked wheel."""
    return scratch.copy_sources(_sources / "python", tmp_path / "wheel", prefix="")
