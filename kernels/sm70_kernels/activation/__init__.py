"""The operators `torch.ops.sm70.*`: checks, choice of specialisation, launch. Importing a module registers its own."""
