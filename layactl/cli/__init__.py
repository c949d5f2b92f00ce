"""The command line: each file parses, calls one plain function and prints."""
