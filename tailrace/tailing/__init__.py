"""The parts of `tailrace tail`: where it begins, one run or many, and how lines are shown."""
