"""What a restart is worth: its cost, what a slow device loses, and when the one exceeds the other. Reads no clock."""
