"""A checkpoint folder in the published layout, checked field by field."""
