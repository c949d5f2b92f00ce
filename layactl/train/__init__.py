"""Labelled decisions and a checkpoint -> a trained checkpoint."""
