"""Writing hours anew: many files that overlap become a few that are sorted over all."""
