"""The embedded state server: its program, its process and its directory."""
