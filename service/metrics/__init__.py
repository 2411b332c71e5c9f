"""The metrics at `/metrics`: declarations by subject, and the scrape that reads them."""
