"""The checks: each module reads facts in small functions and judges them in pure ones."""
