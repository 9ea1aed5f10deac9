"""A device that takes time, although nothing waits: forwards have durations and run in
launch order on a timeline of their own, under the scheduler as it is."""
