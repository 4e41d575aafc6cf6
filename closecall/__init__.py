"""Mine hard negatives, fine-tune an embedding model, and rule on held-out queries whether to adopt it."""

__version__ = "0.1.0"
