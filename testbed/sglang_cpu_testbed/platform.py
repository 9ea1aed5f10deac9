"""The out-of-tree platform: one CPU, torch-native kernels, Mamba snapshots
allowed. Separate from the plugin because importing it imports SGLang."""

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform


class CpuTestbedPlatform(SRTPlatform, CpuDeviceMixin):
    """A CPU that tells SGLang it may keep Mamba states in extra buffers."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"

    def get_default_attention_backend(self) -> str:
        # The name also selects SGLang's writers of req_to_token that need no Triton.
        return "torch_native"

    def support_mamba_cache_extra_buffer(self) -> bool:
        return True

    def get_dispatch_key_name(self) -> str:
        return "native"
