"""What a card takes: small kernels that each hang on one figure of the machine, the figures found by them, and every
family's candidates timed beside their predictions. `python -m sm70_kernels.card`; `appliance bench card` shows it."""
