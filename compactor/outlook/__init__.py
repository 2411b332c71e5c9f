"""What a pass would do, without doing it: `--dry-run`."""
