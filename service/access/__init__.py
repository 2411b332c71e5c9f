"""Who may do what: tokens, the file of rules, and the one decision about each request."""
