"""Is a run as good as the reference? Corpus -> runs (reference, engine) -> differences -> tier -> verdict."""
