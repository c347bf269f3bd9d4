"""What the run directory says about the engine's health. Standard library only: exec probes import it."""
