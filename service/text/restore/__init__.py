"""Texts made from what is elsewhere: from OpenMetadata's objects, from segments, from the table."""
