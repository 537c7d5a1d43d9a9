"""Pictures and clips from prompts."""
