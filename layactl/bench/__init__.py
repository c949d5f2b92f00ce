"""Latency, memory and load, measured so that the numbers can be trusted, and never without parity."""
