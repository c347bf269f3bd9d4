"""A package, so that tests name what they share in full: `from tests.requirement import required`."""
