"""Access: tokens, the file of rules, the one decision about each request, and the audit log."""
