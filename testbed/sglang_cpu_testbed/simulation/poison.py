"""Overwrites a KV slot or a Mamba slot the moment it is freed, so that whoever
still reads it computes something else. Without this a freed slot keeps its
content and reading it goes unnoticed.

The moment of the free, and not its place in the stream of launched forwards: a
freed slot may get a new owner on any other stream at once, as by a load from host
memory or by the zeroing of unified memory, and no launched forward is waited for.
Unless the scheduler has told its stream to wait: then whoever gets the slot does.
"""

import torch

# Exact values of the model, so that a discarded row can still be computed.
KEY, VALUE, STATE = 173, 89, 211


class Poison:
    """Wraps the frees of a scheduler's allocators, on the instances."""

    def __init__(self, scheduler, device=None):
        self.slots_poisoned = 0
        self._behind = device.behind if device else lambda step: step()
        self._allocator = scheduler.token_to_kv_pool_allocator
        self._cache = self._allocator.get_kvcache()
        self._pool = scheduler.req_to_token_pool
        full = self._cache.full_kv_pool
        self._kv = [*zip(full.k_buffer, full.v_buffer, strict=True)]
        if self._allocator.page_size == 1:
            self._around(self._allocator, "free", self._freed_tokens)
        else:
            self._around(self._allocator, "_release_page_ids", self._freed_pages)
        self._around(self._allocator, "clear", self._cleared_tokens)
        self._around(self._pool.mamba_allocator, "free", self._freed_states)

    def _around(self, owner, name: str, first) -> None:
        call = getattr(owner, name)

        def poisoned(*args, **kwargs):
            first(*args, **kwargs)
            return call(*args, **kwargs)

        setattr(owner, name, poisoned)

    def _freed_tokens(self, slots: torch.Tensor) -> None:
        # In a group the free comes again when the group ends.
        if self._allocator.free_group is None:
            self._overwrite(slots)

    def _freed_pages(self, *page_ids: torch.Tensor) -> None:
        size = self._allocator.page_size
        for pages in page_ids:
            self._overwrite((pages[:, None] * size + torch.arange(size)).flatten())

    def _cleared_tokens(self) -> None:
        for keys, values in self._kv:
            keys.fill_(KEY)
            values.fill_(VALUE)

    def _freed_states(self, slots: torch.Tensor) -> None:
        cache, slots = self._pool.mamba_pool.mamba_cache, slots.clone()

        def overwrite():
            for tensor in (*cache.conv, cache.temporal):
                tensor[:, slots] = STATE

        self._behind(overwrite)

    def _overwrite(self, slots: torch.Tensor) -> None:
        self.slots_poisoned += len(slots)
        slots = slots.clone()

        def overwrite():
            for keys, values in self._kv:
                keys[slots] = KEY
                values[slots] = VALUE

        self._behind(overwrite)
