"""The servers the smoke starts: three configurations of the testbed, or of a real
model on a GPU, where the testbed has no part."""

from contextlib import AbstractContextManager

from sglang_cpu_testbed import SLOT_SWITCH
from sglang_cpu_testbed.scenarios import BOUNDARY_SWITCH, WOVEN, Configuration
from sglang_cpu_testbed.server import Server, serve

REQUIRED = "SGLANG_MAMBA_BOUNDARY_REQUIRED"
# What the judgement reads: counters, and in the log each request's arrival and end.
WATCHED = dict(
    skip_tokenizer_init=False,
    enable_metrics=True,
    enable_cache_report=True,
    log_requests=True,
    log_requests_level=0,
    log_requests_format="json",
    enable_request_time_stats_logging=True,
    # Every decode step sets the gauges, so that going idle sets them once more.
    decode_log_interval=1,
)
# The server's own checks, which end it: slots that are missing, freed twice or used
# after they were freed.
CHECKS = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
}
# Few slots for many clients, so that the load evicts.
TIGHT = dict(max_total_tokens=8192)
# A flag that is false is not given, so that a real model gets SGLang's default.
REAL = dict(
    load_format="auto",
    device="cuda",
    dtype="auto",
    page_size=False,
    max_total_tokens=False,
    max_mamba_cache_size=False,
    disable_cuda_graph=False,
)
NO_TESTBED = {"SGLANG_PLATFORM": None, "SGLANG_EXTERNAL_MODEL_PACKAGE": None}


def launch(
    configuration: Configuration,
    model: str | None = None,
    slots_matter: bool = False,
    **server_args,
) -> AbstractContextManager[Server]:
    """A server that will be ready; ``model`` is the path of a real one."""
    env = {
        **CHECKS,
        BOUNDARY_SWITCH: configuration.boundary,
        # A refused weave would compare the stock engine with itself.
        REQUIRED: "1" if configuration.boundary == WOVEN.boundary else None,
        SLOT_SWITCH: "1" if slots_matter else "0",
    }
    args = {**WATCHED, **TIGHT, **configuration.server_args, **server_args}
    if model is not None:
        env, args = {**env, **NO_TESTBED}, {**args, **REAL, "model_path": model}
    return serve(env=env, **args)
