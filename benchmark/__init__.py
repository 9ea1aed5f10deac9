"""What the fix costs: `make bench`, or `python -m benchmark`."""
