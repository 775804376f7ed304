"""The decisions of the multiplexer: how plans are found, applied, and checked against invariants. It is pure."""
