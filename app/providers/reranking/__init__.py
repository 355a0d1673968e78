"""The reranker behind HTTP. No ranking of ours, and no fallback: recall decides what happens without it."""
