"""Checkpoint folder -> GGUF."""
