"""A running server, called as a client would."""
