"""Facts from turns: by rules, and by a chat model where one is configured."""
