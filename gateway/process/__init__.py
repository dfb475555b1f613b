"""The server process: start, listening socket, HTTP connections, drain and termination."""
