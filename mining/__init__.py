"""Stage 1: judged queries and a base model in, (query, positive, hard negatives) triples out."""
