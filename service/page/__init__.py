"""The page that the service shows at `/`, as files that `make page` makes from `page/`."""
