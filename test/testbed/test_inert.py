"""An installed testbed does nothing in a process that does not select it."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from sglang_cpu_testbed.engine import prepare_environment

UNSELECTED = """
import sys
from sglang_cpu_testbed.plugin import register, select_platform
assert select_platform() is None
register()
assert not {"torch", "sglang", "transformers"} & set(sys.modules)
"""
ENGINE = """
import torch
pin = torch.Tensor.pin_memory
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.platforms import current_platform
from sglang.srt.configs.linear_attn_model_registry import get_linear_attn_spec_by_arch
from transformers import CONFIG_MAPPING
assert "testbed" not in type(current_platform).__module__.lower() + repr(current_platform)
assert torch.Tensor.pin_memory is pin
assert get_linear_attn_spec_by_arch("ReferenceForCausalLM") is None
assert "sglang_cpu_testbed_reference" not in CONFIG_MAPPING
"""


def run(code, platform):
    env = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_")}
    # Other plugins are not the subject here, and may import the whole engine.
    env["SGLANG_PLUGINS"] = "cpu_testbed"
    if platform is not None:
        env["SGLANG_PLATFORM"] = platform
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=90,
    )


@pytest.mark.parametrize("platform", [None, "", "another"])
def test_the_entry_points_do_nothing_unselected(platform):
    ran = run(UNSELECTED, platform)
    assert ran.returncode == 0, ran.stderr


def test_the_engine_s_own_loading_leaves_no_trace():
    ran = run(ENGINE, None)
    assert ran.returncode == 0, ran.stderr


def test_selected_it_names_the_platform():
    code = "from sglang_cpu_testbed.plugin import select_platform as s; print(s())"
    ran = run(code, "cpu_testbed")
    assert ran.stdout == "sglang_cpu_testbed.platform.CpuTestbedPlatform\n"


def test_it_refuses_a_process_that_settled_on_another_platform(monkeypatch):
    settled = SimpleNamespace(_current_platform=object())
    monkeypatch.setitem(sys.modules, "sglang.srt.platforms", settled)
    with pytest.raises(RuntimeError, match="has not imported SGLang yet"):
        prepare_environment()
