"""What operators see (`overview`) and do (`oversight`), of partitions and of named leases alike."""
