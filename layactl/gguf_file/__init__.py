"""GGUF files: names, reading, writing."""
