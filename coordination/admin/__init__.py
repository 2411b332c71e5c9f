"""What operators see (`overview`) and do (`admin`), of partitions and of named leases alike."""
