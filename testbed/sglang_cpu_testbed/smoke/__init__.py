"""A real server, driven over HTTP by what a client can send and see."""
