"""The registered boundary test as a rig, to see what a woven loop does."""

import importlib.util
from pathlib import Path

FILE = "registered/unit/managers/test_mamba_prefill_cache_boundary.py"


def load():
    """The module of the registered test; call it where the engine may be imported."""
    file = Path(__file__).parent.parent / FILE
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def first_decode_captures() -> str:
    """ "canonical" where the loop in place publishes before selection, else "private"."""
    rig = load()
    req = rig._Req("r")
    decode = rig._decode("d", req)
    rig._ScriptedScheduler([rig._prefill("p", req), decode, None]).run()
    return decode.captured["r"]
