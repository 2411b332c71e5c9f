"""The parts of `tailrace query`: live matches, and how records are shown."""
