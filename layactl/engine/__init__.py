"""A GGUF becomes a loaded model, and requests become answers."""
