"""The API of OpenAI: chat completions, embeddings, models, Conversations."""
