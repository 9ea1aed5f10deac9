"""The reference model as SGLang loads it: linear-attention and full-attention
layers over integers mod P, remembering in SGLang's pools. A token's logits depend
on every earlier token twice, through the KV slots and through the Mamba state, so
a wrong slot or a wrong state changes the output."""

import torch
from torch import nn

from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.forward_context import get_attn_backend
from sglang_cpu_testbed.layers import FullLayer, LinearLayer, Stack


class ReferenceForCausalLM(nn.Module):
    """``load_format`` must be ``dummy``: the numbers come from the code."""

    def __init__(self, config, quant_config=None, prefix: str = ""):
        super().__init__()
        self.config = config
        self.stack = Stack(config)
        self.attention = nn.ModuleDict(
            {
                str(i): RadixAttention(
                    config.num_attention_heads,
                    config.head_dim,
                    1.0,
                    config.num_key_value_heads,
                    i,
                )
                for i in config.full_attention_layer_ids
            }
        )
        self.logits_processor = LogitsProcessor(config)

    @torch.no_grad()
    def forward(self, input_ids, positions, forward_batch, **_):
        x, means = self.stack.embedding[input_ids], []
        for layer in self.stack.layers:
            if isinstance(layer, LinearLayer):
                x = layer.outputs(x, self._recur(layer, x, forward_batch))
            else:
                attended = self._attend(layer, x, positions, forward_batch)
                x, mean = layer.outputs(x, attended)
                means.append(mean)
        hidden = self.stack.hidden(x, means)
        readout = self.stack.readout
        return self.logits_processor(input_ids, hidden, readout, forward_batch)

    def _recur(self, layer: LinearLayer, x, forward_batch):
        return get_attn_backend().forward(
            layer=layer, forward_batch=forward_batch, mixed_qkv=layer.inputs(x)
        )

    def _attend(self, layer: FullLayer, x, positions, forward_batch):
        q, k, v = layer.inputs(x, positions)
        return self.attention[str(layer.layer_id)](q, k, v, forward_batch)

    def load_weights(self, weights):
        pass


EntryClass = ReferenceForCausalLM
