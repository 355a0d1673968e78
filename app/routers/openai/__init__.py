"""OpenAI's API: chat completions, embeddings, models, Conversations."""
