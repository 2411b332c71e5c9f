"""What `/metrics` shows: declarations by subject, and the scrape that reads them."""
