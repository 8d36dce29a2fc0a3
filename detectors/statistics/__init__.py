"""What readings say: by how much each device is slow, and how sure that is. Pure, on arrays."""
