"""What a request may ask of the engine, and what becomes of one that the engine's core cannot serve."""
