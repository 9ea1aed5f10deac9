"""The two entry points SGLang loads. Separate from the platform and the model
because SGLang imports this module in every process, selected or not."""

import os

from sglang_cpu_testbed import PLATFORM


def selected() -> bool:
    """Whether this process asked for the testbed."""
    return os.environ.get("SGLANG_PLATFORM") == PLATFORM


def select_platform() -> str | None:
    """Dotted name of the platform class, or None when it was not asked for."""
    if not selected():
        return None
    return "sglang_cpu_testbed.platform.CpuTestbedPlatform"


def register() -> None:
    """Register the reference model; without effect unless selected."""
    if not selected():
        return
    import torch
    from transformers import AutoConfig

    from sglang.srt.configs.linear_attn_model_registry import (
        LinearAttnModelSpec,
        register_linear_attn_model,
    )
    from sglang_cpu_testbed import backends  # noqa: F401
    from sglang_cpu_testbed.config import ReferenceConfig

    # Pinning asks for a CUDA driver; a pageable tensor is as good on a CPU.
    torch.Tensor.pin_memory = _unpinned
    AutoConfig.register(ReferenceConfig.model_type, ReferenceConfig)
    register_linear_attn_model(
        LinearAttnModelSpec(
            config_class=ReferenceConfig,
            backend_class_name="sglang_cpu_testbed.backends.ReferenceLinearBackend",
            arch_names=["ReferenceForCausalLM"],
            uses_mamba_radix_cache=True,
            support_mamba_cache=True,
            support_mamba_cache_extra_buffer=True,
        )
    )
    _register_model()


def _register_model() -> None:
    package = "sglang_cpu_testbed.models"
    # Read when the registry is first imported: it then skips SGLang's own models.
    os.environ.setdefault("SGLANG_EXTERNAL_MODEL_PACKAGE", package)
    from sglang.srt.models.registry import ModelRegistry, import_model_classes

    ModelRegistry.models.update(import_model_classes(package, strict=True))


def _unpinned(self, *_, **__):
    return self
