"""Who owns each slot: the free list, the tree or one live request. Counts every KV
page, Mamba state and row itself, next to SGLang's own checks, which add up sizes
and leave the Mamba pool out while the scheduler is busy."""

import numpy

PAGE, STATE, ROW = "KV page", "Mamba state", "row"
# Slot 0 is the padding's; nobody owns it.
FIRST = 1


class Totals:
    """Only the sizes, for pools whose slots are virtual: SGLang's own checks add up
    their bytes."""

    def __init__(self, scheduler):
        self._allocator = scheduler.token_to_kv_pool_allocator
        self._pool = scheduler.req_to_token_pool
        self._start = self._sizes()

    def wrong(self, at_rest: bool = False) -> list[str]:
        return self._allocator.verify_byte_accounting() if at_rest else []

    def as_at_start(self) -> bool:
        return self._sizes() == self._start

    def _sizes(self) -> tuple:
        states = self._pool.mamba_allocator.available_size()
        return self._allocator.available_size(), states, sorted(self._pool.free_slots)


class Ledger:
    """A census of one scheduler's pools."""

    def __init__(self, scheduler):
        self._scheduler = scheduler
        self._pool = scheduler.req_to_token_pool
        self._allocator = scheduler.token_to_kv_pool_allocator
        self._start = self._free()

    def wrong(self, at_rest: bool = False) -> list[str]:
        """Slots with no owner or several, in words; ``at_rest``: no request left."""
        free, tree = self._free(), self._tree()
        held = self._held([] if at_rest else self._live())
        found = []
        for kind, all_slots in self._start.items():
            owned = numpy.concatenate([free[kind], tree[kind], *held[kind]])
            count = numpy.bincount(owned, minlength=len(all_slots) + FIRST)[FIRST:]
            twice, lost = numpy.flatnonzero(count > 1), numpy.flatnonzero(count == 0)
            if len(twice):
                at = twice[0] + FIRST
                found.append(f"{kind} {at} has several owners, of {len(twice)}")
            if len(lost):
                found.append(f"{kind} {lost[0] + FIRST} has no owner, of {len(lost)}")
        return found

    def as_at_start(self) -> bool:
        """Whether all is free and in the initial order, as after a flush."""
        now = self._free()
        return all(numpy.array_equal(now[kind], self._start[kind]) for kind in now)

    def _free(self) -> dict[str, numpy.ndarray]:
        return {
            PAGE: self._allocator.get_all_free_pages().numpy().copy(),
            STATE: self._pool.mamba_allocator.free_slots.numpy().copy(),
            ROW: numpy.array(self._pool.free_slots, dtype=numpy.int64),
        }

    def _tree(self) -> dict[str, numpy.ndarray]:
        tree = self._scheduler.tree_cache
        slots = tree.all_values_flatten().numpy()
        return {
            PAGE: self._pages(slots),
            STATE: tree.all_mamba_values_flatten().numpy(),
            ROW: numpy.empty(0, numpy.int64),
        }

    def _pages(self, slots: numpy.ndarray) -> numpy.ndarray:
        size = self._allocator.page_size
        return slots if size == 1 else numpy.unique(slots // size)

    def _held(self, requests) -> dict[str, list[numpy.ndarray]]:
        pages, states, rows = [], [], []
        for req in requests:
            kv = req.kv
            if kv.holds_kv:
                rows.append(numpy.array([kv.req_pool_idx]))
                row = self._pool.req_to_token[kv.req_pool_idx].numpy()
                pages.append(
                    self._pages(row[kv.cache_protected_len : kv.kv_allocated_len])
                )
            if kv.holds_mamba:
                states.append(kv.mamba_pool_idx.reshape(1).numpy())
            if kv.mamba_ping_pong_track_buffer is not None:
                buffer = kv.mamba_ping_pong_track_buffer.numpy()
                # An empty entry of a lazy buffer.
                states.append(buffer[buffer != -1])
        return {PAGE: pages, STATE: states, ROW: rows}

    def _live(self):
        """Every request the scheduler knows, each once."""
        scheduler, seen = self._scheduler, set()
        batches = [scheduler.running_batch, scheduler.last_batch]
        batches += [batch for batch, _ in scheduler.result_queue]
        requests = [req for batch in batches if batch is not None for req in batch.reqs]
        requests += [*scheduler.waiting_queue, scheduler.chunked_req]
        for req in requests:
            if req is not None and id(req) not in seen:
                seen.add(id(req))
                yield req
