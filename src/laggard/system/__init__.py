"""What is asked of the operating system: child processes, memory, clocks, certificates, connections."""
