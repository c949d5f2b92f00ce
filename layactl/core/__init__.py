"""Pure stages of the data flow: no files, no sockets, no printing."""
