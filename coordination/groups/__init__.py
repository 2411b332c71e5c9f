"""Consumer groups of the segment queue: `groups` says what one is, `group_objects` keeps them."""
