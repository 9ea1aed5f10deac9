"""The registered boundary test as a rig, to see what a woven loop does."""

import importlib.util
from pathlib import Path

HERE = Path(__file__).parent.parent
FILE = "registered/unit/managers/test_mamba_prefill_cache_boundary.py"


def load(file=HERE / FILE):
    """The module of the registered test; call it where the engine may be imported."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def red_green():
    """The module that runs all registered tests."""
    return load(HERE / "red_green.py")


def first_decode_captures() -> str:
    """ "canonical" where the loop in place publishes before selection, else "private"."""
    rig = load()
    req = rig._Req("r")
    decode = rig._decode("d", req)
    rig._ScriptedScheduler([rig._prefill("p", req), decode, None]).run()
    return decode.captured["r"]
