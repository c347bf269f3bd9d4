"""What the API server gains: arguments, the gate every request passes, and the acceleration report."""
