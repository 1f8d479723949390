"""When jobs run: waiting for input."""
