"""Stage 2: triples and a base model in, a checkpoint chosen on dev out."""
