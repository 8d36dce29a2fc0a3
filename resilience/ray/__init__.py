"""Everything that needs Ray."""
