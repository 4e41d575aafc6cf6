"""Stage 3: base and tuned on held-out queries, paired; measures, slices and a verdict out."""
