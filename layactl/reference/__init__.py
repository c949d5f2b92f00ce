"""The package laya over a checkpoint, on a private copy of it: what parity and benchmarks compare with."""
