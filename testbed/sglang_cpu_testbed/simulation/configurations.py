"""The engines that histories are played on: ServerArgs, environment, traffic."""

import json
from dataclasses import dataclass, field, replace

from sglang_cpu_testbed.simulation.draw import Traffic

# A small model with a fine state grid: short prompts reach every boundary.
GRID = 16
MODEL = {"num_hidden_layers": 2, "mamba_chunk_size": GRID}
# SGLang's own checks after every turn, and whatever else is to be the same everywhere.
ENVIRONMENT = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
    # As on CUDA; the policy publish refuses a scheduler without it.
    "SGLANG_ENABLE_WAR_BARRIER": "1",
}
SERVER = dict(
    json_model_override_args=json.dumps(MODEL),
    max_total_tokens=2048,
    max_running_requests=8,
    max_mamba_cache_size=48,
    mamba_track_interval=GRID,
    log_level="error",
)


@dataclass(frozen=True)
class Configuration:
    """``waits_between_prefills``: the engine is told not to overlap them. ``shim``
    names a function of ``shims``. Where the device does not lag or slots are virtual,
    fewer oracles apply: see docs/simulation.md."""

    name: str
    server_args: dict = field(default_factory=dict)
    environment: dict = field(default_factory=dict)
    traffic: Traffic = Traffic(GRID)
    waits_between_prefills: bool = False
    shim: str | None = None
    lags: bool = True
    virtual_slots: bool = False

    @property
    def arguments(self) -> dict:
        return SERVER | self.server_args

    @property
    def variables(self) -> dict:
        return ENVIRONMENT | self.environment

    @property
    def without_overlap(self) -> "Configuration":
        """The same workload's reference. Lazy buffers need overlap: their reference
        keeps both buffers."""
        arguments = self.server_args | {"disable_overlap_schedule": True}
        if "lazy" in arguments.get("mamba_radix_cache_strategy", ""):
            arguments["mamba_radix_cache_strategy"] = "extra_buffer"
        return replace(self, server_args=arguments)

    def prepare(self) -> None:
        """What the process needs before an engine is built in it."""
        if self.shim is not None:
            from sglang_cpu_testbed.simulation import shims

            getattr(shims, self.shim)()


_NO_PREFILL_OVERLAP = {"SGLANG_DISABLE_CONSECUTIVE_PREFILL_OVERLAP": "1"}
_PYTHON_TREE = {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}
_LAZY = {"mamba_radix_cache_strategy": "extra_buffer_lazy"}
_CHUNKS = {"chunked_prefill_size": 2 * GRID}
_PRIORITY = dict(
    enable_priority_scheduling=True,
    priority_scheduling_preemption_threshold=5,
    max_running_requests=3,
)
_HIERARCHICAL = dict(
    enable_hierarchical_cache=True,
    hicache_io_backend="direct",
    hicache_mem_layout="page_first_direct",
    hicache_ratio=2.0,
    hicache_write_policy="write_through",
    max_total_tokens=512,
)
_PRESSURE = dict(max_total_tokens=192, max_mamba_cache_size=32)

CONFIGURATIONS = {
    configuration.name: configuration
    for configuration in (
        Configuration("page1"),
        Configuration("page1-python-tree", {}, _PYTHON_TREE),
        Configuration("page16", {"page_size": 16}),
        Configuration(
            "page64",
            {"page_size": 64, "mamba_track_interval": 64, "max_total_tokens": 4096},
            traffic=Traffic(64, long_outputs=0.05),
        ),
        Configuration("lazy", _LAZY),
        Configuration("lazy-page16", _LAZY | {"page_size": 16}, _PYTHON_TREE),
        Configuration("chunks", _CHUNKS),
        Configuration("chunks-page16", _CHUNKS | {"page_size": 16}),
        Configuration(
            "mixed",
            _CHUNKS | {"enable_mixed_chunk": True},
            traffic=Traffic(GRID, logprobs=0.1),
        ),
        Configuration(
            "no-prefill-overlap", {}, _NO_PREFILL_OVERLAP, waits_between_prefills=True
        ),
        Configuration("priority", _PRIORITY, traffic=Traffic(GRID, priorities=True)),
        Configuration(
            "hierarchical",
            _HIERARCHICAL,
            # Loads and backups run at once, which on a lagging device is too early.
            shim="hierarchical_cache",
            lags=False,
            traffic=Traffic(GRID, max_requests=10, weights={"Evict": 8}),
        ),
        Configuration(
            "unified",
            {"enable_unified_memory": True, "attention_backend": "triton"},
            shim="unified_memory",
            lags=False,
            virtual_slots=True,
        ),
        Configuration(
            "pressure",
            _PRESSURE,
            {"SGLANG_INIT_NEW_TOKEN_RATIO": "0.05"},
            # No retraction on demand: all of them come from memory.
            traffic=Traffic(
                GRID, max_requests=10, long_outputs=0.6, weights={"Retract": 0}
            ),
        ),
    )
}
