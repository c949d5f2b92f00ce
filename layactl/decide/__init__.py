"""The work behind `layactl decide`: where questions come from, and JSONL runs."""
