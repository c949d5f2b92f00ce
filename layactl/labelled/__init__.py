"""Data with known answers: decisions and router outcomes, read and checked line by line."""
