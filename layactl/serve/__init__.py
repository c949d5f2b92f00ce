"""One process, one engine, HTTP from the standard library: requests wait in one queue for one worker."""
