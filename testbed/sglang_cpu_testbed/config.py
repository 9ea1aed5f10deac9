"""The reference model's config: what SGLang reads to size the two pools."""

import os

from transformers import PretrainedConfig

from sglang.srt.configs.mamba_utils import (
    Mamba2CacheParams,
    Mamba2StateShape,
    mamba2_state_dtype,
)
from sglang_cpu_testbed import SLOT_SWITCH

CONV_KERNEL = 4
STATE_HEADS, STATE_HEAD_DIM, STATE_SIZE = 2, 4, 2


class ReferenceConfig(PretrainedConfig):
    """``slot_dependence`` lets slot numbers leak a little into the logits;
    None leaves the choice to the environment."""

    model_type = "sglang_cpu_testbed_reference"

    def __init__(
        self,
        vocab_size: int = 512,
        hidden_size: int = 16,
        num_attention_heads: int = 2,
        num_key_value_heads: int = 2,
        head_dim: int = 8,
        num_hidden_layers: int = 4,
        max_position_embeddings: int = 8192,
        mamba_chunk_size: int = 64,
        slot_dependence: bool | None = None,
        **kwargs,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        self.num_hidden_layers = num_hidden_layers
        self.max_position_embeddings = max_position_embeddings
        self.mamba_chunk_size = mamba_chunk_size
        self.slot_dependence = slot_dependence
        super().__init__(**kwargs)

    @property
    def linear_layer_ids(self) -> list[int]:
        return list(range(0, self.num_hidden_layers, 2))

    @property
    def full_attention_layer_ids(self) -> list[int]:
        return list(range(1, self.num_hidden_layers, 2))

    @property
    def slots_matter(self) -> bool:
        if self.slot_dependence is None:
            return os.environ.get(SLOT_SWITCH, "0") == "1"
        return self.slot_dependence

    @property
    def mamba2_cache_params(self) -> Mamba2CacheParams:
        shape = Mamba2StateShape.create(
            tp_world_size=1,
            intermediate_size=self.hidden_size - 2 * STATE_SIZE,
            n_groups=1,
            num_heads=STATE_HEADS,
            head_dim=STATE_HEAD_DIM,
            state_size=STATE_SIZE,
            conv_kernel=CONV_KERNEL,
        )
        return Mamba2CacheParams(
            shape=shape,
            layers=self.linear_layer_ids,
            dtype=mamba2_state_dtype(self),
        )
