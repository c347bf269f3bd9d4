"""Which fast paths there are and how their state is told. Standard library only: the engine reads it too."""
