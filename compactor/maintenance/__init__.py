"""What is removed, and when nobody needs it any more."""
