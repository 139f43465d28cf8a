"""What the targets that ask a server over HTTP share: the timed connection, the server's options, its formats."""
