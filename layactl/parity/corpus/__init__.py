"""The parity corpus: states -> kinds of items -> the corpus, and what each kind must cover."""
