"""The process and machine of a node: clocks, counters, health, identity, disks, deadlines."""
