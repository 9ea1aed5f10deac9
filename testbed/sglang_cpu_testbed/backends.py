"""The attention backends of the reference model. They take slots from the
forward batch exactly as a GPU backend does: writes go to out_cache_loc, reads
through req_to_token, Mamba states live in the request's slot and are copied to
the tracked slot at the aligned length. Only the arithmetic is this project's."""

import torch

from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.attention.hybrid_linear_attn_backend import (
    MambaAttnBackendBase,
)
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang_cpu_testbed import exact


@register_attention_backend("torch_native")
class ReferenceAttentionBackend(AttentionBackend):
    """Exact attention over the pool's slots, one request at a time."""

    def __init__(self, model_runner):
        super().__init__()
        self.device = model_runner.device
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self.slots_matter = model_runner.model_config.hf_config.slots_matter
        self.weights = exact.attention_weights()

    def init_forward_metadata(self, forward_batch):
        pass

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True):
        if save_kv_cache:
            self._write(layer, forward_batch.out_cache_loc, k, v)
        return self._read(
            q, layer, forward_batch, forward_batch.extend_seq_lens.tolist()
        )

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True):
        if save_kv_cache:
            self._write(layer, forward_batch.out_cache_loc, k, v)
        return self._read(q, layer, forward_batch, [1] * forward_batch.batch_size)

    def _write(self, layer, slots, k, v):
        if self.slots_matter:
            for head in range(v.shape[1]):
                salt = layer.layer_id * v.shape[1] + head
                v[:, head, -1] = exact.slot_value(slots, salt)
        pool = self.token_to_kv_pool
        # The pool would scale a tensor of another dtype in place.
        k, v = k.to(pool.dtype), v.to(pool.dtype)
        pool.set_kv_buffer(layer, self._written(slots), k, v)

    def _written(self, slots):
        return KVWriteLoc(slots, None)

    def _read_slots(self, row, length):
        """Where the pool keeps the first ``length`` tokens of a row."""
        return self.req_to_token_pool.req_to_token[row, :length].long()

    def _read(self, q, layer, forward_batch, query_lens):
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        rows = forward_batch.req_pool_indices.tolist()
        lengths = forward_batch.seq_lens.tolist()
        outputs, start = [], 0
        for row, length, count in zip(rows, lengths, query_lens, strict=True):
            slots = self._read_slots(row, length)
            outputs.append(
                exact.attend(
                    q[start : start + count],
                    keys[slots],
                    values[slots],
                    torch.arange(length - count + 1, length + 1),
                    self.weights,
                )
            )
            start += count
        return torch.cat(outputs)

    def get_cuda_graph_seq_len_fill_value(self):
        return 1

    def support_triton(self):
        return False


class ReferenceLinearBackend(MambaAttnBackendBase):
    """Exact causal convolution and recurrence over the Mamba pool's slots."""

    def __init__(self, model_runner):
        super().__init__(model_runner)
        pool = self.req_to_token_pool.mamba_pool
        self.conv_states_shape = pool.mamba_cache.conv[0].shape

    def forward_extend(self, layer, forward_batch, mixed_qkv, **_):
        conv, temporal = self._states(layer.layer_id)
        slots = self.forward_metadata.mamba_cache_indices.tolist()
        tracked = self._tracked_lengths(forward_batch)
        outputs, start = [], 0
        for i, count in enumerate(forward_batch.extend_seq_lens.tolist()):
            u = mixed_qkv[start : start + count]
            window, states = self._run(layer, conv[slots[i]], temporal[slots[i]], u)
            outputs.append(states)
            self._store(conv, temporal, slots[i], window, states, count)
            if i in tracked:
                length, target = tracked[i]
                self._store(conv, temporal, target, window, states, length)
            start += count
        return torch.cat(outputs)

    def forward_decode(self, layer, forward_batch, mixed_qkv, **_):
        conv, temporal = self._states(layer.layer_id)
        slots = self.forward_metadata.mamba_cache_indices.tolist()
        mask = forward_batch.mamba_track_mask
        mask = [False] * len(slots) if mask is None else mask.tolist()
        outputs = []
        for i, slot in enumerate(slots):
            u = mixed_qkv[i : i + 1]
            window, states = self._run(layer, conv[slot], temporal[slot], u)
            outputs.append(states)
            self._store(conv, temporal, slot, window, states, 1)
            if mask[i]:
                target = int(self.forward_metadata.mamba_track_indices[i])
                # A lazy buffer without room for the state leaves -1 here.
                if target >= 0:
                    self._store(conv, temporal, target, window, states, 1)
        return torch.cat(outputs)

    def _states(self, layer_id):
        cache = self.req_to_token_pool.mamba2_layer_cache(layer_id)
        return cache.conv[0], cache.temporal

    def _tracked_lengths(self, forward_batch):
        """Per tracked row its aligned length within this extend and its slot."""
        lengths = forward_batch.mamba_track_aligned_lens()
        if lengths is None:
            return {}
        rows = forward_batch.mamba_track_mask.nonzero().flatten().tolist()
        targets = self.forward_metadata.mamba_track_indices
        return {i: (int(lengths[i]), int(targets[i])) for i in rows}

    def _run(self, layer, conv, temporal, u):
        """The inputs after those the slot remembers [K-1+T, C], states [T, S]."""
        window = torch.cat([conv.T.long(), u])
        states = layer.states(window, temporal.flatten().long())
        return window, states

    def _store(self, conv, temporal, slot, window, states, length):
        """Write what a slot remembers after ``length`` of this forward's tokens."""
        remembered = window[length : length + conv.shape[-1]]
        conv[slot] = remembered.T.to(conv.dtype)
        temporal[slot] = states[length - 1].view(temporal.shape[1:]).to(temporal.dtype)
