"""Publishing: the output folder, its lock and records, and how files appear in it."""
