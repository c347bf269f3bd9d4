"""Choose tactics by timing them on the user's own card, keep what was chosen, and give it to the operators."""
