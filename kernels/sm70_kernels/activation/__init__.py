"""Gates: SiLU·mul of the MLP, and the sigmoid gate of full attention's output."""
