"""What two features of SGLang need on a CPU that has no kernels for them. Applied in
the process of one engine only, and only for the configurations that name them."""

import torch

# How many tokens or states came back from host memory, per layer.
loaded = 0


def hierarchical_cache() -> None:
    """Host pools without a CUDA driver, and their transfers as plain copies.

    The copies run at once: no load or backup is ever under way."""
    from sglang.srt.mem_cache.pool_host import common, mamba, mha

    common._cuda_host_register = lambda *_, **__: None
    for module in (mha, mamba):
        module.transfer_kv_per_layer_direct_pf_lf = _load_layer
        module.transfer_kv_all_layer_direct_lf_pf = _back_up_layers
    for name in ("wait_stream", "wait_event", "synchronize", "record_event"):
        setattr(torch.cpu.Stream, name, lambda *_, **__: None)
    torch.cpu.Stream.query = lambda _: True


def _load_layer(src_ptrs, dst_ptrs, src_indices, dst_indices, layer_id, page_size):
    global loaded
    loaded += len(dst_indices)
    pages = src_indices[::page_size] // page_size
    for host, device in zip(src_ptrs, dst_ptrs, strict=True):
        device[dst_indices] = host[pages, layer_id].reshape(
            len(dst_indices), *device.shape[1:]
        )


def _back_up_layers(src_ptrs, dst_ptrs, src_indices, dst_indices, page_size):
    pages = dst_indices[::page_size] // page_size
    layers = len(src_ptrs) // len(dst_ptrs)
    for number, host in enumerate(dst_ptrs):
        for layer in range(layers):
            device = src_ptrs[number * layers + layer]
            shape = host[pages, layer].shape
            host[pages, layer] = device[src_indices].reshape(shape)


def unified_memory() -> None:
    """The unified pool, with an attention backend that knows its virtual slots."""
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.mem_cache import kv_cache_configurator
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc
    from sglang_cpu_testbed.backends import ReferenceAttentionBackend

    class VirtualSlots(ReferenceAttentionBackend):
        """Rows name virtual slots; the batch's write slots are physical already."""

        def __init__(self, model_runner):
            super().__init__(model_runner)
            self.kv_index_translator = model_runner.kv_index_translator
            self._page_size = model_runner.page_size

        def _written(self, slots):
            return KVWriteLoc(slots, None, physical=True)

        def _read_slots(self, row, length):
            slots, size = super()._read_slots(row, length), self._page_size
            pages = self.kv_index_translator.full_v2p_table[slots // size]
            return pages * size + slots % size

    kv_cache_configurator.reject_out_of_tree_path = lambda *_, **__: None
    ATTENTION_BACKENDS["triton"] = VirtualSlots
