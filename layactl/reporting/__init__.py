"""What several commands report alike: record streams, and what a run depended on."""
