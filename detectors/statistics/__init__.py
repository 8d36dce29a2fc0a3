"""What readings say: which devices are slow, how sure that is, and since when. Pure, on arrays."""
