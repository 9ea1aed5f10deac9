"""What a forward and a turn of the loop cost, as numbers that can be named and printed.
Separate from the device: these are assumptions, and the device is only their order."""

from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True)
class Machine:
    """All costs in microseconds. Device costs are used under both clocks, host costs
    (``host_*``) under the virtual clock only."""

    name: str
    # Of the device.
    prefill_us: int
    prefill_token_us: int
    decode_us: int
    decode_request_us: int
    # Copies and table writes on the schedule stream, per batch and per publication.
    schedule_stream_us: int
    publication_us: int
    # Of the scheduler: one turn, one arrival, a selection, a launch up to the first
    # kernel, the processing of a result, a publication within or before it.
    host_turn_us: int
    host_arrival_us: int
    host_select_us: int
    host_select_prefill_us: int
    host_select_request_us: int
    host_launch_us: int
    host_launch_request_us: int
    host_process_us: int
    host_process_request_us: int
    host_publish_us: int

    def forward_us(self, extend_tokens: int, decodes: int) -> int:
        """Duration of a forward; a mixed one pays for both of its parts."""
        if extend_tokens:
            duration = self.prefill_us + self.prefill_token_us * extend_tokens
        else:
            duration = self.decode_us
        return duration + self.decode_request_us * decodes

    def select_us(self, prefills: int, decodes: int) -> int:
        cost = self.host_select_us + self.host_select_request_us * decodes
        return cost + self.host_select_prefill_us * prefills

    def launch_us(self, requests: int) -> int:
        return self.host_launch_us + self.host_launch_request_us * requests

    def process_us(self, requests: int) -> int:
        return self.host_process_us + self.host_process_request_us * requests

    def lines(self) -> list[str]:
        """The parameters as they are printed above a table."""
        values = asdict(self)
        device = [f.name for f in fields(self)[1:] if not f.name.startswith("host_")]
        host = [f.name for f in fields(self) if f.name.startswith("host_")]
        return [f"machine: {self.name}"] + [
            "  " + ", ".join(f"{name} {values[name]}" for name in names)
            for names in (device, host)
        ]


# From the data sheet: 16 GB of weights read at 4.8 TB/s are 3.4 ms per forward, and
# 16 GFLOP per token at 60 % of 989 TFLOP/s are 27 us. The rest of the device's costs
# is assumed; the host's are of the order that the wall clock shows.
H200 = Machine(
    name="one H200, an 8B hybrid model in BF16 (from the data sheet, not measured)",
    prefill_us=3400,
    prefill_token_us=27,
    decode_us=3400,
    decode_request_us=12,
    schedule_stream_us=15,
    publication_us=10,
    host_turn_us=40,
    host_arrival_us=60,
    host_select_us=200,
    host_select_prefill_us=120,
    host_select_request_us=2,
    host_launch_us=500,
    host_launch_request_us=3,
    host_process_us=100,
    host_process_request_us=12,
    host_publish_us=150,
)
