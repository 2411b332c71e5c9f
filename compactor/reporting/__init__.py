"""What passes tell: to a person who watches, to logs, to Prometheus, to who reads the summary."""
